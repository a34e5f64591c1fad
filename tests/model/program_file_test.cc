// Program files: what was written is read back the same; whatever else a file holds is an error that names
// it, or a program that runs without harm; a write that fails leaves the old file.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "memory/log.h"
#include "model/program_header.h"
#include "tests/model/support.h"

namespace duet::model {
namespace {

using Json = nlohmann::ordered_json;

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A program file in its three parts.
struct FileParts {
  explicit FileParts(const std::string& bytes) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data() + 8, 8);
    header = bytes.substr(kFixedHeaderBytes, header_bytes);
    data = bytes.substr(std::min<size_t>(data_start(header_bytes), bytes.size()));
  }
  std::string join() const { return join(header, data); }
  static std::string join(const std::string& header, const std::string& data) {
    FixedPart fixed = fixed_part(header);
    std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof fixed);
    bytes += header;
    bytes.resize(data_start(header.size()), '\0');
    return bytes + data;
  }
  std::string header, data;
};

// Two programs, saved once: the cache with all that a file can hold, and a small translation model.
class ProgramFiles : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    memory::set_log_level(memory::LogLevel::kError);
    directory_ = new TemporaryDirectory;
    MultiEntryPointExporter cache;
    build_cache(cache);
    cache.limit("slots", 1, 8, 4, "unused, but checked");
    cache.derived("twice", mul("slots", 2));
    cache.section("tables/empty", "");
    cache.section("tables/words", std::string("a\0b\xff", 4));
    cache.metadata() = {{"name", "Grüße \"x\"\n"}, {"nested", {{"list", {1, 2.5, nullptr, true}}}}};
    InputSpec spec;
    spec.name = "ids";
    spec.dtype = DType::kI32;
    spec.shape = {"n"};
    spec.min_value = 0;
    spec.max_value = add("slots", -1);
    spec.distinct = true;
    spec.sums_to = "n";
    spec.help = "help";
    auto& m = cache.method("sum");
    m.input(spec);
    ASSERT_TRUE(save_and_open(cache, *directory_, "cache"));
    MultiEntryPointExporter marian;
    build_small_marian(marian);
    ASSERT_TRUE(save_and_open(marian, *directory_, "marian"));
  }
  static void TearDownTestSuite() { delete directory_; }

  static std::string path(const std::string& name) { return directory_->path() + "/" + name; }
  static Result<std::shared_ptr<const Program>> open_bytes(const std::string& bytes) {
    return Program::open(directory_->write("changed.duet", bytes));
  }

  static TemporaryDirectory* directory_;
};
TemporaryDirectory* ProgramFiles::directory_ = nullptr;

TEST_F(ProgramFiles, WrittenAgainAreTheSameBytes) {
  for (const char* name : {"cache.duet", "marian.duet"}) {
    auto program = Program::open(path(name));
    ASSERT_TRUE(program) << program.error().message;
    ASSERT_TRUE(write_program((*program)->definition(), path("again.duet")));
    EXPECT_EQ(read_all(path(name)), read_all(path("again.duet"))) << name;
  }
}

TEST_F(ProgramFiles, KeepEverythingThatTheDefinitionSays) {
  auto program = Program::open(path("cache.duet"));
  ASSERT_TRUE(program);
  const ProgramDefinition& d = (*program)->definition();
  EXPECT_EQ(d.metadata["name"], "Grüße \"x\"\n");
  EXPECT_EQ(d.metadata["nested"]["list"].dump(), "[1,2.5,null,true]");
  EXPECT_EQ((*program)->section("tables/words").size(), 4u);
  EXPECT_EQ(std::memcmp((*program)->section("tables/words").data(), "a\0b\xff", 4), 0);
  EXPECT_EQ(d.sections.count("tables/empty"), 1u);
  EXPECT_TRUE((*program)->section("nobody").empty());
  EXPECT_EQ((*program)->file_bytes(), std::filesystem::file_size(path("cache.duet")));
  EXPECT_EQ(d.find_symbol("slots")->help, "unused, but checked");
  EXPECT_EQ(d.find_symbol("twice")->value, mul("slots", 2));
  EXPECT_EQ(d.shared[1].initial, -1.5);
  EXPECT_FALSE(d.shared[0].initial);
  const InputSpec& ids = d.find_method("sum")->inputs[0];
  EXPECT_EQ(ids.min_value, Expression(0));
  EXPECT_EQ(ids.max_value, add("slots", -1));
  EXPECT_TRUE(ids.distinct);
  EXPECT_EQ(ids.sums_to, "n");
  EXPECT_EQ(ids.help, "help");
  for (const Constant& constant : d.constants)
    EXPECT_EQ(reinterpret_cast<uintptr_t>(constant.data.data()) % 64, 0u);
}

