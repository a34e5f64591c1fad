// Continuous batching: requests wait in a queue, enter slots as these become free while the other slots go
// on, and leave with their tokens as soon as they have finished.
//
//  - A request is admitted when a slot is free and its blocks, as far as they can be foreseen, fit beside
//  those foreseen
//    for the requests that are decoding. The oldest one always fits: the pool holds any single request.
//  - When the pool runs dry nevertheless, the youngest request is restarted later; greedy decoding gives it
//  the same
//    tokens again, so this cannot be seen in the output.
//  - What a request gets does not depend on what it shared a batch with (invariant 1 of the kernels).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "runner/encoder_decoder_runner.h"

namespace duet::runner {

struct Request {
  uint64_t id = 0;              // the caller's
  std::vector<int32_t> source;  // with the final </s>
  std::vector<int32_t> prefix;  // target tokens to begin with
  int32_t target_limit = 0;     // most target tokens; 0: the session's limit
};

struct Hypothesis {
  std::vector<int32_t> tokens;  // without the start token, with the final </s> if it came
  std::vector<float> scores;    // natural-log probability of each token behind the prefix
  bool cut = false;             // the limit was reached
};

struct SchedulerCounts {
  uint64_t prefill_calls = 0, decode_calls = 0;
  uint64_t source_tokens = 0;  // encoded, restarts included
  uint64_t target_tokens = 0;  // chosen, restarts included
  uint64_t restarts = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

class Scheduler {
 public:
  // Takes over all slots of the runner and ends what they still decode.
  explicit Scheduler(EncoderDecoderRunner& runner);

  // Errors: kUsage when the request is larger than the session's limits.
  Status submit(Request request);
  bool idle() const { return waiting_.empty() && active_.empty(); }
  size_t waiting() const { return waiting_.size(); }
  size_t active() const { return active_.size(); }

  using Finished = std::function<Status(uint64_t id, Hypothesis hypothesis)>;
  // After every step, for each request that decoded: its newest token. For streaming.
  struct Progress {
    uint64_t id;
    int32_t slot;
    int32_t token;
    bool finished;
  };
  using Stepped = std::function<Status(std::span<const Progress>)>;

  // Admits what fits, then one decode step; finished requests are handed over. Errors: the runner's and the
  // callbacks'; after one, only a new scheduler over the same runner goes on. REQUIRES: !idle(), no error so
  // far.
  Status step(const Finished& finished, const Stepped& stepped = nullptr);

  const SchedulerCounts& counts() const { return counts_; }
  // Goes on counting where an earlier scheduler of the runner stopped.
  void start_from(const SchedulerCounts& counts) { counts_ = counts; }

 private:
  struct Active {
    Request request;
    Hypothesis hypothesis;
    int32_t slot;
    int64_t foreseen_blocks;
  };
  struct Waiting {
    Request request;
    int64_t least_target;  // tokens that an earlier attempt had reached
  };

  int64_t foresee_blocks(const Waiting& waiting) const;
  Status admit(const Finished& finished);
  Status decode(const Finished& finished);
  Status make_room();
  // Takes one row's choice over; true when the request has finished.
  bool take(Active& active, const EncoderDecoderRunner::Choice& choice);
  Status finish(size_t first_of_active, const Finished& finished);

  EncoderDecoderRunner& runner_;
  std::deque<Waiting> waiting_;
  std::vector<Active> active_;  // oldest first
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> step_slots_;
  std::vector<EncoderDecoderRunner::Row> rows_;
  std::vector<Progress> progress_;
  SchedulerCounts counts_;
};

}  // namespace duet::runner
