// Duet's numbers beside those of the reference implementation, on every model and every golden sentence.
#include "tests/runner/golden.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runner/encoder_decoder_runner.h"
#include "runner/scheduler.h"

namespace duet::runner {
namespace {

constexpr double kTolerance = 1e-4;  // of the logits and of every layer's output
constexpr double kUndecided =
    1e-4;  // where the reference's own two best logits are this close, either may win

class GoldenTest : public testing::TestWithParam<std::string> {};

model::SessionOptions options_for(int slots, int threads) {
  model::SessionOptions options;
  options.threads = threads;
  options.limits = {{"slots", slots}};
  return options;
}

// The largest absolute difference; infinity when the sizes or a NaN differ.
double difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = std::isnan(d) ? INFINITY : d;
  }
  return most;
}

TEST_P(GoldenTest, EveryLayerOfTheReferencePathGivesTheReferencesOutput) {
  auto program = golden::program(GetParam(), true);
  for (const auto& layer_case : golden::layer_cases(GetParam())) {
    auto runner = EncoderDecoderRunner::create(program, options_for(1, 1));
    ASSERT_TRUE(runner) << runner.error().message;
    std::set<std::string> compared;
    double worst = 0;
    std::string in_encoder_attention;
    runner->session().use_reference(
        [&](const std::string& name, std::span<const int64_t>, std::span<const float> data) {
          // The reference's modules that have no operator of their own share the output of their last one.
          std::vector<std::string> names = {name};
          if (name.ends_with(".self_attn.out_proj") || name.ends_with(".encoder_attn.out_proj"))
            names.push_back(name.substr(0, name.size() - 9));
          if (name.ends_with(".final_layer_norm")) names.push_back(name.substr(0, name.size() - 17));
          for (const std::string& each : names) {
            auto expected = layer_case.outputs.find(each);
            // lm_head and logits come for the last row only here; the next test has them for all.
            if (expected == layer_case.outputs.end() || each == "logits" || each == "lm_head") continue;
            double d = difference(data, expected->second.data);
            EXPECT_LE(d, kTolerance) << each;
            worst = std::max(worst, d);
            compared.insert(each);
          }
        });
    EncoderDecoderRunner::Row row{0, layer_case.source_ids, std::span(layer_case.decoder_ids).subspan(1), 48};
    auto choices = runner->prefill({&row, 1});
    ASSERT_TRUE(choices) << choices.error().message;
    for (const auto& [name, values] : layer_case.outputs)
      if (name != "logits" && name != "lm_head" && name != "model.encoder" && name != "model.decoder" &&
          name != "model") {
        EXPECT_TRUE(compared.count(name)) << name << " was not compared";
      }
    RecordProperty("worst", std::to_string(worst));
  }
}

TEST_P(GoldenTest, FastLogitsOfTheFirstStepsAreTheReferences) {
  auto program = golden::program(GetParam(), true);
  double worst = 0;
  for (const auto& layer_case : golden::layer_cases(GetParam())) {
    auto runner = EncoderDecoderRunner::create(program, options_for(1, 2));
    ASSERT_TRUE(runner) << runner.error().message;
    const auto& expected = layer_case.outputs.at("logits");
    auto vocabulary = static_cast<size_t>(expected.dims.back());
    for (size_t step = 1; step <= layer_case.decoder_ids.size(); ++step) {
      EncoderDecoderRunner::Row row{0, layer_case.source_ids,
                                    std::span(layer_case.decoder_ids).subspan(1, step - 1), 48};
      ASSERT_TRUE(runner->prefill({&row, 1}));
      // Outputs stay valid until the next call.
      auto logits = runner->session().outputs(runner->session().find_method("reset_encode_prefill"))[3];
      double d = difference({logits.as<float>(), vocabulary},
                            std::span(expected.data).subspan((step - 1) * vocabulary, vocabulary));
      EXPECT_LE(d, kTolerance) << "step " << step;
      worst = std::max(worst, d);
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(GoldenTest, GreedyDecodingGivesTheReferencesTokensAndProbabilities) {
  auto sentences = golden::sentences(GetParam());
  auto runner = EncoderDecoderRunner::create(golden::program(GetParam()), options_for(16, 2));
  ASSERT_TRUE(runner) << runner.error().message;
  Scheduler scheduler(*runner);
  for (size_t i = 0; i < sentences.size(); ++i)
    ASSERT_TRUE(scheduler.submit({i, sentences[i].source_ids, {}, golden::target_limit(GetParam())}));
  size_t seen = 0, undecided = 0;
  double worst = 0;
  while (!scheduler.idle()) {
    auto status = scheduler.step([&](uint64_t id, Hypothesis hypothesis) -> Status {
      ++seen;
      const auto& expected = sentences[id];
      if (hypothesis.tokens != expected.target_ids) {
        EXPECT_LT(expected.min_top2_gap, kUndecided) << expected.source;
        ++undecided;
        return {};
      }
      EXPECT_EQ(hypothesis.cut, expected.cut_at_limit) << expected.source;
      for (size_t t = 0; t < hypothesis.scores.size(); ++t) {
        double d = std::abs(static_cast<double>(hypothesis.scores[t]) - expected.token_logprobs[t]);
        EXPECT_LE(d, kTolerance) << expected.source << " token " << t;
        worst = std::max(worst, d);
      }
      return {};
    });
    ASSERT_TRUE(status) << status.error().message;
  }
  EXPECT_EQ(seen, sentences.size());
  RecordProperty("undecided", static_cast<int>(undecided));
  RecordProperty("worst", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::ValuesIn(golden::kModels), [](const auto& model) {
  std::string name = model.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace duet::runner