TEST_F(ProgramFiles, BeginWithWhatHeadShows) {
  std::string bytes = read_all(path("marian.duet"));
  EXPECT_EQ(bytes.substr(0, 4), "DUET");
  EXPECT_EQ(bytes.find("{\"producer\":\"duet " DUET_VERSION "\","), 24u);
  FileParts parts(bytes);
  EXPECT_EQ(parts.header.back(), '\n');
  Json header = Json::parse(parts.header);
  uint64_t end = 0;
  for (const char* list : {"sections", "constants"}) {
    for (const Json& entry : header[list]) {
      EXPECT_EQ(entry["offset"], end) << entry["name"];
      end = aligned(end + entry["bytes"].get<uint64_t>());
    }
  }
  EXPECT_EQ(aligned(parts.data.size()), end);
}

TEST_F(ProgramFiles, CutShortAnywhereAreErrorsThatNameTheFile) {
  for (const char* name : {"cache.duet", "marian.duet"}) {
    std::string bytes = read_all(path(name));
    uint64_t header_bytes = FileParts(bytes).header.size();
    std::vector<size_t> lengths = {bytes.size() - 1};
    for (size_t n = 0; n <= 80; ++n) lengths.push_back(n);
    for (size_t around : {kFixedHeaderBytes + header_bytes, size_t{data_start(header_bytes)}})
      for (size_t n = around - 2; n <= around + 2; ++n) lengths.push_back(n);
    for (size_t n = 0; n < bytes.size(); n += bytes.size() / 100 + 1) lengths.push_back(n);
    for (size_t n : lengths) {
      auto program = open_bytes(bytes.substr(0, n));
      expect_error(program, ErrorCode::kBadInput, {"changed.duet"});
    }
  }
}

// ---- Damage by chance
// -------------------------------------------------------------------------------------------------

// Calls every method with the smallest inputs that its declaration allows. Errors are fine, harm is not.
int call_every_method(Session& session) {
  const ProgramDefinition& definition = session.program().definition();
  int done = 0;
  for (size_t m = 0; m < definition.methods.size(); ++m) {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<std::byte>> memory;
      std::vector<TensorView> views;
      for (const InputSpec& spec : definition.methods[m].inputs) {
        TensorView view;
        view.dtype = spec.dtype;
        view.rank = static_cast<int>(spec.shape.size());
        for (int i = 0; i < view.rank; ++i) {
          const Dim& dim = spec.shape[static_cast<size_t>(i)];
          view.dims[i] = dim.value();
          if (dim.kind() != Expression::Kind::kSymbol) continue;
          const Symbol* symbol = definition.find_symbol(dim.symbol());
          view.dims[i] = session.symbol(dim.symbol());
          if (symbol->kind == Symbol::Kind::kDynamic) {
            auto least = evaluate(definition, symbol->min, session.plan().symbols);
            if (least) view.dims[i] = *least;
          }
        }
        if (view.bytes() > (1 << 22))
          return done;  // a size that a change made large: nothing to learn from it
        memory.emplace_back(view.bytes() + 1);
        view.data = memory.back().data();
        int64_t least = 0;
        if (spec.min_value) least = evaluate(definition, *spec.min_value, session.plan().symbols).value_or(0);
        if (spec.dtype == DType::kI32)
          for (int64_t i = 0; i < view.elements(); ++i)
            view.as<int32_t>()[i] = static_cast<int32_t>(round == 0 ? least + (spec.distinct ? i : 0)
                                                                    : least + 1000 * (i + 1) - 999);
        views.push_back(view);
      }
      if (session.execute(static_cast<int>(m), views)) ++done;
    }
  }
  return done;
}

