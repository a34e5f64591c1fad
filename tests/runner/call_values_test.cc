#include "runner/call_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "tests/model/support.h"

namespace duet::runner {
namespace {

using model::DType;
using model::MultiEntryPointExporter;
using model::TemporaryDirectory;

// A session over a program, and the target that values of one of its methods have.
class Target {
 public:
  explicit Target(void (*build)(MultiEntryPointExporter&), model::Limits limits = {}) {
    MultiEntryPointExporter exporter;
    build(exporter);
    session_ = model::open_session(model::save_and_open(exporter, directory_), std::move(limits));
  }
  CallTarget of(const std::string& method) {
    const auto& definition = session_->program().definition();
    return {definition, *definition.find_method(method), session_->plan().symbols};
  }
  Status run(const std::string& method, const std::map<std::string, Tensor>& inputs) {
    std::vector<model::TensorView> views;
    for (const auto& input : of(method).method.inputs) {
      const Tensor& tensor = inputs.at(input.name);
      model::TensorView view{
          const_cast<std::byte*>(tensor.data.data()), tensor.dtype, static_cast<int>(tensor.dims.size()), {}};
      std::copy(tensor.dims.begin(), tensor.dims.end(), view.dims);
      views.push_back(view);
    }
    auto result = session_->execute(session_->find_method(method), views);
    if (!result) return tl::make_unexpected(result.error());
    return {};
  }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<model::Session> session_;
};

constexpr Fill kFills[] = {Fill::kOnes, Fill::kZeros, Fill::kRange, Fill::kRand};

std::vector<int32_t> integers(const Tensor& tensor) {
  auto values = tensor.values<int32_t>();
  return {values.begin(), values.end()};
}
int64_t sum(const std::vector<int32_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

TEST(InputFillTest, InputsHaveTheLargestSizesOfTheSession) {
  Target target(model::build_cache);
  auto filled = fill_inputs(target.of("set_cache"), {}, Fill::kOnes, 0);
  ASSERT_TRUE(filled) << filled.error().message;
  EXPECT_EQ(filled->at("k").dims, (std::vector<int64_t>{10, 20}));
  for (float value : filled->at("v").values<float>()) EXPECT_EQ(value, 1.0F);
  EXPECT_TRUE(target.run("set_cache", *filled));
}

TEST(InputFillTest, AGivenInputDecidesTheSizesItSharesWithOthers) {
  Target target(model::build_cache);
  std::map<std::string, Tensor> given;
  given.emplace("v", Tensor::f32({3, 20}, std::vector<float>(60)));
  auto filled = fill_inputs(target.of("set_cache"), given, Fill::kRange, 0);
  ASSERT_TRUE(filled) << filled.error().message;
  ASSERT_EQ(filled->size(), 1u);
  EXPECT_EQ(filled->at("k").dims, (std::vector<int64_t>{3, 20}));
  EXPECT_EQ(filled->at("k").values<float>()[59], 59.0F);
}

TEST(InputFillTest, EveryFillSatisfiesWhatATranslationProgramDeclares) {
  Target target(model::build_small_marian, {{"slots", 3}});
  for (Fill fill : kFills) {
    for (uint64_t seed : {0u, 1u, 2u}) {
      auto filled = fill_inputs(target.of("reset_encode_prefill"), {}, fill, seed);
      ASSERT_TRUE(filled) << filled.error().message;
      EXPECT_EQ(sum(integers(filled->at("source_lengths"))), filled->at("source_tokens").dims[0]);
      auto slots = integers(filled->at("slots"));
      EXPECT_EQ(std::set<int32_t>(slots.begin(), slots.end()).size(), 3u);
      // The session finds nothing wrong with the inputs; prompts beyond limits and a full cache are no matter
      // of bounds.
      Status status = target.run("reset_encode_prefill", *filled);
      std::string message = status ? "open_slots" : status.error().message;
      EXPECT_NE(message.find("open_slots"), std::string::npos) << message;
    }
  }
}

TEST(InputFillTest, GivenLengthsDecideHowManyTokensThereAre) {
  Target target(model::build_small_marian);
  std::map<std::string, Tensor> given;
  given.emplace("source_lengths", Tensor::i32({2}, std::vector<int32_t>{3, 4}));
  given.emplace("prompt_lengths", Tensor::i32({2}, std::vector<int32_t>{1, 1}));
  auto filled = fill_inputs(target.of("reset_encode_prefill"), given, Fill::kRand, 7);
  ASSERT_TRUE(filled) << filled.error().message;
  EXPECT_EQ(filled->at("source_tokens").dims, std::vector<int64_t>{7});
  EXPECT_EQ(filled->at("slots").dims, std::vector<int64_t>{2});
  filled->merge(given);
  Status status = target.run("reset_encode_prefill", *filled);
  EXPECT_TRUE(status) << status.error().message;
}

TEST(InputFillTest, GivenTokensDecideWhatLengthsAddUpTo) {
  Target target(model::build_small_marian);
  std::map<std::string, Tensor> given;
  given.emplace("source_tokens", Tensor::i32({7}, std::vector<int32_t>(7, 1)));
  given.emplace("slots", Tensor::i32({2}, std::vector<int32_t>{0, 1}));
  for (Fill fill : kFills) {
    auto filled = fill_inputs(target.of("reset_encode_prefill"), given, fill, 3);
    ASSERT_TRUE(filled) << filled.error().message;
    EXPECT_EQ(sum(integers(filled->at("source_lengths"))), 7);
  }
}

TEST(InputFillTest, RandomFillsDependOnTheSeedOnly) {
  Target target(model::build_cache);
  auto a = fill_inputs(target.of("set_cache"), {}, Fill::kRand, 5),
       b = fill_inputs(target.of("set_cache"), {}, Fill::kRand, 5),
       c = fill_inputs(target.of("set_cache"), {}, Fill::kRand, 6);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->at("k").data, b->at("k").data);
  EXPECT_NE(a->at("k").data, c->at("k").data);
  EXPECT_NE(a->at("k").data, a->at("v").data);
  for (float value : a->at("k").values<float>()) {
    EXPECT_GE(value, -1.0F);
    EXPECT_LT(value, 1.0F);
  }
}

// Declarations of all kinds, also such that no input satisfies.
TEST(InputFillTest, WhatIsFilledSatisfiesAnyDeclarationOrIsRefused) {
  std::mt19937 random(3);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int filled_count = 0, refused = 0;
  for (int round = 0; round < 150; ++round) {
    TemporaryDirectory directory;
    MultiEntryPointExporter exporter;
    int least = below(3);
    exporter.dynamic("n", least, least + below(6));
    exporter.dynamic("t", below(3), 3 + below(12));
    auto& method = exporter.method("m");
    for (const char* name : {"a", "b"}) {
      model::InputSpec spec;
      spec.name = name;
      spec.dtype = DType::kI32;
      spec.shape = {"n"};
      int min = below(7) - 3;
      if (below(4) > 0) spec.min_value = min;
      if (below(4) > 0) spec.max_value = min + below(8) - 1;
      spec.distinct = spec.min_value && spec.max_value && below(2) == 0;
      if (below(3) > 0) spec.sums_to = "t";
      method.output(spec.name + "_out", method.input(spec));
    }
    method.output("c_out", method.input("c", DType::kI32, {"t"}));
    auto session = model::open_session(model::save_and_open(exporter, directory));
    ASSERT_TRUE(session);
    const auto& definition = session->program().definition();
    const model::Method& m = *definition.find_method("m");
    for (Fill fill : kFills) {
      auto filled = fill_inputs({definition, m, session->plan().symbols}, {}, fill, random());
      if (!filled) {
        EXPECT_TRUE(filled.error().message.find("cannot be filled") != std::string::npos)
            << filled.error().message;
        ++refused;
        continue;
      }
      ++filled_count;
      std::vector<model::TensorView> views;
      for (const auto& input : m.inputs) {
        Tensor& tensor = filled->at(input.name);
        views.push_back({tensor.data.data(), tensor.dtype, 1, {tensor.dims[0]}});
      }
      auto result = session->execute(session->find_method("m"), views);
      EXPECT_TRUE(result) << round << ": " << result.error().message;
    }
  }
  EXPECT_GT(filled_count, 100);
  EXPECT_GT(refused, 20);
}

// echo(f f32[n], i i32[n] in -2 to 2, l i64[n], u u8[n], b bool[n], d i32[n] distinct in 0 to 9, s i32[] and
// m f32[2, n]); n is 0 to 8.
void build_echo(MultiEntryPointExporter& exporter) {
  exporter.dynamic("n", 0, 8);
  auto& echo = exporter.method("echo");
  auto add = [&](const char* name, DType dtype, model::Shape shape, int min = 0, int max = 0,
                 bool distinct = false) {
    model::InputSpec spec;
    spec.name = name;
    spec.dtype = dtype;
    spec.shape = std::move(shape);
    if (max > min) spec.min_value = min, spec.max_value = max;
    spec.distinct = distinct;
    echo.output(std::string(name) + "_out", echo.input(spec));
  };
  add("f", DType::kF32, {"n"});
  add("i", DType::kI32, {"n"}, -2, 2);
  add("l", DType::kI64, {"n"});
  add("u", DType::kU8, {"n"});
  add("b", DType::kBool, {"n"});
  add("d", DType::kI32, {"n"}, 0, 9, true);
  add("s", DType::kI32, {});
  add("m", DType::kF32, {2, "n"});
}

class ValueTest : public testing::Test {
 protected:
  Result<Tensor> parse(const std::string& input, const std::string& text) {
    CallTarget target = target_.of("echo");
    for (const auto& spec : target.method.inputs)
      if (spec.name == input) return parse_value(target, spec, text);
    return failure(ErrorCode::kUsage, "no input {}", input);
  }
  template <class T>
  void expect_values(const std::string& input, const std::string& text, std::vector<T> values,
                     std::vector<int64_t> dims) {
    auto tensor = parse(input, text);
    ASSERT_TRUE(tensor) << tensor.error().message;
    auto got = tensor->values<T>();
    EXPECT_EQ(std::vector<T>(got.begin(), got.end()), values) << text;
    EXPECT_EQ(tensor->dims, dims) << text;
  }
  template <class T>
  void expect_row(const std::string& input, const std::string& text, std::vector<T> values) {
    auto size = static_cast<int64_t>(values.size());
    expect_values<T>(input, text, std::move(values), {size});
  }
  void expect_refused(const std::string& input, const std::string& text,
                      const std::vector<std::string>& parts, ErrorCode code = ErrorCode::kUsage) {
    auto all = parts;
    all.insert(all.begin(), "method echo: " + input + "=" + text.substr(0, 20));
    model::expect_error(parse(input, text), code, all);
  }

