// Measures greedy translation by a program on this machine. What is counted:
//  - Throughput, at each number of slots: a new session over the one program; a warm-up; then measurements
//  that each
//    translate the whole text, again and again until they are long enough, text to text: splitting into
//    tokens, encoder, decoder, joining. Tokens include the final </s> of every sentence; nothing decoded
//    twice counts twice.
//  - A decode step: the time in `decode` calls divided by their number. One step gives a token to every slot
//  in use.
//  - Load to first token: opening the file, tokenizer and session, then one sentence up to its first target
//  token, in a
//    process that has run before: the file is in the page cache.
//  - Latency: one sentence alone, text to text, in a session of one slot.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "memory/error.h"
#include "model/session.h"

namespace duet::runner {

class Translator;

struct BenchOptions {
  std::vector<std::string> lines;  // none blank
  std::vector<int64_t> slots;
  model::SessionOptions session;  // its limit of slots serves load to first token only
  model::LoadMode load = model::LoadMode::kMmap;
  int repeat = 5;      // measurements of each kind
  double seconds = 1;  // what a measurement of throughput should last at least: how often the text is
                       // translated in it is decided beforehand, from one warm run
};

// Median, least and most of the measurements.
struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread_of(std::vector<double> values);
// The smallest value that at least `fraction` of the values do not exceed (nearest rank). REQUIRES: not
// empty.
double percentile(std::vector<double> values, double fraction);

struct Throughput {
  int64_t slots = 0;
  model::Limits limits;  // all of the session
  uint64_t planned_bytes = 0;
  int rounds = 0;  // times that a measurement translates the text
  Spread target_tokens_per_second, source_tokens_per_second, sentences_per_second;
  Spread decode_step_ms;
  double slots_in_use = 0;  // mean over all decode steps
  Spread seconds;           // of a measurement
};

struct Latency {
  double p50_ms = 0, p95_ms = 0;
  Spread ms;
  size_t sentences = 0;  // measured
};

// Two translations of one line that differ: must not happen.
struct Difference {
  size_t line = 0;  // from 1
  int64_t slots = 0, other_slots = 0;
  std::string translation, other;
};

// Remembers each line's first translation and what differs from it.
class Agreement {
 public:
  // `line` counts from 0.
  void add(size_t line, int64_t slots, const std::string& translation);
  // At most one per line.
  const std::vector<Difference>& differences() const { return differences_; }

 private:
  std::map<size_t, std::pair<int64_t, std::string>> first_;
  std::vector<Difference> differences_;
};

class Bench {
 public:
  // REQUIRES: lines and slots are not empty. Errors: kUsage for limits that the program does not allow.
  Bench(std::string program_path, BenchOptions options)
      : path_(std::move(program_path)), options_(std::move(options)) {}

  // Each may fail with the errors of Translator::open and kInterrupted.
  Result<Throughput> throughput(int64_t slots);
  Result<Spread> first_token_ms();
  Result<Latency> latency();

  // Of the whole text, once; known after the first throughput().
  struct TextCounts {
    uint64_t sentences = 0, source_tokens = 0, target_tokens = 0;
  };
  const TextCounts& text_counts() const { return text_; }
  // What differed between any two runs so far.
  const std::vector<Difference>& differences() const { return agreement_.differences(); }

 private:
  struct Round;
  Result<Round> translate_text(Translator& translator, int rounds);
  Result<Translator> open_session(int64_t slots);

  const std::string path_;
  const BenchOptions options_;
  std::shared_ptr<const model::Program> program_;
  TextCounts text_;
  Agreement agreement_;
};

}  // namespace duet::runner