// Other damage than every day's: DUET_TEST_SEED=N.
uint32_t seed(uint32_t own) {
  const char* text = std::getenv("DUET_TEST_SEED");
  return own + 1000 * static_cast<uint32_t>(text ? std::atoi(text) : 0);
}

struct Tally {
  int refused = 0, opened = 0, ran = 0;
};

void open_and_run(const std::string& file, Tally& tally, int threads) {
  auto program = Program::open(file);
  if (!program) {
    ++tally.refused;
    EXPECT_TRUE(program.error().code == ErrorCode::kBadInput || program.error().code == ErrorCode::kIo)
        << program.error().message;
    EXPECT_NE(program.error().message.find(file), std::string::npos) << program.error().message;
    return;
  }
  ++tally.opened;
  SessionOptions options;
  options.threads = threads;
  auto session = Session::create(*program, options);
  if (session) tally.ran += call_every_method(**session) > 0;
}

TEST_F(ProgramFiles, WithRandomlyChangedBytesAreRefusedOrRunWithoutHarm) {
  std::mt19937 random(seed(1));
  Tally tally;
  for (const char* name : {"cache.duet", "marian.duet"}) {
    const std::string bytes = read_all(path(name));
    size_t header_end = kFixedHeaderBytes + FileParts(bytes).header.size();
    for (int i = 0; i < 800; ++i) {
      std::string changed = bytes;
      for (unsigned n = 1 + static_cast<unsigned>(random() % 3); n > 0; --n) {
        size_t at = random() % (random() % 8 ? header_end : changed.size());
        // Mostly digits for digits and letters for letters: other changes end in the JSON parser.
        char& c = changed[at];
        c = random() % 4 == 0 ? static_cast<char>(random())
            : std::isdigit(c) ? static_cast<char>('0' + random() % 10)
                              : c;
      }
      if (random() % 10 == 0) changed.resize(random() % changed.size());
      if (i % 4 != 0) changed = resealed(std::move(changed));  // so that the checks behind the seal run
      open_and_run(directory_->write("changed.duet", changed), tally, 1 + (i % 8 == 0));
    }
  }
  EXPECT_GT(tally.refused, 300);
  EXPECT_GT(tally.ran, 100);
}

// Changes the meaning and keeps the syntax: this gets past the parser, to the checks and the operators.
TEST_F(ProgramFiles, WithRandomlyChangedMeaningAreRefusedOrRunWithoutHarm) {
  std::mt19937 random(seed(2));
  Tally tally;
  for (const char* name : {"cache.duet", "marian.duet"}) {
    FileParts parts(read_all(path(name)));
    const Json original = Json::parse(parts.header);
    for (int i = 0; i < 800; ++i) {
      Json header = original;
      for (unsigned n = 1 + static_cast<unsigned>(random() % 2); n > 0; --n) {
        // Walk down to a random place.
        Json *at = &header, *parent = nullptr;
        std::vector<Json*> path_down;
        while (at->is_structured() && !at->empty() && (at == &header || random() % 8)) {
          parent = at;
          auto it = at->begin();
          std::advance(it, static_cast<ptrdiff_t>(random() % at->size()));
          at = &*it;
          path_down.push_back(at);
        }
        static const Json kValues[] = {0,
                                       1,
                                       2,
                                       3,
                                       15,
                                       16,
                                       17,
                                       -1,
                                       1000,
                                       INT32_MAX,
                                       int64_t{1} << 40,
                                       INT64_MAX,
                                       UINT64_MAX,
                                       1e300,
                                       -0.5,
                                       "",
                                       "rows",
                                       "slots",
                                       "f32",
                                       "i32",
                                       "u8",
                                       "i64",
                                       "slots.status",
                                       "slots.tokens",
                                       "slots.positions",
                                       "cache.keys",
                                       nullptr,
                                       true,
                                       Json::array(),
                                       Json::object(),
                                       {"add", "slots", 1},
                                       {"mul", "slots", INT64_MAX},
                                       {"ceil_div", 1, 0}};
        switch (random() % 4) {
          case 0:
            *at = kValues[random() % std::size(kValues)];
            break;
          case 1:
            if (at->is_number_integer())
              *at = static_cast<int64_t>(at->get<uint64_t>() + random() % 3 - 1);  // may wrap
            else
              *at = kValues[random() % std::size(kValues)];
            break;
          case 2:
            if (parent && parent->is_array()) {  // a sibling's value: another operand, another operator
              auto it = parent->begin();
              std::advance(it, static_cast<ptrdiff_t>(random() % parent->size()));
              Json copy = *it;
              *at = copy;
            }
            break;
          default:
            if (parent && parent->is_array()) parent->erase(random() % parent->size());
        }
      }
      open_and_run(directory_->write("changed.duet", FileParts::join(header.dump() + "\n", parts.data)),
                   tally, 1 + (i % 8 == 0));
    }
  }
  EXPECT_GT(tally.refused, 600);
  EXPECT_GT(tally.ran, 150);
}

