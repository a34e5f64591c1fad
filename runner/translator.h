// Text in, text out: lines are split into segments, segments into tokens, tokens translated by the scheduler,
// and the translations put together again, line by line in the order of the input.
//
//  - Every line gives one translated line. A line without anything to translate comes back as it is.
//  - A line's segments cover it: their sources joined give the line. White space between them is kept; in
//  line mode what
//    stands before and behind the text goes, as in the reference, except a carriage return at the end.
//  - No text is dropped in silence: what was cut, replaced or unknown to the model stands in the line's
//  warnings.
// One caller at a time, and a second thread's call is refused with kUsage; only cancel() may come from any
// thread. Several translators may share a program.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "runner/encoder_decoder_runner.h"
#include "runner/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace duet::runner {

enum class Split { kLine, kSentence };

struct TranslatorOptions {
  model::SessionOptions session;
  Split split = Split::kLine;
  model::LoadMode load = model::LoadMode::kMmap;  // open() only
};

struct Warning {
  enum class Kind { kInvalidUtf8, kLanguageToken, kSourceCut, kTargetCut, kEmpty, kUnknown } kind;
  std::string text;
};

struct Segment {
  std::string source;       // as in the line, white space included
  std::string translation;  // of the tokenizer, stripped
  std::vector<int32_t> source_ids, target_ids;
  std::vector<float> token_scores;  // natural-log probabilities
  double score = 0;                 // their sum
  bool cut = false;                 // the limit of target tokens was reached
  bool done = false;
};

struct Line {
  uint64_t number = 0;  // from 1
  std::string source;   // valid UTF-8, without its line feed
  std::string translation;
  std::vector<Warning> warnings;
  std::vector<Segment> segments;
};

struct TranslatorTimes {
  double load_seconds = 0;      // program, session and tokenizer
  double tokenize_seconds = 0;  // splitting, encoding and decoding of text
  double encode_seconds = 0;    // encoder and cross-attention caches
  double prefill_seconds = 0;   // first decoder step of each segment
  double decode_seconds = 0;    // all other decoder steps
};

class Translator {
 public:
  // Errors: those of Program::open, EncoderDecoderRunner::create and Tokenizer::create.
  static Result<Translator> open(const std::string& program_path, const TranslatorOptions& options);
  static Result<Translator> create(std::shared_ptr<const model::Program> program,
                                   const TranslatorOptions& options);

  // One text at once, whatever its lines.
  Result<std::string> translate(std::string_view text);

  // The next line of the input, without its line feed; any bytes. A line that fails is not in flight; others
  // are.
  Status submit(std::string line);
  size_t lines_in_flight() const { return lines_.size(); }
  size_t segments_in_flight() const { return scheduler_->waiting() + scheduler_->active(); }
  size_t bytes_in_flight() const { return bytes_; }  // of their sources
  // Nothing is left to be computed or handed over.
  bool idle() const { return lines_.empty(); }

  using LineDone = std::function<Status(Line&&)>;
  // Computes one step and hands over the lines that are ready and have no unfinished line before them.
  Status step(const LineDone& done);

  // From any thread: the call of step() or translate() that runs, or else the next one, ends with
  // kInterrupted within the time of one method call. What was in flight is given up; lines handed over before
  // are whole, and new ones may be submitted.
  void cancel() { shared_->cancelled.store(true, std::memory_order_relaxed); }

  // For streaming: keeps the tokens of unfinished segments from now on.
  void stream() { streaming_ = true; }
  // What there is of the first unfinished line's translation; may be less than before when a request was
  // restarted.
  Result<std::string> text_so_far() const;

  // Segments submitted so far: their requests are numbered from 0.
  uint64_t requests() const { return requests_; }
  // Told every step's new tokens, by request.
  void observe_tokens(Scheduler::Stepped stepped) { stepped_ = std::move(stepped); }

  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  EncoderDecoderRunner& runner() { return *runner_; }
  const SchedulerCounts& counts() const { return scheduler_->counts(); }
  // Splits prefill time into encoder and decoder; before the first step.
  void measure() { runner_->session().time_steps(); }
  TranslatorTimes times();

 private:
  struct PendingLine {
    Line line;
    uint64_t first_request = 0;  // ids of its segments are consecutive
    size_t unfinished = 0;
    std::string language_token;
    bool copy = false;  // nothing to translate
  };

  // What other threads may touch; stays where it is when the translator is moved.
  struct Shared {
    std::atomic<bool> cancelled{false};
    std::recursive_mutex in_use;  // recursive: callbacks of step() may submit
  };

  Translator() : shared_(std::make_unique<Shared>()) {}
  Status give_up();
  Status take_line(PendingLine& pending, std::string bytes);
  Status add_segments(PendingLine& pending, std::string_view text, size_t token_bytes);
  Status finish_segment(uint64_t request, Hypothesis hypothesis);
  std::string join(const PendingLine& pending, const std::string* growing) const;
  void warn_unknown(Line& line, const tokenizer::Encoding& encoding, std::string_view text) const;

  std::unique_ptr<Shared> shared_;
  Split split_ = Split::kLine;
  std::string source_language_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::unique_ptr<EncoderDecoderRunner> runner_;
  std::unique_ptr<Scheduler> scheduler_;
  Scheduler::Stepped stepped_;
  std::deque<PendingLine> lines_;
  size_t bytes_ = 0;
  bool streaming_ = false;
  uint64_t prefills_seen_ = 0;
  std::unordered_map<uint64_t, std::vector<int32_t>>
      streamed_;  // tokens of unfinished requests, only while streaming
  uint64_t lines_submitted_ = 0, requests_ = 0;
  TranslatorTimes times_;
};

}  // namespace duet::runner
