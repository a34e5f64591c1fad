// What the tests of decoding share: sessions under given limits, sentences decoded alone, and comparison bit
// for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "memory/log.h"
#include "model/kernels/kernels.h"
#include "model/marian_builder.h"
#include "runner/encoder_decoder_runner.h"
#include "runner/scheduler.h"
#include "tests/runner/golden.h"

namespace duet::runner {

inline const bool kQuiet = (memory::set_log_level(memory::LogLevel::kOff), true);

// The runner of a golden model's program; the test process ends when there is none.
inline EncoderDecoderRunner make_runner(const std::string& model, model::Limits limits, int threads = 1) {
  model::SessionOptions options;
  options.limits = std::move(limits);
  options.threads = threads;
  auto runner = EncoderDecoderRunner::create(golden::program(model), options);
  if (!runner) {
    std::fprintf(stderr, "%s\n", runner.error().message.c_str());
    std::abort();
  }
  return std::move(*runner);
}

// Tokens and scores of one source, decoded in `slot` while nothing else is: no scheduler, a batch of one.
inline Hypothesis decode_alone(EncoderDecoderRunner& runner, std::span<const int32_t> source, int32_t limit,
                               std::span<const int32_t> prefix = {}, int32_t slot = 0) {
  Hypothesis result;
  result.tokens.assign(prefix.begin(), prefix.end());
  EncoderDecoderRunner::Row row{slot, source, prefix, limit};
  auto choices = runner.prefill({&row, 1});
  while (choices) {
    result.tokens.push_back((*choices)[0].token);
    result.scores.push_back((*choices)[0].score);
    if ((*choices)[0].finished) return result;
    choices = runner.decode({&slot, 1});
  }
  ADD_FAILURE() << choices.error().message;
  return result;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

inline testing::AssertionResult same_bits(const Hypothesis& a, const Hypothesis& b) {
  for (size_t i = 0; i < std::max(a.tokens.size(), b.tokens.size()); ++i)
    if (i >= a.tokens.size() || i >= b.tokens.size() || a.tokens[i] != b.tokens[i])
      return testing::AssertionFailure() << "tokens differ from " << i << " on (" << a.tokens.size()
                                         << " and " << b.tokens.size() << " tokens)";
  if (a.scores.size() != b.scores.size()) return testing::AssertionFailure() << "numbers of scores differ";
  for (size_t i = 0; i < a.scores.size(); ++i)
    if (!same_bits({&a.scores[i], 1}, {&b.scores[i], 1}))
      return testing::AssertionFailure() << "score " << i << ": " << a.scores[i] << " and " << b.scores[i];
  return testing::AssertionSuccess();
}

// A source of random tokens with the final </s>; ids that any vocabulary has.
inline std::vector<int32_t> random_source(const EncoderDecoderRunner& runner, size_t tokens,
                                          std::mt19937& random) {
  const auto& metadata = runner.program().definition().metadata;
  auto vocabulary =
      std::min(metadata["source_vocabulary"].get<uint32_t>(), metadata["target_vocabulary"].get<uint32_t>());
  std::vector<int32_t> source;
  while (source.size() + 1 < tokens) source.push_back(static_cast<int32_t>(3 + random() % (vocabulary - 4)));
  source.push_back(runner.end_token());
  return source;
}

// Random short sources with prefixes of 31 tokens: one block for the source and two for the target are
// foreseen for each, and each needs a fourth.
inline std::vector<Request> requests_longer_than_foreseen(EncoderDecoderRunner& runner) {
  constexpr size_t kRequests = 8;
  std::vector<Request> requests;
  std::mt19937 random(1);
  for (int attempt = 0; attempt < 500 && requests.size() < kRequests; ++attempt) {
    Request request{requests.size(), random_source(runner, 1 + random() % 4, random),
                    random_source(runner, 32, random), 48};
    request.prefix.pop_back();
    if (decode_alone(runner, request.source, 48, request.prefix).tokens.size() > 32)
      requests.push_back(std::move(request));
  }
  EXPECT_EQ(requests.size(), kRequests) << "too few random requests go on for long";
  return requests;
}

// Puts the kernels back that were in use before.
class KernelsInUse {
 public:
  KernelsInUse() : before_(model::kernels::kernels()) {}
  ~KernelsInUse() { model::kernels::force_kernels(before_); }

 private:
  const model::kernels::KernelTable& before_;
};

inline std::string test_name(const testing::TestParamInfo<std::string>& model) {
  std::string name = model.param;
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

}  // namespace duet::runner
