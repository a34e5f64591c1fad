#include "model/importers/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

Result<StoredTensors> parse(const std::string& bytes) {
  return parse_safetensors("m.safetensors", std::as_bytes(std::span(bytes)));
}

Result<StoredTensors> parse(const std::string& header, size_t data_bytes) {
  static std::string kept;  // the views outlive the call
  kept = safetensors_bytes(header, std::string(data_bytes, 'x'));
  return parse(kept);
}

void expect_bad(const std::string& header, size_t data_bytes, std::vector<std::string> parts,
                ErrorCode code = ErrorCode::kBadInput) {
  parts.push_back("m.safetensors");
  expect_error(parse(header, data_bytes), code, parts);
}

const std::string kOne = R"("w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";

TEST(Safetensors, TensorsAreFoundWithTypeShapeAndBytes) {
  std::string bytes = safetensors_bytes(R"({"b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                                        R"("a":{"shape":[3,1],"data_offsets":[2,5],"dtype":"U8"}}  )",
                                        "BBaaa");
  auto tensors = parse(bytes);
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ(tensors->at("b").type, StoredType::kBF16);
  EXPECT_TRUE(tensors->at("b").shape.empty());
  EXPECT_EQ(tensors->at("a").shape, (std::vector<uint64_t>{3, 1}));
  EXPECT_EQ(std::memcmp(tensors->at("a").bytes.data(), "aaa", 3), 0);
  EXPECT_EQ(tensors->at("a").bytes.size(), 3u);
}

TEST(Safetensors, MetadataIsIgnored) {
  EXPECT_TRUE(parse(R"({"__metadata__":{"format":"pt","dtype":"x"},)" + kOne + "}", 24));
}

TEST(Safetensors, EmptyTensorsAndNoTensorsAreAccepted) {
  EXPECT_TRUE(parse(
      R"({"w":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      4));
  EXPECT_TRUE(parse("{}", 0));
}

TEST(Safetensors, AFileShorterThanALengthIsRefused) {
  expect_error(parse("1234567"), ErrorCode::kBadInput, {"m.safetensors", "7 bytes", "8"});
}

TEST(Safetensors, AHeaderLongerThanTheFileIsRefused) {
  std::string bytes = safetensors_bytes("{" + kOne + "}", std::string(24, 'x'));
  bytes[1] = 1;
  expect_error(parse(bytes), ErrorCode::kBadInput, {"header length is", "truncated"});
  bytes[7] = '\x7f';
  expect_error(parse(bytes), ErrorCode::kBadInput, {"header length is", "truncated"});
}

TEST(Safetensors, AnOversizedHeaderIsRefused) {
  expect_bad("{}" + std::string(kMaxSafetensorsHeaderBytes, ' '), 0,
             {"header length is 16777218", "at most 16777216"});
}

TEST(Safetensors, AGitLfsPointerIsExplained) {
  expect_error(parse("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
               ErrorCode::kBadInput, {"m.safetensors", "Git LFS pointer", "git lfs pull"});
}

TEST(Safetensors, AHeaderThatIsNoJsonObjectIsRefused) {
  expect_bad("", 0, {"not valid JSON"});
  expect_bad("{" + kOne, 24, {"not valid JSON at byte"});
  expect_bad("{" + kOne + "} {", 24, {"not valid JSON at byte"});
  expect_bad("[1]", 0, {"the header is an array", "JSON object"});
  expect_bad("7", 0, {"the header is 7", "JSON object"});
  expect_bad(std::string("{\"\xff\":{}}"), 0, {"not valid JSON"});
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  expect_bad(R"({"w":)" + std::string(1 << 20, '[') + "}", 0, {"\"w\"", "an array"});
  expect_bad(R"({"w":{"shape":)" + std::string(1 << 20, '[') + "}}", 0, {"\"w\"", "shape", "an array"});
}

TEST(Safetensors, AnEntryOfAnotherFormIsRefusedByName) {
  expect_bad(R"({"w":3})", 0, {"\"w\"", "3", "an object"});
  expect_bad(R"({"w":{"dtype":3}})", 0, {"\"w\"", "dtype", "3", "a string"});
  expect_bad(R"({"w":{"dtype":"F32","shape":"x"}})", 0, {"\"w\"", "shape", "\"x\"", "unsigned integers"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[-1]}})", 0, {"\"w\"", "shape", "-1", "unsigned integers"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[1.5]}})", 0, {"\"w\"", "shape", "1.5", "unsigned integers"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[1],"size":4}})", 0, {"\"w\"", "\"size\"", "data_offsets"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1]}})", 0, {"\"w\"", "shape", "more than 8"});
  expect_bad(R"({"__metadata__":{"x":[]}})", 0, {"__metadata__", "an array", "strings"});
}