// ---- Damage by design
// -------------------------------------------------------------------------------------------------

struct Hostile {
  const char* pointer;  // into the header of cache.duet
  const char* value;    // JSON
  std::vector<std::string> parts;
};

TEST_F(ProgramFiles, WithHostileHeadersAreErrorsThatNameTheField) {
  FileParts parts(read_all(path("cache.duet")));
  const Hostile cases[] = {
      {"/constants/0/offset", "18446744073709551552", {"constants[0]", "outside the file"}},
      {"/constants/0/offset", "18446744073709551615", {"constants[0].offset", "not a multiple of 64"}},
      {"/constants/0/offset", "9223372036854775744", {"constants[0]", "outside the file"}},
      {"/constants/0/offset", "32", {"constants[0].offset", "32 is not a multiple of 64"}},
      {"/constants/0/offset", "-64", {"constants[0].offset", "whole number"}},
      {"/constants/0/offset", "64.0", {"constants[0].offset", "whole number"}},
      {"/constants/0/bytes", "18446744073709551615", {"constants[0]", "outside the file"}},
      {"/constants/0/bytes", "13", {"constants[0]"}},
      {"/constants/0/bytes", "8", {"constants[0].bytes", "8 bytes for i32 [3], expected 12"}},
      {"/constants/0/shape", "[4294967296, 4294967296, 4]", {"constants[0].bytes"}},
      {"/constants/0/shape", "[4611686018427387904, 4]", {"constants[0]"}},
      {"/constants/0/shape", "[-3]", {"constants[0].shape[0]", "whole number >= 0"}},
      {"/constants/0/shape", "[18446744073709551615]", {"constants[0].shape[0]", "too large"}},
      {"/constants/0/shape", "[3.0]", {"constants[0].shape[0]"}},
      {"/constants/0/shape", "[\"n\"]", {"constants[0].bytes", "fixed shape"}},
      {"/constants/0/shape", "[1, 1, 3, 1, 1]", {"constants[0].shape", "more than 4 dimensions"}},
      {"/constants/0/shape", "3", {"constants[0].shape", "expected a list"}},
      {"/constants/0/dtype", "\"f16\"", {"constants[0].dtype", "unknown dtype"}},
      {"/constants/0/dtype", "7", {"constants[0].dtype", "expected a string"}},
      {"/constants/0/name", "\"cache.keys\"", {"constants[0]", "\"cache.keys\" is defined twice"}},
      {"/constants/0/name", "\"\"", {"constants[0].name", "expected a name"}},
      {"/constants/0/layout", "\"columns\"", {"constants[0].layout", "expected \"panels\""}},
      {"/constants/0/layout", "\"panels\"", {"constants[0]"}},
      {"/constants/0/checksum", "\"12\"", {"constants[0].checksum", "16 hexadecimal"}},
      {"/constants/0/checksum", "\"zzzzzzzzzzzzzzzz\"", {"constants[0].checksum", "16 hexadecimal"}},
      {"/constants", "{}", {"constants", "expected a list"}},
      {"/sections/1/checksum", "\"0000000000000000\"", {"sections[1].checksum", "tables/words", "damaged"}},
      {"/sections/1/bytes", "3", {"sections[1].checksum", "damaged"}},
      {"/sections/1/name", "\"tables/empty\"", {"sections[1]", "stands twice"}},
      {"/shared/0/shape", "[-10, 20]", {"shared[0].shape[0]"}},
      {"/shared/0/shape", "[4611686018427387904, 20]", {"cache.keys"}},
      {"/shared/0/shape", "[\"n\", 20]", {"cache.keys", "differs from call to call"}},
      {"/shared/0/shape", "[\"nobody\", 20]", {"cache.keys", "unknown symbol nobody"}},
      {"/shared/0/name", "\"cache.values\"", {"shared[1]", "\"cache.values\" is defined twice"}},
      {"/shared/1/initial", "\"1\"", {"shared[1].initial", "expected a number"}},
      {"/symbols/0/min", "[\"pow\", 1, 2]", {"symbols[0].min", "unknown size operation \"pow\""}},
      {"/symbols/0/min", "-1", {"symbol n", "-1"}},
      {"/symbols/0/max", "\"n\"", {"symbol n", "before it is defined"}},
      {"/symbols/0/max", "\"twice\"", {"symbol twice", "before it is defined"}},
      {"/symbols/0/max", "0", {"n is 0", "expected 1 to 0"}},
      {"/symbols/0/max", "[\"mul\", 4611686018427387904, 4]", {"overflow"}},
      {"/symbols/0/kind", "\"free\"", {"symbols[0].kind", "limit, derived or dynamic"}},
      {"/symbols/1/name", "\"n\"", {"symbol \"n\" is defined twice"}},
      {"/symbols/2/value", "[\"ceil_div\", \"slots\", 0]", {"ceil_div(4, 0)"}},
      {"/symbols/2/value", "\"twice\"", {"symbol twice", "before it is defined"}},
      {"/methods/1/name", "\"get_cache\"", {"method \"get_cache\" is defined twice"}},
      {"/methods/1/inputs/0/name", "\"v\"", {"methods[1]", "value \"v\" is defined twice"}},
      {"/methods/1/inputs/0/dtype", "\"i64\"", {"method set_cache", "write_keys", "f32, expected i64"}},
      {"/methods/1/inputs/0/shape", "[\"n\", 20, 1]", {"method set_cache", "write_keys"}},
      {"/methods/1/inputs/0/min_value", "0", {"method set_cache", "\"k\"", "i32"}},
      {"/methods/1/operators/0/kind",
       "\"paste_block\"",
       {"method set_cache", "unknown operator kind \"paste_block\""}},
      {"/methods/1/operators/0/inputs",
       "[\"k\", \"nobody\"]",
       {"methods[1].operators[0].inputs[1]", "unknown tensor \"nobody\""}},
      {"/methods/1/operators/0/inputs", "[\"k\", \"v\"]", {"write_keys", "must be a shared buffer"}},
      {"/methods/1/operators/0/inputs", "[\"k\"]", {"write_keys", "1 inputs, expected 2"}},
      {"/methods/1/operators/0/inputs", "[null, null]", {"write_keys", "missing"}},
      {"/methods/1/operators/0/outputs", "[\"k\"]", {"write_keys", "1 outputs, expected 0"}},
      {"/methods/1/operators/0/attributes", "{\"axis\": 1}", {"write_keys", "unknown attribute axis"}},
      {"/methods/1/operators/0/attributes",
       "{\"axis\": {}}",
       {"methods[1].operators[0].attributes", "attribute \"axis\""}},
      {"/methods/1/operators/0/attributes",
       "[]",
       {"methods[1].operators[0].attributes", "expected an object"}},
      {"/methods/0/operators/0/attributes/value",
       "18446744073709551615",
       {"methods[0].operators[0].attributes", "\"value\" is too large"}},
      {"/methods/0/operators/0/inputs", "[\"version\"]", {"et_module_init", "-1.5 does not fit i32"}},
      {"/methods/2/outputs/0/value",
       "\"nobody\"",
       {"methods[2].outputs[0].value", "unknown tensor \"nobody\""}},
      {"/methods/2/outputs/1/name", "\"k\"", {"method get_cache", "output \"k\" is defined twice"}},
      {"/methods/4/inputs/0/sums_to", "\"slots\"", {"method sum", "\"ids\"", "dynamic symbol"}},
      {"/methods/4/inputs/0/max_value", "\"nobody\"", {"method sum", "\"ids\"", "unknown symbol nobody"}},
      {"/methods/4/inputs/0/distinct", "1", {"methods[4].inputs[0].distinct", "true or false"}},
      {"/methods", "7", {"methods", "expected a list"}},
      {"/metadata", "[]", {"metadata", "expected an object"}},
      {"", "[]", {"field \"metadata\" is missing"}},
      {"", "null", {"field \"metadata\" is missing"}},
  };
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(std::string(hostile.pointer) + " = " + hostile.value);
    Json header = Json::parse(parts.header);
    header[Json::json_pointer(hostile.pointer)] = Json::parse(hostile.value);
    auto expected = hostile.parts;
    expected.push_back("changed.duet: ");
    expect_error(open_bytes(FileParts::join(header.dump(), parts.data)), ErrorCode::kBadInput, expected);
  }
  for (const char* field : {"metadata", "symbols", "methods", "shared", "sections", "constants"}) {
    Json header = Json::parse(parts.header);
    header.erase(field);
    expect_error(open_bytes(FileParts::join(header.dump(), parts.data)), ErrorCode::kBadInput,
                 {fmt::format("field \"{}\" is missing", field)});
  }
}

