// Drives the methods of an encoder-decoder program: slots, sources, prefill, greedy steps. One caller at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/error.h"
#include "model/session.h"

namespace duet::runner {

class EncoderDecoderRunner {
 public:
  // Errors: those of Session::create; kBadInput when the program has no such methods or its metadata lack an
  // id.
  static Result<EncoderDecoderRunner> create(std::shared_ptr<const model::Program> program,
                                             const model::SessionOptions& options);

  struct Row {
    int32_t slot;
    std::span<const int32_t> source;  // with the final </s>
    std::span<const int32_t> prefix;  // target tokens to begin with, usually none
    int32_t target_limit;             // most target tokens, prefix and final </s> included
  };
  struct Choice {
    int32_t token;
    float score;  // natural-log probability
    bool finished;
  };

  // Clears the rows' slots, encodes their sources, fills their caches and chooses each first token.
  // The result is valid until the next call. Allocates nothing, as long as it is within the session's limits.
  // Errors: kUsage; kExhausted when the cache has too few free blocks.
  Result<std::span<const Choice>> prefill(std::span<const Row> rows);
  // One step for each of these slots. Allocates nothing.
  Result<std::span<const Choice>> decode(std::span<const int32_t> slots);
  // Ends slots and gives back their cache blocks; finished ones have done so by themselves.
  Status release(std::span<const int32_t> slots);

  int64_t slots() const { return slots_; }
  int64_t max_source_tokens() const { return max_source_tokens_; }
  int64_t max_target_tokens() const { return max_target_tokens_; }
  int64_t batch_tokens() const { return batch_tokens_; }
  int64_t cache_blocks() const { return cache_blocks_; }
  int64_t free_blocks();

  int32_t start_token() const { return start_token_; }
  int32_t end_token() const { return end_token_; }
  model::Session& session() { return *session_; }
  const model::Program& program() const { return session_->program(); }

 private:
  explicit EncoderDecoderRunner(std::unique_ptr<model::Session> session);
  Status check_program();
  void reserve_inputs();
  Result<std::span<const Choice>> collect(Result<std::span<const model::TensorView>> outputs);

  std::unique_ptr<model::Session> session_;
  int prefill_method_ = -1, decode_method_ = -1, release_method_ = -1;
  int32_t start_token_ = 0, end_token_ = 0;
  int64_t slots_ = 0, max_source_tokens_ = 0, max_target_tokens_ = 0, batch_tokens_ = 0, cache_blocks_ = 0;
  model::TensorView pool_state_;  // i32[2]: blocks given back, first block never used
  // Inputs of the next call.
  std::vector<int32_t> source_tokens_, source_lengths_, row_slots_, prompt_tokens_, prompt_lengths_, limits_;
  std::vector<Choice> choices_;
};

}  // namespace duet::runner
