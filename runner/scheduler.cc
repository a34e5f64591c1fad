#include "runner/scheduler.h"

#include <algorithm>
#include <chrono>

#include "model/cache_layout.h"
#include "runner/elapsed.h"

namespace duet::runner {

Scheduler::Scheduler(EncoderDecoderRunner& runner) : runner_(runner) {
  auto slots = static_cast<size_t>(runner.slots());
  for (size_t i = slots; i-- > 0;) free_slots_.push_back(static_cast<int32_t>(i));
  (void)runner_.release(
      free_slots_);  // of a scheduler that an error ended: cannot fail, every slot is named once
  active_.reserve(slots);
  step_slots_.reserve(slots);
  progress_.reserve(slots);
}

Status Scheduler::submit(Request request) {
  auto source = static_cast<int64_t>(request.source.size());
  if (source < 1 || source > runner_.max_source_tokens())
    return failure(ErrorCode::kUsage, "{} source tokens, expected 1 to {} (--max-source-tokens)", source,
                   runner_.max_source_tokens());
  if (request.target_limit == 0) request.target_limit = static_cast<int32_t>(runner_.max_target_tokens());
  if (request.target_limit < 1 || request.target_limit > runner_.max_target_tokens())
    return failure(ErrorCode::kUsage, "a limit of {} target tokens, expected 1 to {} (--max-target-tokens)",
                   request.target_limit, runner_.max_target_tokens());
  if (static_cast<int64_t>(request.prefix.size()) >= request.target_limit)
    return failure(ErrorCode::kUsage, "a prefix of {} tokens leaves no room below the limit of {}",
                   request.prefix.size(), request.target_limit);
  waiting_.push_back({std::move(request), 0});
  return {};
}

// Translations are about as long as their sources; a restarted request has shown how long it is at least.
int64_t Scheduler::foresee_blocks(const Waiting& waiting) const {
  auto source = static_cast<int64_t>(waiting.request.source.size());
  int64_t target =
      std::max(source + source / 4 + model::kBlockTokens, waiting.least_target + model::kBlockTokens);
  target = std::clamp(target, static_cast<int64_t>(waiting.request.prefix.size()) + 1,
                      static_cast<int64_t>(waiting.request.target_limit));
  return model::blocks_of(source) + model::blocks_of(target);
}

bool Scheduler::take(Active& active, const EncoderDecoderRunner::Choice& choice) {
  active.hypothesis.tokens.push_back(choice.token);
  active.hypothesis.scores.push_back(choice.score);
  active.hypothesis.cut =
      choice.finished && static_cast<int32_t>(active.hypothesis.tokens.size()) >= active.request.target_limit;
  progress_.push_back({active.request.id, active.slot, choice.token, choice.finished});
  ++counts_.target_tokens;
  return choice.finished;
}

// Hands over and removes the requests among active_[first..] whose newest progress says that they have
// finished.
Status Scheduler::finish(size_t first, const Finished& finished) {
  size_t kept = first, entry = progress_.size() - (active_.size() - first);
  for (size_t i = first; i < active_.size(); ++i, ++entry) {
    if (progress_[entry].finished) {
      free_slots_.push_back(active_[i].slot);
      DUET_TRY(finished(active_[i].request.id, std::move(active_[i].hypothesis)));
    } else {
      if (kept != i) active_[kept] = std::move(active_[i]);
      ++kept;
    }
  }
  active_.resize(kept);
  return {};
}

Status Scheduler::admit(const Finished& finished) {
  // A few free slots are not worth a call of their own while others decode.
  size_t worthwhile = active_.empty() ? 1 : std::max<size_t>(1, static_cast<size_t>(runner_.slots()) / 8);
  if (waiting_.empty() || free_slots_.size() < std::min(worthwhile, waiting_.size())) return {};
  int64_t foreseen = 0, tokens = 0, prompt = 0;
  for (const Active& active : active_)
    foreseen += std::max(active.foreseen_blocks,
                         model::blocks_of(static_cast<int64_t>(active.request.source.size())) +
                             model::blocks_of(static_cast<int64_t>(active.hypothesis.tokens.size()) + 1));
  size_t first = active_.size();
  while (!waiting_.empty() && !free_slots_.empty()) {
    Waiting& next = waiting_.front();
    auto source = static_cast<int64_t>(next.request.source.size());
    auto prefix = static_cast<int64_t>(next.request.prefix.size()) + 1;
    int64_t blocks = foresee_blocks(next);
    if (tokens + source > runner_.batch_tokens() || prompt + prefix > runner_.batch_tokens()) break;
    if (!active_.empty() && foreseen + blocks > runner_.cache_blocks()) break;
    tokens += source;
    prompt += prefix;
    foreseen += blocks;
    Hypothesis begun;
    begun.tokens = next.request.prefix;
    active_.push_back({std::move(next.request), std::move(begun), free_slots_.back(), blocks});
    free_slots_.pop_back();
    waiting_.pop_front();
  }
  if (active_.size() == first) return {};
  rows_.clear();
  for (size_t i = first; i < active_.size(); ++i)
    rows_.push_back({active_[i].slot, active_[i].request.source, active_[i].request.prefix,
                     active_[i].request.target_limit});
  auto start = std::chrono::steady_clock::now();
  DUET_ASSIGN(auto choices, runner_.prefill(rows_));
  counts_.prefill_seconds += seconds_since(start);
  ++counts_.prefill_calls;
  counts_.source_tokens += static_cast<uint64_t>(tokens);
  for (size_t i = first; i < active_.size(); ++i) take(active_[i], choices[i - first]);
  return finish(first, finished);
}

// Restarts the youngest requests until the next step's blocks are free.
Status Scheduler::make_room() {
  while (active_.size() > 1) {
    int64_t needed = 0;
    for (const Active& active : active_)
      needed += static_cast<int64_t>(active.hypothesis.tokens.size()) % model::kBlockTokens == 0;
    if (needed <= runner_.free_blocks()) return {};
    Active& youngest = active_.back();
    DUET_TRY(runner_.release({&youngest.slot, 1}));
    free_slots_.push_back(youngest.slot);
    waiting_.push_front(
        {std::move(youngest.request), static_cast<int64_t>(youngest.hypothesis.tokens.size())});
    active_.pop_back();
    ++counts_.restarts;
  }
  return {};
}

Status Scheduler::decode(const Finished& finished) {
  DUET_TRY(make_room());
  step_slots_.clear();
  for (const Active& active : active_) step_slots_.push_back(active.slot);
  auto start = std::chrono::steady_clock::now();
  DUET_ASSIGN(auto choices, runner_.decode(step_slots_));
  counts_.decode_seconds += seconds_since(start);
  ++counts_.decode_calls;
  for (size_t i = 0; i < active_.size(); ++i) take(active_[i], choices[i]);
  return finish(0, finished);
}

Status Scheduler::step(const Finished& finished, const Stepped& stepped) {
  progress_.clear();
  DUET_TRY(admit(finished));
  if (stepped && !progress_.empty()) DUET_TRY(stepped(progress_));
  if (active_.empty()) return {};
  progress_.clear();
  DUET_TRY(decode(finished));
  if (stepped) DUET_TRY(stepped(progress_));
  return {};
}

}  // namespace duet::runner