TEST_F(ProgramFiles, MayShareBytesBetweenConstants) {
  FileParts parts(read_all(path("cache.duet")));
  Json header = Json::parse(parts.header);
  Json copy = header["constants"][0];
  copy["name"] = "version_again";
  header["constants"].push_back(copy);
  EXPECT_TRUE(open_bytes(FileParts::join(header.dump(), parts.data)));
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST_F(ProgramFiles, WithHeadersThatAreNoProperJsonAreErrors) {
  FileParts parts(read_all(path("cache.duet")));
  constexpr size_t kDeep = 1000000;
  auto with_metadata = [&](const std::string& metadata) {
    Json header = Json::parse(parts.header);
    header["metadata"] = "HERE";
    std::string text = header.dump();
    text.replace(text.find("\"HERE\""), 6, metadata);
    return text;
  };
  std::string many_keys = "{";
  for (size_t i = 0; i < 200000; ++i) many_keys += fmt::format("{}\"k{}\":0", i ? "," : "", i);
  std::string many_symbols = "[";
  for (size_t i = 0; i < 5000; ++i)
    many_symbols += fmt::format("{}{{\"name\":\"s{}\",\"kind\":\"derived\",\"value\":1}}", i ? "," : "", i);
  Json header = Json::parse(parts.header);
  header["symbols"] = Json::parse(many_symbols + "]");
  const std::pair<std::string, std::string> cases[] = {
      {"", "not valid JSON"},
      {" ", "not valid JSON"},
      {"{", "not valid JSON"},
      {parts.header + "x", "not valid JSON"},
      {parts.header.substr(0, parts.header.size() / 2), "not valid JSON"},
      {repeated("[", kDeep), "nested more than 32"},
      {repeated("{\"a\":", kDeep), "nested more than 32"},
      {with_metadata("{\"a\":" + repeated("[", kDeep) + repeated("]", kDeep) + "}"), "nested more than 32"},
      {with_metadata(repeated("{\"a\":", kDeep) + "1" + repeated("}", kDeep)), "nested more than 32"},
      {with_metadata(many_keys + "}"), "more than 4096 keys"},
      {with_metadata("{\"a\":1,\"a\":2}"), "\"a\" stands twice"},
      {with_metadata("{},\"methods\":[]"), "\"methods\" stands twice"},
      {with_metadata("{\"a\":1e999}"), "not valid JSON"},
      {with_metadata("{\"a\":NaN}"), "not valid JSON"},
      {with_metadata("{\"a\":\"\xff\xfe\"}"), "not valid JSON"},
      {with_metadata("{\"a\":\"\xc3\"}"), "not valid JSON"},
      {with_metadata(std::string("{\"a\0\":1}", 8)), "not valid JSON"},
      {header.dump(), "symbols: more than 256"},
  };
  for (const auto& [text, part] : cases) {
    SCOPED_TRACE(text.substr(0, 60));
    expect_error(open_bytes(FileParts::join(text, parts.data)), ErrorCode::kBadInput,
                 {"changed.duet: ", part});
  }
  EXPECT_TRUE(open_bytes(
      FileParts::join(with_metadata("{\"a\":" + repeated("[", 29) + repeated("]", 29) + "}"), parts.data)));
}

TEST_F(ProgramFiles, WithAnyChangedByteInFrontOfTheDataAreErrors) {
  std::string bytes = read_all(path("cache.duet"));
  size_t end = kFixedHeaderBytes + FileParts(bytes).header.size();
  std::fstream file(directory_->write("changed.duet", bytes),
                    std::ios::binary | std::ios::in | std::ios::out);
  auto put = [&](size_t at, char byte) { file.seekp(static_cast<std::streamoff>(at)).put(byte).flush(); };
  for (size_t at = 0; at < end; ++at) {
    put(at, static_cast<char>(bytes[at] ^ 1 << at % 8));
    expect_error(Program::open(path("changed.duet")), ErrorCode::kBadInput, {"changed.duet: "});
    put(at, bytes[at]);
  }
  EXPECT_TRUE(Program::open(path("changed.duet")));
}

TEST_F(ProgramFiles, WithAWrongFixedHeaderAreErrors) {
  std::string bytes = read_all(path("cache.duet"));
  auto changed = [&](size_t at, uint64_t value, size_t size) {
    std::string copy = bytes;
    std::memcpy(copy.data() + at, &value, size);
    return open_bytes(copy);
  };
  expect_error(changed(0, 'X', 1), ErrorCode::kBadInput,
               {"changed.duet: not a Duet program", "duet convert"});
  expect_error(changed(4, 1, 4), ErrorCode::kBadInput,
               {"changed.duet: program version 1, this Duet reads version 2", "duet convert"});
  expect_error(changed(4, 3, 4), ErrorCode::kBadInput, {"version 3"});
  expect_error(open_bytes(bytes.substr(0, 20)), ErrorCode::kBadInput, {"20 bytes, expected 24", "cut short"});
  for (uint64_t length : {uint64_t{bytes.size()}, uint64_t{bytes.size()} - 23, ~uint64_t{0},
                          ~uint64_t{0} - 23, uint64_t{1} << 63, uint64_t{1} << 40})
    expect_error(changed(8, length, 8), ErrorCode::kBadInput,
                 {"changed.duet: header of", "cut short or damaged"});
  expect_error(changed(8, 0, 8), ErrorCode::kBadInput,
               {"changed.duet: the header is damaged: its checksum is"});
  expect_error(Program::open(path("")), ErrorCode::kIo, {directory_->path()});
  expect_error(Program::open(path("nobody.duet")), ErrorCode::kIo, {"nobody.duet"});
  expect_error(open_bytes(""), ErrorCode::kBadInput, {"changed.duet", "empty"});
}

// ---- Writing
// ----------------------------------------------------------------------------------------------------------

TEST_F(ProgramFiles, ThatCannotBeWrittenLeaveTheOldOneAndNothingElse) {
  auto program = Program::open(path("marian.duet"));
  ASSERT_TRUE(program);
  const ProgramDefinition& definition = (*program)->definition();
  expect_error(write_program(definition, path("no/such/directory.duet")), ErrorCode::kIo,
               {"no/such/directory.duet"});

  std::string target = directory_->write("old.duet", "the old program");
  auto size = std::filesystem::file_size(path("marian.duet"));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  for (uint64_t most : {uint64_t{0}, uint64_t{3}, uint64_t{100}, size / 2, size - 1}) {
    rlimit small = old;
    small.rlim_cur = most;
    ::setrlimit(RLIMIT_FSIZE, &small);
    Status status = write_program(definition, target);
    ::setrlimit(RLIMIT_FSIZE, &old);
    expect_error(status ? nullptr : &status.error(), ErrorCode::kIo,
                 {"old.duet", "cannot write", "File too large"});
    EXPECT_EQ(read_all(target), "the old program");
    EXPECT_FALSE(std::filesystem::exists(target + ".part"));
  }
  ASSERT_TRUE(std::filesystem::create_directory(path("in-the-way")));
  expect_error(write_program(definition, path("in-the-way")), ErrorCode::kIo, {"in-the-way: is a directory"});
  EXPECT_FALSE(std::filesystem::exists(path("in-the-way.part")));
  EXPECT_TRUE(write_program(definition, target));
  EXPECT_EQ(read_all(target), read_all(path("marian.duet")));
}

}  // namespace
}  // namespace duet::model
