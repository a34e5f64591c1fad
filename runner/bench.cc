#include "runner/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "model/marian_builder.h"
#include "runner/elapsed.h"
#include "runner/line_input.h"
#include "runner/translator.h"

namespace duet::runner {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostLatencyLines = 200;  // of a long text: enough for the 95th percentile

Spread spread_map(const std::vector<double>& values, auto&& function) {
  std::vector<double> mapped;
  for (double value : values) mapped.push_back(function(value));
  return spread_of(std::move(mapped));
}

Status stop_if_interrupted() {
  if (interrupted()) return failure(ErrorCode::kInterrupted, "");
  return {};
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  double median = values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

double percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

// One translation of the text, some times over.
struct Bench::Round {
  double seconds = 0, decode_seconds = 0;
  uint64_t decode_calls = 0, decoded_tokens = 0;
  TextCounts counts;
};

void Agreement::add(size_t line, int64_t slots, const std::string& translation) {
  auto [found, is_first] = first_.try_emplace(line, slots, translation);
  if (is_first || found->second.second == translation) return;
  bool known = std::any_of(differences_.begin(), differences_.end(),
                           [&](const Difference& d) { return d.line == line + 1; });
  if (!known)
    differences_.push_back({line + 1, found->second.first, slots, found->second.second, translation});
}

Result<Bench::Round> Bench::translate_text(Translator& translator, int rounds) {
  Round round;
  const SchedulerCounts before = translator.counts();
  const size_t lines = options_.lines.size(), all = lines * static_cast<size_t>(rounds);
  const size_t window = static_cast<size_t>(translator.runner().slots()) * 4 + 16;  // as in `duet translate`
  uint64_t prefilled = 0;
  size_t submitted = 0, received = 0;
  auto take = [&](Line&& line) -> Status {
    agreement_.add(received++ % lines, translator.runner().slots(), line.translation);
    round.counts.sentences += line.segments.size();
    for (const Segment& segment : line.segments) {
      round.counts.source_tokens += segment.source_ids.size();
      round.counts.target_tokens += segment.target_ids.size();
      prefilled += !segment.target_ids.empty();
    }
    return {};
  };
  auto start = Clock::now();
  while (received < all) {
    while (submitted < all && translator.lines_in_flight() < window)
      DUET_TRY(translator.submit(options_.lines[submitted++ % lines]));
    DUET_TRY(translator.step(take));
    DUET_TRY(stop_if_interrupted());
  }
  round.seconds = seconds_since(start);
  const SchedulerCounts& after = translator.counts();
  round.decode_seconds = after.decode_seconds - before.decode_seconds;
  round.decode_calls = after.decode_calls - before.decode_calls;
  // Each admission chooses its first token in the prefill, restarts too.
  round.decoded_tokens =
      after.target_tokens - before.target_tokens - prefilled - (after.restarts - before.restarts);
  return round;
}

Result<Translator> Bench::open_session(int64_t slots) {
  if (!program_) {
    DUET_ASSIGN(program_, model::Program::open(path_, options_.load));
  }
  TranslatorOptions translator_options;
  translator_options.session = options_.session;
  translator_options.session.limits[model::kSlots] = slots;
  return Translator::create(program_, translator_options);
}

Result<Throughput> Bench::throughput(int64_t slots) {
  DUET_ASSIGN(auto translator, open_session(slots));
  DUET_ASSIGN(Round warm_up, translate_text(translator, 1));
  text_ = warm_up.counts;
  // Enough text for the time asked for, by a second, warm run of it, and enough to fill the slots some times.
  DUET_ASSIGN(Round warm, translate_text(translator, 1));
  double by_time = std::ceil(options_.seconds / std::max(warm.seconds, 1e-6));
  double by_slots = std::ceil(4.0 * static_cast<double>(slots) / static_cast<double>(options_.lines.size()));
  int rounds = static_cast<int>(std::clamp(std::max(by_time, by_slots), 1.0, 1e6));

  Throughput result;
  result.slots = slots;
  result.rounds = rounds;
  const model::MemoryPlan& plan = translator.runner().session().plan();
  result.planned_bytes = plan.total_bytes();
  const auto& symbols = program_->definition().symbols;
  for (size_t i = 0; i < symbols.size(); ++i)
    if (symbols[i].kind == model::Symbol::Kind::kLimit) result.limits[symbols[i].name] = plan.symbols[i];
  std::vector<double> seconds, step_ms;
  uint64_t steps = 0, decoded = 0;
  for (int i = 0; i < options_.repeat; ++i) {
    DUET_ASSIGN(Round round, translate_text(translator, rounds));
    seconds.push_back(round.seconds);
    if (round.decode_calls > 0)
      step_ms.push_back(round.decode_seconds * 1e3 / static_cast<double>(round.decode_calls));
    steps += round.decode_calls;
    decoded += round.decoded_tokens;
  }
  auto rate = [&](uint64_t count) {
    return spread_map(seconds, [&](double s) { return static_cast<double>(count) * rounds / s; });
  };
  result.target_tokens_per_second = rate(text_.target_tokens);
  result.source_tokens_per_second = rate(text_.source_tokens);
  result.sentences_per_second = rate(text_.sentences);
  result.decode_step_ms = spread_of(std::move(step_ms));
  result.slots_in_use = steps > 0 ? static_cast<double>(decoded) / static_cast<double>(steps) : 0;
  result.seconds = spread_of(std::move(seconds));
  return result;
}

Result<Spread> Bench::first_token_ms() {
  std::vector<double> times;
  for (int i = 0; i < options_.repeat; ++i) {
    DUET_TRY(stop_if_interrupted());
    double first_token = -1;
    auto start = Clock::now();
    TranslatorOptions translator_options;
    translator_options.session = options_.session;
    translator_options.load = options_.load;
    DUET_ASSIGN(auto translator, Translator::open(path_, translator_options));
    translator.observe_tokens([&](std::span<const Scheduler::Progress>) -> Status {
      if (first_token < 0) first_token = seconds_since(start) * 1e3;
      return {};
    });
    // The first line that has anything to translate.
    for (const std::string& line : options_.lines) {
      DUET_TRY(translator.submit(line));
      while (!translator.idle() && first_token < 0)
        DUET_TRY(translator.step([](Line&&) -> Status { return {}; }));
      if (first_token >= 0) break;
    }
    if (first_token >= 0) times.push_back(first_token);
  }
  return spread_of(std::move(times));
}

Result<Latency> Bench::latency() {
  DUET_ASSIGN(auto translator, open_session(1));
  size_t lines = std::min(options_.lines.size(), kMostLatencyLines);
  std::vector<double> times;
  for (int i = -1; i < options_.repeat; ++i) {  // -1: the warm-up
    for (size_t line = 0; line < lines; ++line) {
      auto start = Clock::now();
      DUET_TRY(translator.submit(options_.lines[line]));
      while (!translator.idle())
        DUET_TRY(translator.step([&](Line&& done) -> Status {
          if (i >= 0) times.push_back(seconds_since(start) * 1e3);
          agreement_.add(line, 1, done.translation);
          return {};
        }));
      DUET_TRY(stop_if_interrupted());
    }
  }
  Latency result;
  result.sentences = times.size();
  result.ms = spread_of(times);
  result.p50_ms = percentile(times, 0.50);
  result.p95_ms = percentile(std::move(times), 0.95);
  return result;
}

}  // namespace duet::runner
