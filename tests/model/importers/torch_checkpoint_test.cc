// pytorch_model.bin in both forms: which tensors come out, and what each kind of bad file is told.
#include "model/importers/torch_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/model/importers/torch_bytes.h"

namespace duet::model {
namespace {

std::string kept;  // the views outlive the call

Result<TorchCheckpoint> parse(std::string bytes) {
  kept = std::move(bytes);
  return parse_torch_checkpoint("m.bin", std::as_bytes(std::span(kept)));
}

void expect_bad(std::string bytes, std::vector<std::string> parts, ErrorCode code = ErrorCode::kBadInput) {
  parts.push_back("m.bin: ");
  expect_error(parse(std::move(bytes)), code, parts);
}

// Elements 0, 1, 2, … as floats.
std::string floats(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    auto value = static_cast<float>(i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

std::vector<float> values(const Result<TorchCheckpoint>& checkpoint, const char* name) {
  return to_finite_floats(checkpoint->tensors.at(name), "m.bin", name).value();
}

struct View {
  int64_t offset = 0;
  std::vector<int64_t> shape, strides;
};

// Both forms of a checkpoint whose tensors all view one storage of `count` floats.
struct Forms {
  std::string zip, legacy;
};
Forms views_of(size_t count, const std::vector<std::pair<std::string, View>>& views) {
  auto pickle = [&](bool legacy) {
    StorageId id{"FloatStorage", "7", static_cast<int64_t>(count), legacy};
    NamedValues named;
    for (const auto& [name, view] : views)
      named.emplace_back(name, pickled_tensor(pickled_storage(id), view.offset, view.shape, view.strides));
    return whole_pickle(pickled_dict(named));
  };
  return {torch_zip_bytes(pickle(false), {{"7", floats(count)}}),
          torch_legacy_bytes(pickle(true), {{"7", floats(count)}})};
}

void expect_bad_view(const View& view, std::vector<std::string> parts,
                     ErrorCode code = ErrorCode::kBadInput) {
  Forms forms = views_of(6, {{"w", view}});
  parts.push_back("tensor \"w\": ");
  expect_bad(forms.zip, parts, code);
  expect_bad(forms.legacy, parts, code);
}

std::string one_tensor(const StorageId& id) {
  return whole_pickle(pickled_dict({{"w", pickled_tensor(pickled_storage(id), 0, {2}, {1})}}));
}

// ---- what comes out ----

TEST(TorchCheckpoint, TensorsOfBothFormsAreFoundWithTypeShapeAndBytes) {
  Forms forms = views_of(6, {{"w", {0, {2, 3}, {3, 1}}}, {"odd \"name\"\n", {5, {}, {}}}});
  for (const std::string& bytes : {forms.zip, forms.legacy}) {
    auto checkpoint = parse(bytes);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    ASSERT_EQ(checkpoint->tensors.size(), 2u);
    EXPECT_EQ(checkpoint->tensors.at("w").type, StoredType::kF32);
    EXPECT_EQ(checkpoint->tensors.at("w").shape, (std::vector<uint64_t>{2, 3}));
    EXPECT_EQ(values(checkpoint, "w"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(values(checkpoint, "odd \"name\"\n"), std::vector<float>{5});
  }
}

TEST(TorchCheckpoint, TheOlderFormIsReadInPlaceAndAZipArchiveIsCopiedOnce) {
  Forms forms = views_of(6, {{"a", {0, {6}, {1}}}, {"b", {0, {2, 3}, {3, 1}}}});
  auto legacy = parse(forms.legacy);
  ASSERT_TRUE(legacy);
  EXPECT_TRUE(legacy->views_file);
  EXPECT_TRUE(legacy->owned.empty());
  auto* begin = reinterpret_cast<const char*>(legacy->tensors.at("a").bytes.data());
  EXPECT_GT(begin, kept.data());
  EXPECT_LE(begin + 24, kept.data() + kept.size());
  auto zip = parse(forms.zip);
  ASSERT_TRUE(zip);
  EXPECT_FALSE(zip->views_file);
  EXPECT_EQ(zip->owned.size(), 1u);
  EXPECT_EQ(zip->tensors.at("a").bytes.data(), zip->tensors.at("b").bytes.data()) << "tied tensors";
}

TEST(TorchCheckpoint, ViewsThatAreNotContiguousAreGathered) {
  Forms forms = views_of(24, {{"transposed", {0, {3, 2}, {1, 3}}},
                              {"column", {1, {4}, {6}}},
                              {"row", {6, {6}, {1}}},
                              {"block", {7, {2, 2}, {6, 1}}},
                              {"permuted", {0, {2, 3, 4}, {1, 8, 2}}},
                              {"one row", {18, {1, 6}, {999, 1}}},
                              {"empty", {24, {0, 5}, {5, 1}}}});
  for (const std::string& bytes : {forms.zip, forms.legacy}) {
    auto checkpoint = parse(bytes);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(values(checkpoint, "transposed"), (std::vector<float>{0, 3, 1, 4, 2, 5}));
    EXPECT_EQ(values(checkpoint, "column"), (std::vector<float>{1, 7, 13, 19}));
    EXPECT_EQ(values(checkpoint, "row"), (std::vector<float>{6, 7, 8, 9, 10, 11}));
    EXPECT_EQ(values(checkpoint, "block"), (std::vector<float>{7, 8, 13, 14}));
    EXPECT_EQ(values(checkpoint, "permuted"),
              (std::vector<float>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                  1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
    EXPECT_EQ(values(checkpoint, "one row"), (std::vector<float>{18, 19, 20, 21, 22, 23}));
    EXPECT_TRUE(values(checkpoint, "empty").empty());
  }
}

TEST(TorchCheckpoint, EveryElementTypeKeepsItsName) {
  for (const auto& [name, type, bytes] :
       {std::tuple("HalfStorage", StoredType::kF16, 4), std::tuple("BFloat16Storage", StoredType::kBF16, 4),
        std::tuple("DoubleStorage", StoredType::kF64, 16), std::tuple("LongStorage", StoredType::kI64, 16),
        std::tuple("BoolStorage", StoredType::kBool, 2),
        std::tuple("ComplexFloatStorage", StoredType::kC64, 16)}) {
    auto checkpoint = parse(torch_zip_bytes(one_tensor({name, "0", 2}), {{"0", std::string(bytes, 'x')}}));
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->tensors.at("w").type, type) << name;
  }
  expect_bad(torch_zip_bytes(one_tensor({"QInt8Storage", "0", 2}), {}),
             {"names torch.QInt8Storage, expected"}, ErrorCode::kUnsupported);
}

TEST(TorchCheckpoint, ParametersAndPlainDictsAreAccepted) {
  std::string tensor = pickled_tensor(pickled_storage({"FloatStorage", "0", 2}), 0, {2}, {1});
  std::string parameter = tensor;
  for (int i = 0; i < 3; ++i)  // a parameter of a parameter is the same tensor
    parameter = pickled_global("torch._utils", "_rebuild_parameter") +
                pickled_tuple({parameter, "\x88", pickled_dict({})}) + "R";
  EXPECT_TRUE(
      parse(torch_zip_bytes(whole_pickle("}(" + pickled("w") + parameter + "u"), {{"0", floats(2)}})));
}

TEST(TorchCheckpoint, Zip64ArchivesAreRead) {
  auto checkpoint =
      parse(zip_bytes({{"m/data.pkl", one_tensor({"FloatStorage", "0", 2})}, {"m/data/0", floats(2)}}, true));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(values(checkpoint, "w"), (std::vector<float>{0, 1}));
}

// ---- what is no state dict ----

TEST(TorchCheckpoint, AnotherFileIsExplained) {
  expect_bad("", {"neither a zip archive nor"});
  expect_bad("PK", {"not a readable zip archive"});
  expect_bad("hello", {"neither a zip archive nor", "is this a PyTorch checkpoint?"});
  expect_bad(whole_pickle("K\x01"), {"neither a zip archive nor"});
  expect_bad("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 310020341\n",
             {"is a Git LFS pointer; the real file has 310,020,341 bytes: run `git lfs pull`"});
}

TEST(TorchCheckpoint, OtherContentsAreRefused) {
  auto refused = [](const std::string& value, std::vector<std::string> parts,
                    ErrorCode code = ErrorCode::kUnsupported) {
    expect_bad(torch_zip_bytes(whole_pickle(value), {}), parts, code);
    expect_bad(torch_legacy_bytes(whole_pickle(value), {}), parts, code);
  };
  refused("]", {"holds a list of 0, expected a state dict"});
  refused(pickled_dict({{"epoch", "K\x03"}}), {"tensor \"epoch\": is the integer 3, expected a tensor"});
  refused(pickled_dict({{"model", pickled_dict({})}}), {"tensor \"model\": is a dict of 0"});
  refused(std::string("}q\0", 3) + pickled("itself") + std::string("h\0s", 3),
          {"tensor \"itself\": is a dict of 1"});
  refused("}K\x01K\x02s", {"a key of the state dict is the integer 1"});
  refused(pickled_global("os", "system") + pickled_tuple({pickled("true")}) + "R",
          {"names os.system, expected only", "nothing was executed"});
}

TEST(TorchCheckpoint, ANameTwiceIsRefused) {
  std::string tensor = pickled_tensor(pickled_storage({"FloatStorage", "0", 2}), 0, {2}, {1});
  expect_bad(torch_zip_bytes(whole_pickle(pickled_dict({{"w", tensor}, {"w", tensor}})), {{"0", floats(2)}}),
             {"tensor \"w\"", "twice"});
}

// ---- views ----

TEST(TorchCheckpoint, ViewsBeyondTheirStorageAreRefused) {
  constexpr int64_t kMost = INT64_MAX;
  const std::vector<std::string> beyond = {"reach beyond the 6 elements of its storage \"7\""};
  expect_bad_view({0, {7}, {1}}, {"shape [7], strides [1] and offset 0 reach beyond"});
  expect_bad_view({1, {2, 3}, {3, 1}}, beyond);
  expect_bad_view({6, {}, {}}, beyond);
  expect_bad_view({0, {2, 2}, {5, 1}}, beyond);
  expect_bad_view({kMost, {2}, {kMost}}, beyond);
  expect_bad_view({0, {kMost, kMost}, {0, 0}}, beyond);
  expect_bad_view({0, {3, 3}, {kMost, kMost}}, beyond);
  expect_bad_view({0, {kMost, 1}, {kMost, 1}}, beyond);
  expect_bad_view({7, {0}, {1}}, beyond);
}

TEST(TorchCheckpoint, ViewsThatRepeatElementsAreRefused) {
  expect_bad_view({0, {1'000'000'000'000}, {0}}, {"strides [0] repeat elements"}, ErrorCode::kUnsupported);
  expect_bad_view({0, {4, 3}, {1, 1}}, {"repeat elements"}, ErrorCode::kUnsupported);
}

TEST(TorchCheckpoint, ViewsOfAnotherFormAreRefused) {
  expect_bad_view({-1, {2}, {1}}, {"its storage offset is the integer -1"});
  expect_bad_view({0, {-2}, {1}}, {"its shape is the integer -2"});
  expect_bad_view({0, {2}, {-1}}, {"its strides is the integer -1"});
  expect_bad_view({0, {2, 3}, {1}}, {"the shape [2, 3] and the strides [1]"});
  expect_bad_view({0, std::vector<int64_t>(9, 1), std::vector<int64_t>(9, 1)}, {"a tuple of 9", "at most 8"});
  std::string rebuild = pickled_global("torch._utils", "_rebuild_tensor_v2");
  expect_bad(torch_zip_bytes(whole_pickle(pickled_dict({{"w", rebuild + ")R"}})), {}), {"has 0 arguments"});
}

// Each view costs a hundred bytes of pickle; converting it would cost the whole storage.
TEST(TorchCheckpoint, ManyLargeViewsOfOneStorageAreRefused) {
  std::vector<std::pair<std::string, View>> views;
  for (int i = 0; i < 8; ++i) views.emplace_back(fmt::format("w{}", i), View{0, {10000}, {1}});
  EXPECT_TRUE(parse(views_of(10000, views).zip));
  for (int i = 8; i < 20; ++i) views.emplace_back(fmt::format("w{}", i), View{0, {5000, 2}, {1, 5000}});
  Forms forms = views_of(10000, views);
  expect_bad(forms.zip, {"too many share a storage"});
  expect_bad(forms.legacy, {"too many share a storage"});
}

// ---- storages ----

TEST(TorchCheckpoint, StoragesMustAgreeWithTheirBytes) {
  expect_bad(torch_zip_bytes(one_tensor({"FloatStorage", "0", 2}), {{"0", floats(3)}}),
             {"storage \"0\" has 12 bytes", "expected 8 for 2 elements of F32"});
  expect_bad(torch_zip_bytes(one_tensor({"FloatStorage", "0", 2}), {}),
             {"storage \"0\" has no entry \"data/0\""});
  expect_bad(torch_zip_bytes(one_tensor({"DoubleStorage", "0", INT64_MAX}), {{"0", floats(2)}}),
             {"storage \"0\" has 9223372036854775807 elements of F64", "2^64"});
  expect_bad(torch_zip_bytes(one_tensor({"FloatStorage", "0", -2}), {}),
             {"its number of elements is the integer -2"});
  std::string legacy = one_tensor({"FloatStorage", "0", 2, true});
  expect_bad(torch_legacy_bytes(legacy, {{"0", floats(3)}}), {"storage \"0\" has 3 elements, but 2"});
  expect_bad(torch_legacy_bytes(legacy, {}), {"storage \"0\" is missing"});
  expect_bad(torch_legacy_bytes(legacy, {{"1", floats(2)}}), {"has the text \"1\", which no tensor uses"});
  expect_bad(torch_legacy_bytes(legacy, {{"0", floats(2)}, {"0", floats(2)}}), {"the text \"0\" twice"});
  expect_bad(torch_legacy_bytes(legacy, {{"0", floats(2)}}) + "x", {"1 bytes after the last storage"});
}

TEST(TorchCheckpoint, AStorageHasOneTypeAndSize) {
  auto two = [](const StorageId& a, const StorageId& b) {
    return torch_zip_bytes(
        whole_pickle(pickled_dict({{"a", pickled_tensor(pickled_storage(a), 0, {2}, {1})},
                                   {"b", pickled_tensor(pickled_storage(b), 0, {2}, {1})}})),
        {{"0", floats(2)}});
  };
  EXPECT_TRUE(parse(two({"FloatStorage", "0", 2}, {"FloatStorage", "0", 2})));
  expect_bad(two({"FloatStorage", "0", 2}, {"HalfStorage", "0", 2}),
             {"tensor \"b\"", "2 elements of F16, but 2 of F32"});
  expect_bad(two({"FloatStorage", "0", 2}, {"FloatStorage", "0", 3}),
             {"tensor \"b\"", "3 elements of F32, but 2"});
}

TEST(TorchCheckpoint, StorageIdsOfAnotherFormAreRefused) {
  auto with_id = [](const std::string& id) {
    return torch_zip_bytes(whole_pickle(pickled_dict({{"w", pickled_tensor(id, 0, {2}, {1})}})), {});
  };
  std::string type = pickled_global("torch", "FloatStorage");
  expect_bad(with_id("N"), {"its storage is None"});
  expect_bad(with_id("K\x01Q"), {"its storage has the id the integer 1"});
  expect_bad(with_id(pickled_tuple({pickled("module"), type, pickled("0"), "N", "K\x02"}) + "Q"),
             {"begins with the text \"module\""});
  expect_bad(with_id(pickled_tuple({pickled("storage"), "N", pickled("0"), "N", "K\x02"}) + "Q"),
             {"is of the class None"});
  expect_bad(with_id(pickled_tuple({pickled("storage"), type, "K\x05", "N", "K\x02"}) + "Q"),
             {"key is the integer 5"});
  expect_bad(with_id(pickled_tuple({pickled("storage"), type, pickled("0"), "N", "K\x02", ")"}) + "Q"),
             {"its storage is a view of another one"}, ErrorCode::kUnsupported);
}

TEST(TorchCheckpoint, StorageKeysMayBeAnything) {
  for (const char* key : {"140345975276960", "../../etc/passwd", "a/b", "\xff\n\"", ""}) {
    auto zip = parse(torch_zip_bytes(one_tensor({"FloatStorage", key, 2}), {{key, floats(2)}}));
    EXPECT_TRUE(zip) << zip.error().message;
    auto legacy = parse(torch_legacy_bytes(one_tensor({"FloatStorage", key, 2, true}), {{key, floats(2)}}));
    EXPECT_TRUE(legacy) << legacy.error().message;
  }
}

// ---- the containers ----

TEST(TorchCheckpoint, ZipEntriesMustBePlain) {
  auto with = [](ZipEntry entry) {
    return zip_bytes({{"m/data.pkl", one_tensor({"FloatStorage", "0", 2})}, std::move(entry)});
  };
  ASSERT_TRUE(parse(with({"m/data/0", floats(2)})));
  expect_bad(with({"m/data/0", floats(2), 8}), {"entry \"m/data/0\"", "compressed (method 8)"},
             ErrorCode::kUnsupported);
  expect_bad(with({"m/data/0", floats(2), 0, 1}), {"entry \"m/data/0\"", "encrypted"},
             ErrorCode::kUnsupported);
  expect_bad(with({"m/data/0", floats(2), 0, 0, 1'000'000'000}),
             {"entry \"m/data/0\"", "claims 1000000000 bytes, more than the file of"});
  expect_bad(with({"m/data.pkl", "x"}), {"entry \"m/data.pkl\" twice"});
  std::string damaged = with({"m/data/0", floats(2)});
  damaged[damaged.find(floats(2)) + 3] ^= 1;
  expect_bad(damaged, {"entry \"m/data/0\"", "damaged", "CRC"});
}

TEST(TorchCheckpoint, AZipArchiveOfSomethingElseIsExplained) {
  expect_bad(zip_bytes({{"m/readme.txt", "x"}}), {"zip archive without \"m/data.pkl\""});
  expect_bad(zip_bytes({{"a/x", "x"}, {"m/data.pkl", "x"}}), {"without \"a/data.pkl\""});
  expect_bad(zip_bytes({{"m/data.pkl", one_tensor({})}, {"m/byteorder", "big"}}), {"byteorder"},
             ErrorCode::kUnsupported);
}

TEST(TorchCheckpoint, NumbersOfTheOlderFormAreChecked) {
  std::string good = torch_legacy_bytes(one_tensor({"FloatStorage", "0", 2, true}), {{"0", floats(2)}});
  auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  ASSERT_TRUE(parse(good));
  expect_bad(replaced("M\xe9\x03", "M\xea\x03"), {"protocol version is the integer 1002, expected 1001"},
             ErrorCode::kUnsupported);
  expect_bad(replaced("\x88u.", "\x89u."), {"big-endian"}, ErrorCode::kUnsupported);
  expect_bad(replaced("](", "}("), {"the list of storages: the pickle, at byte"});
}

TEST(TorchCheckpoint, TruncatedFilesAreRefused) {
  Forms forms = views_of(6, {{"w", {0, {2, 3}, {3, 1}}}});
  for (size_t size = 0; size < forms.zip.size(); ++size)
    EXPECT_FALSE(parse(forms.zip.substr(0, size))) << size;
  for (size_t size = 0; size < forms.legacy.size(); ++size)
    EXPECT_FALSE(parse(forms.legacy.substr(0, size))) << size;
  expect_bad(forms.legacy.substr(0, forms.legacy.size() - 1),
             {"storage \"7\" needs 24 bytes, but 23 are left: the file is truncated"});
}

TEST(TorchCheckpoint, OpenNamesAFileThatIsNotThere) {
  TemporaryDirectory directory;
  expect_error(TorchCheckpointFile::open(directory.path() + "/none.bin"), ErrorCode::kIo, {"none.bin"});
}

}  // namespace
}  // namespace duet::model
