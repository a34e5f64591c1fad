// A pickle is data: what a state dict needs is read, everything else is refused by name.
#include "model/importers/unpickler.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/model/importers/torch_bytes.h"

namespace duet::model {
namespace {

using Kind = PickleValue::Kind;

std::string kept;  // the views outlive the call

Result<Pickle> read(const std::string& bytes) {
  kept = bytes;
  return unpickle("m.bin", std::as_bytes(std::span(kept)));
}

const PickleValue& root(const Result<Pickle>& pickle) { return (*pickle)[pickle->root]; }

void expect_refused(const std::string& bytes, std::vector<std::string> parts,
                    ErrorCode code = ErrorCode::kBadInput) {
  parts.push_back("m.bin: the pickle, at byte ");
  expect_error(read(bytes), code, parts);
}

std::string bytes_of(std::initializer_list<int> codes) { return std::string(codes.begin(), codes.end()); }

TEST(Unpickler, PlainValuesAreRead) {
  auto pickle =
      read("\x80\x02(NK\x07M" + bytes_of({0, 1}) + "J" + bytes_of({254, 255, 255, 255}) + "\x88\x89" +
           pickled("é") + "U" + bytes_of({2, 'a', 0}) + "\x8a" + bytes_of({2, 0, 128}) + "t.");
  ASSERT_TRUE(pickle) << pickle.error().message;
  ASSERT_EQ(root(pickle).kind, Kind::kTuple);
  std::vector<PickleValue> values;
  for (uint32_t item : root(pickle).items) values.push_back((*pickle)[item]);
  ASSERT_EQ(values.size(), 9u);
  EXPECT_EQ(values[0].kind, Kind::kNone);
  EXPECT_EQ(values[1].integer, 7);
  EXPECT_EQ(values[2].integer, 256);
  EXPECT_EQ(values[3].integer, -2);
  EXPECT_EQ(values[4].kind, Kind::kTrue);
  EXPECT_EQ(values[5].kind, Kind::kFalse);
  EXPECT_EQ(values[6].text, "é");
  EXPECT_EQ(values[7].text, std::string_view("a\0", 2));
  EXPECT_EQ(values[8].integer, -32768);
  EXPECT_EQ(pickle->bytes, kept.size());
}

TEST(Unpickler, IntegersAbove64BitsKeepTheirBytes) {
  auto pickle = read("\x8a\x09" + std::string(9, '\x11') + ".");
  ASSERT_TRUE(pickle);
  EXPECT_EQ(root(pickle).kind, Kind::kLongInteger);
  EXPECT_EQ(root(pickle).text, std::string(9, '\x11'));
}

TEST(Unpickler, ListsAndDictsGrowWhereverTheyAreReferredTo) {
  auto pickle =
      read("(]q" + bytes_of({0}) + "h" + bytes_of({0}) +
           "K\x01"
           "a}r" +
           little_endian(1, 4) + "(" + pickled("k") + "K\x02uj" + little_endian(1, 4) + "K\x03K\x04st.");
  ASSERT_TRUE(pickle) << pickle.error().message;
  ASSERT_EQ(root(pickle).items.size(), 4u);
  EXPECT_EQ((*pickle)[root(pickle).items[0]].items.size(), 1u);
  EXPECT_EQ((*pickle)[root(pickle).items[2]].items.size(), 4u);
}

TEST(Unpickler, Protocol4IsRead) {
  auto pickle = read("\x80\x04\x95" + little_endian(9, 8) +
                     "\x8c\x0b"
                     "collections\x94\x8c\x0bOrderedDict\x94\x93)R.");
  ASSERT_TRUE(pickle) << pickle.error().message;
  EXPECT_EQ(root(pickle).kind, Kind::kDict);
}

TEST(Unpickler, AttributesOfADictAreSkipped) {
  auto pickle = read(whole_pickle(pickled_dict({{"a", "K\x01"}}) + "}" + pickled("_metadata") +
                                  pickled_dict({{"", "}"}}) + "sb"));
  ASSERT_TRUE(pickle) << pickle.error().message;
  EXPECT_EQ(root(pickle).items.size(), 2u);
}

TEST(Unpickler, ParametersAndSizesAreWhatTheyHold) {
  std::string size = pickled_global("torch", "Size") + pickled_tuple({pickled_sizes({2, 3})}) + "R";
  auto pickle = read(whole_pickle(pickled_global("torch._utils", "_rebuild_parameter") +
                                  pickled_tuple({size, "\x88", pickled_dict({})}) + "R"));
  ASSERT_TRUE(pickle) << pickle.error().message;
  EXPECT_EQ(root(pickle).kind, Kind::kTuple);
  EXPECT_EQ(root(pickle).items.size(), 2u);
}

TEST(Unpickler, OtherNamesAreRefusedAndNothingIsExecuted) {
  for (const auto& [module, name] :
       {std::pair("os", "system"), std::pair("posix", "system"), std::pair("builtins", "eval"),
        std::pair("torch", "load"), std::pair("torch.FloatStorage", ""), std::pair("", "torch.FloatStorage"),
        std::pair("__torch__", "Model")}) {
    expect_refused(
        whole_pickle(pickled_global(module, name) + pickled_tuple({pickled("touch /tmp/x")}) + "R"),
        {fmt::format("it names {}.{}, expected only", module, name), "nothing was executed"},
        ErrorCode::kUnsupported);
    expect_refused(whole_pickle(pickled(module) + pickled(name) + "\x93)R"),
                   {fmt::format("it names {}.{}, expected only", module, name)}, ErrorCode::kUnsupported);
  }
  expect_refused(whole_pickle(pickled_global("o\"s", "sys\x1btem")), {"it names \"o\\\"s.sys\\u001btem\","},
                 ErrorCode::kUnsupported);
}

TEST(Unpickler, OtherOpcodesAreRefusedByName) {
  expect_refused("\x80\x02(ios\nsystem\n.", {"at byte 3", "opcode INST", "nothing was executed"},
                 ErrorCode::kUnsupported);
  expect_refused("\x80\x02)\x81.", {"opcode NEWOBJ"}, ErrorCode::kUnsupported);
  expect_refused("G12345678.", {"opcode BINFLOAT"}, ErrorCode::kUnsupported);
  expect_refused("\xff", {"0xff is no opcode"});
  expect_refused("\x80\x06.", {"protocol 6", "at most 5"}, ErrorCode::kUnsupported);
}

TEST(Unpickler, CallsOfAnotherFormAreRefused) {
  expect_refused("K\x01)R.", {"at byte 3, REDUCE: it calls the integer 1 with a tuple of 0"});
  expect_refused(pickled_global("torch", "FloatStorage") + ")R.", {"it calls torch.FloatStorage with 0"},
                 ErrorCode::kUnsupported);
  expect_refused(pickled_global("collections", "OrderedDict") + "]R.", {"with a list of 0"});
  expect_refused(pickled_global("collections", "OrderedDict") + "]\x85R.",
                 {"it calls collections.OrderedDict with 1 arguments"}, ErrorCode::kUnsupported);
  expect_refused(pickled_global("torch._utils", "_rebuild_tensor_v2") + "(" + std::string(8, 'N') + "tR.",
                 {"_rebuild_tensor_v2 with 8 arguments"}, ErrorCode::kUnsupported);
  expect_refused(pickled_global("torch._utils", "_rebuild_parameter") + ")R.", {"with 0 arguments"},
                 ErrorCode::kUnsupported);
  expect_refused(
      "](K\x01"
      "e}b.",
      {"it sets attributes of a list of 1"}, ErrorCode::kUnsupported);
}

TEST(Unpickler, AStackThatDoesNotFitIsRefused) {
  expect_refused(".", {"no value is left"});
  expect_refused("N(.", {"no value is left"});
  expect_refused("N\x86.", {"2 values wanted"});
  expect_refused("N(a.", {"1 values wanted"});
  expect_refused("Nt.", {"no mark"});
  expect_refused("(e.", {"no value is on the stack"});
  expect_refused("NNa.", {"it adds to None, expected a list"});
  expect_refused("]NNs.", {"it adds to a list of 0, expected a dict"});
  expect_refused("}(Nu.", {"a key without a value"});
  expect_refused("NN\x93.", {"a global is named by None and None"});
}

TEST(Unpickler, TruncatedStreamsAreRefused) {
  std::string whole = whole_pickle(pickled_dict({{"w", pickled_tensor(pickled_storage({}), 0, {2}, {1})}}));
  ASSERT_TRUE(read(whole));
  for (size_t size = 0; size < whole.size(); ++size)
    expect_refused(whole.substr(0, size), {"ends in the middle"});
  expect_refused("X" + little_endian(0xFFFFFFFF, 4), {"4294967295 bytes wanted at byte 5 of 5"});
  expect_refused("\x8d" + little_endian(UINT64_MAX, 8), {"18446744073709551615 bytes wanted"});
}

TEST(Unpickler, MemoPlacesBeyondTheStreamAreRefused) {
  expect_refused("Nr" + little_endian(0xFFFFFFFF, 4) + ".",
                 {"memo place 4294967295", "the pickle's 7 bytes"});
  expect_refused("h" + bytes_of({3}) + ".", {"memo place 3 is empty"});
  expect_refused("Nq" + bytes_of({2}) + "h" + bytes_of({1}) + ".", {"memo place 1 is empty"});
  expect_refused("q" + bytes_of({0}) + ".", {"no value is on the stack"});
}

TEST(Unpickler, NestingAndCyclesCostNoStack) {
  std::string deep = "N" + std::string(2'000'000, '\x85') + ".";
  auto nested = read(deep);
  ASSERT_TRUE(nested);
  EXPECT_EQ(root(nested).kind, Kind::kTuple);
  expect_refused(std::string(1'000'000, '('), {"ends in the middle"});
  auto cycle = read("]q" + bytes_of({0}) + "h" + bytes_of({0}) + "a.");
  ASSERT_TRUE(cycle);
  EXPECT_EQ(root(cycle).items, std::vector<uint32_t>{cycle->root});
}

// Copies of a reference cost as much as the opcodes that make them: a long tuple is never copied.
TEST(Unpickler, ReferencesDoNotMultiply) {
  std::string bytes = "(" + std::string(500'000, 'N') + "tq" + bytes_of({0});
  for (int i = 0; i < 500'000; ++i) bytes += "h" + bytes_of({0});
  auto pickle = read(bytes + ".");
  ASSERT_TRUE(pickle);
  EXPECT_LT(pickle->values.size(), 10u);
}

TEST(Unpickler, APickleLongerThanAnyStateDictIsRefused) {
  expect_refused(std::string(kMaxPickleBytes + 1, 'N') + ".", {"longer than 4194304 bytes"});
}

TEST(Unpickler, DamagedPicklesNeverCrash) {
  const std::string good =
      whole_pickle(pickled_dict({{"a", pickled_tensor(pickled_storage({}), 0, {2}, {1})},
                                 {"b", "]q" + bytes_of({0}) + "h" + bytes_of({0}) + "a"}}) +
                   "}" + pickled("_metadata") + "}sb");
  const std::string opcodes = "()]}NKMJXUqrhjcRbQtaesu.\x80\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95";
  int refused = 0, accepted = 0;
  for (unsigned seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = good;
    for (unsigned change = random() % 4; change-- > 0;) {
      size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 1:
          bytes[at] = opcodes[random() % opcodes.size()];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 5);
          break;
        case 3:
          bytes.insert(at, 1, opcodes[random() % opcodes.size()]);
          break;
      }
      if (bytes.empty()) break;
    }
    std::vector<char> exact(bytes.begin(), bytes.end());  // a sanitizer sees a read past it
    auto pickle = unpickle("m", std::as_bytes(std::span(exact)));
    ++(pickle ? accepted : refused);
    if (!pickle) {
      ASSERT_FALSE(pickle.error().message.empty());
      continue;
    }
    for (const PickleValue& value : pickle->values) {
      ASSERT_FALSE(describe(value).empty());
      for (uint32_t item : value.items) ASSERT_LT(item, pickle->values.size());
    }
  }
  EXPECT_GT(refused, 5000);
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace duet::model
