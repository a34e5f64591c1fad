#include "runner/call_values.h"

#include <gtest/gtest.h>

#include <numeric>
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

}  // namespace
}  // namespace duet::runner