TEST(Safetensors, AMissingFieldIsNamed) {
  expect_bad(R"({"w":{"shape":[],"data_offsets":[0,4]}})", 4, {"\"w\"", "dtype is missing"});
  expect_bad(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4, {"\"w\"", "shape is missing"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[]}})", 4, {"\"w\"", "data_offsets is missing"});
}

TEST(Safetensors, AnUnknownTypeIsRefusedByName) {
  expect_bad(R"({"w":{"dtype":"F99","shape":[],"data_offsets":[0,4]}})", 4, {"\"w\"", "\"F99\"", "F32"},
             ErrorCode::kUnsupported);
}

TEST(Safetensors, DuplicateNamesAreRefused) {
  expect_bad("{" + kOne + "," + kOne + "}", 24, {"\"w\"", "twice"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[],"shape":[],"data_offsets":[0,4]}})", 4,
             {"\"w\"", "shape is given twice"});
  expect_bad(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__ twice"});
}

TEST(Safetensors, RangesMustFitShapeAndData) {
  expect_bad(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20,
             {"\"w\"", "[0, 20]", "expected 24", "[2, 3]"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}})", 20,
             {"\"w\"", "[0, 24]", "20 bytes of data"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
             {"\"w\"", "are [4, 0], expected a range inside 4"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
             {"\"w\"", "1 elements, expected 2"});
  expect_bad(
      R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615]}})", 4,
      {"\"w\"", "inside 4 bytes"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
             {"\"w\"", "2^64"});
  expect_bad(R"({"w":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", 4,
             {"\"w\"", "2^64"});
  expect_bad(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1,
             {"\"w\"", "whole number of bytes"});
}

TEST(Safetensors, OverlapsAndSurplusBytesAreRefused) {
  expect_bad(
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
      7, {"\"a\"", "\"b\"", "overlap"});
  expect_bad("{" + kOne + "}", 27, {"3 bytes after the last tensor"});
  expect_bad("{}", 1, {"1 bytes after"});
}

TEST(Safetensors, OpenNamesAFileThatIsNotThere) {
  TemporaryDirectory directory;
  expect_error(SafetensorsFile::open(directory.path() + "/none.safetensors"), ErrorCode::kIo,
               {"none.safetensors"});
  expect_error(SafetensorsFile::open(directory.write("empty.safetensors", "")), ErrorCode::kBadInput,
               {"empty"});
}

// Damaged copies of a good file give an error or tensors whose bytes lie inside the file.
TEST(Safetensors, DamagedFilesNeverCrash) {
  SmallTensors tensors = {{"a", small_f32({2, 3})}, {"b", small_f32({4})}, {"c", {"BF16", {1, 2}, "abcd"}}};
  const std::string good = safetensors_bytes(tensors);
  ASSERT_TRUE(parse(good));
  const std::string alphabet = "{}[],:\"0123456789-.eE\\untrFfBU \xff";
  int refused = 0, accepted = 0;
  for (unsigned seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes = good;
    for (unsigned change = random() % 4; change-- > 0;) {
      size_t at = random() % std::min<size_t>(bytes.size(), 280);
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 1:
          bytes[at] = alphabet[random() % alphabet.size()];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 5);
          break;
        case 3:
          bytes.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
      }
      if (bytes.size() < 9) break;
      uint64_t length = 0;  // keep most lengths plausible, so that the JSON is reached
      std::memcpy(&length, bytes.data(), 8);
      if (length > bytes.size() && random() % 8 != 0) {
        length = bytes.rfind('}') == std::string::npos ? 0 : bytes.rfind('}') - 7;
        std::memcpy(bytes.data(), &length, 8);
      }
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    std::vector<char> exact(bytes.begin(),
                            bytes.end());  // heap block of that size: a sanitizer sees a read past it
    auto parsed = parse_safetensors("m", std::as_bytes(std::span(exact)));
    ++(parsed ? accepted : refused);
    if (!parsed) {
      ASSERT_FALSE(parsed.error().message.empty());
      continue;
    }
    for (const auto& [name, tensor] : *parsed) {
      auto* begin = reinterpret_cast<const char*>(tensor.bytes.data());
      ASSERT_GE(begin, exact.data() + 8) << name;
      ASSERT_LE(begin + tensor.bytes.size(), exact.data() + exact.size()) << name;
      ASSERT_EQ(tensor.bytes.size(), stored_bytes(tensor.type, tensor.shape)) << name;
    }
  }
  EXPECT_GT(refused, 10000);
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace duet::model