  TemporaryDirectory directory_;
  Target target_{build_echo};
};

TEST_F(ValueTest, LiteralsHaveTheInputsDtype) {
  expect_row<float>("f", "[1,2.5,-3e-2]", {1, 2.5F, -3e-2F});
  expect_row<int32_t>("i", " [ 1 , -2 ] ", {1, -2});
  expect_row<int32_t>("i", "[2.0]", {2});
  expect_row<int64_t>("l", "[9223372036854775807,-9223372036854775808]", {INT64_MAX, INT64_MIN});
  expect_row<uint8_t>("u", "[0,255]", {0, 255});
  expect_row<uint8_t>("b", "[true,false,1,0]", {1, 0, 1, 0});
  expect_row<float>("f", "[3.4028235e+38,-3.4028235e+38,1e-400]",
                    {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max(), 0});
  expect_row<float>("f", "[]", {});
  expect_values<int32_t>("s", "7", {7}, {});
  expect_values<float>("m", "[[1,2,3],[4,5,6]]", {1, 2, 3, 4, 5, 6}, {2, 3});
  expect_values<float>("m", "[[],[]]", {}, {2, 0});
  auto infinite = parse("f", "[inf,-inf,nan]");
  ASSERT_TRUE(infinite);
  EXPECT_EQ(infinite->values<float>()[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(infinite->values<float>()[2]));
}

TEST_F(ValueTest, NumbersThatDoNotFitTheDtypeAreRefused) {
  expect_refused("i", "[1,1.5]", {"1.5 does not fit i32"});
  expect_refused("i", "[2147483648]", {"2147483648 does not fit i32"});
  expect_refused("i", "[nan]", {"nan does not fit i32"});
  expect_refused("l", "[9223372036854775808]", {"does not fit i64"});
  expect_refused("u", "[256]", {"256 does not fit u8"});
  expect_refused("u", "[-1]", {"-1 does not fit u8"});
  expect_refused("b", "[2]", {"2 does not fit bool"});
  expect_refused("f", "[1e39]", {"1e39 does not fit f32"});
  expect_refused("f", "[1e400]", {"1e400 does not fit f32"});
  expect_refused("f", "[3.4028236e+38]", {"does not fit f32"});
  expect_refused("f", "[+-1]", {"\"+-1\" is no number"});
  expect_refused("f", "[16777217]", {"16777217 does not fit f32"});
}

TEST_F(ValueTest, MalformedLiteralsAreRefused) {
  expect_refused("f", "[1,2", {"a ] is missing"});
  expect_refused("f", "[1,,2]", {"a number is missing"});
  expect_refused("f", "[1,]", {"a number is missing"});
  expect_refused("f", "[1]]", {"behind its end"});
  expect_refused("f", "[1,x]", {"\"x\" is no number"});
  expect_refused("m", "[[1,2],[3]]", {"lists of 2 and of 1"});
  expect_refused("m", "[[1],2]", {"numbers stand beside lists"});
  expect_refused("m", "[1,[2]]", {"numbers stand beside lists"});
  expect_refused("m", "[[],1]", {"numbers stand beside lists"});
  expect_refused("f", std::string(5000, '['), {"nested more than 4 deep"});
}

TEST_F(ValueTest, ShapesThatTheInputCannotHaveAreRefused) {
  expect_refused("f", "7", {"its shape is []", "f32 [n] with n at most 8"});
  expect_refused("f", "[1,2,3,4,5,6,7,8,9]", {"its shape is [9]"});
  expect_refused("m", "[[1],[2],[3]]", {"its shape is [3, 1]", "f32 [2, n]"});
  expect_refused("f", "ones[9]", {"its shape is [9]"});
  expect_refused("f", "ones[9223372036854775807]", {"expected f32 [n]"});
  expect_refused("f", "ones[n]", {"\"n\" is no number"});
  expect_refused("f", "ones[,]", {"is no number"});
  expect_refused("f", "ones[-1]", {"is no number"});
  expect_refused("f", "ones", {"expected a shape"});
  expect_refused("f", "ones[3", {"expected a shape"});
  expect_refused("m", "ones[1,1,1,1,1]", {"more than 4 dimensions"});
}

TEST_F(ValueTest, GeneratorsSayWhatTheyGive) {
  expect_row<float>("f", "ones[3]", {1, 1, 1});
  expect_row<float>("f", "ones:f32[2]", {1, 1});
  expect_row<float>("f", "zeros[0]", {});
  expect_row<int64_t>("l", "range[4]", {0, 1, 2, 3});
  expect_row<uint8_t>("b", "range[3]", {0, 1, 0});
  expect_row<int32_t>("i", "range[5]", {0, 1, 2, 3, 4});  // beyond its bounds: for the call to refuse
  expect_values<float>("m", "range[2,2]", {0, 1, 2, 3}, {2, 2});
  expect_values<int32_t>("s", "ones[]", {1}, {});
  expect_refused("f", "ones:i32[2]", {"it is i32, expected f32 [n]"});
  expect_refused("f", "ones[2]@7", {"only rand has a seed"});
  expect_refused("f", "rand[2]@", {"a whole number"});
  expect_refused("f", "rand[2]@x", {"a whole number"});
}

TEST_F(ValueTest, RandomValuesAreTheDocumentedOnesAndKeepToBounds) {
  EXPECT_EQ(random_bits(0, 0), 0xe220a8397b1dcdafu);  // the reference implementation of splitmix64
  EXPECT_EQ(random_bits(0, 1), 0x6e789e6aa1b965f4u);
  auto f = parse("f", "rand[8]@7"), again = parse("f", "rand[8]@7"), other = parse("f", "rand[8]");
  ASSERT_TRUE(f && again && other);
  EXPECT_EQ(f->data, again->data);
  EXPECT_NE(f->data, other->data);
  EXPECT_EQ(f->values<float>()[0], static_cast<float>(random_bits(7, 0) >> 40) / 8388608.0F - 1);
  std::set<int32_t> seen;
  for (int seed = 0; seed < 40; ++seed) {
    auto bounded = parse("i", fmt::format("rand[8]@{}", seed)),
         distinct = parse("d", fmt::format("rand[8]@{}", seed));
    ASSERT_TRUE(bounded && distinct);
    for (int32_t value : integers(*bounded)) seen.insert(value);
    auto values = integers(*distinct);
    EXPECT_EQ(std::set<int32_t>(values.begin(), values.end()).size(), 8u);
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 0);
    EXPECT_LE(*std::max_element(values.begin(), values.end()), 9);
  }
  EXPECT_EQ(seen, (std::set<int32_t>{-2, -1, 0, 1, 2}));
}

TEST_F(ValueTest, RawFilesHaveTheSizeTheirShapeSays) {
  float values[] = {1, 2, 3};
  std::string path = directory_.write("a.bin", {reinterpret_cast<const char*>(values), sizeof values});
  expect_row<float>("f", path + ":f32[3]", {1, 2, 3});
  expect_row<int32_t>("i", path + ":i32[3]", {0x3f800000, 0x40000000, 0x40400000});
  expect_refused("f", path + ":f32[4]", {"has 12 bytes", "takes 16"}, ErrorCode::kBadInput);
  expect_refused("f", path + ":f32[2]", {"has 12 bytes", "takes 8"}, ErrorCode::kBadInput);
  expect_refused("f", path + ":f32", {"expected a shape"});
  expect_refused("f", path, {"needs its dtype and shape", ":f32[10,20]"});
  expect_refused("f", directory_.path() + "/none:f32[3]", {"No such file"}, ErrorCode::kIo);
  expect_refused("f", "/dev/zero:f32[3]", {"a device"}, ErrorCode::kIo);
  expect_refused("f", "keys.nyp", {"expected a literal"});
  expect_refused("f", "", {"expected a literal"});
}

TEST_F(ValueTest, ElementsOfFilesAreConvertedWhenTheyKeepTheirValue) {
  double numbers[] = {1, 2, -2};
  std::string path = directory_.write("a.bin", {reinterpret_cast<const char*>(numbers), sizeof numbers});
  expect_row<int32_t>("i", path + ":f64[3]", {1, 2, -2});
  expect_row<float>("f", path + ":f64[3]", {1, 2, -2});
  expect_refused("u", path + ":f64[3]", {"element 2 is -2. (f64), which does not fit u8"},
                 ErrorCode::kBadInput);
  std::string odd = directory_.write("b.bin", "\x01\x02");
  expect_refused("b", odd + ":bool[2]", {"element 1 is 2 (bool), which does not fit bool"},
                 ErrorCode::kBadInput);
}

TEST_F(ValueTest, AFileTooLargeForTheInputIsNotRead) {
  // A sparse file of 1 TiB, which its header describes rightly.
  std::string path = directory_.write(
      "large.npy", std::string("\x93NUMPY\x01\x00\x76\x00", 10) +
                       "{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }" +
                       std::string(49, ' ') + "\n");
  std::error_code problem;
  std::filesystem::resize_file(path, 128 + (uint64_t{1} << 40), problem);
  if (problem) GTEST_SKIP() << problem.message();
  expect_refused("f", path, {"its shape is [274877906944]", "n at most 8"});
}

}  // namespace
}  // namespace duet::runner
