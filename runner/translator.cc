#include "runner/translator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runner/convert.h"
#include "tokenizer/cutter.h"
#include "tokenizer/segmenter.h"
#include "tokenizer/text.h"

namespace duet::runner {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

std::string metadata_text(const model::Program& program, const char* name) {
  const auto& metadata = program.definition().metadata;
  auto found = metadata.find(name);
  return found != metadata.end() && found->is_string() ? found->get<std::string>() : "";
}

// What stands before and behind the text proper.
struct Margins {
  std::string_view before, behind;
};
Margins margins(std::string_view text) {
  std::string_view inner = tokenizer::strip(text);
  if (inner.empty()) return {text, ""};
  auto start = static_cast<size_t>(inner.data() - text.data());
  return {text.substr(0, start), text.substr(start + inner.size())};
}

tl::unexpected<Error> in_use_elsewhere() {
  return failure(
      ErrorCode::kUsage,
      "the translator is in use by another thread; it serves one caller at a time, make one for each");
}

}  // namespace

Result<Translator> Translator::open(const std::string& program_path, const TranslatorOptions& options) {
  double load = 0;
  std::shared_ptr<const model::Program> program;
  {
    Stopwatch watch(load);
    DUET_ASSIGN(program, model::Program::open(program_path, options.load));
  }
  auto translator = create(std::move(program), options);
  if (translator) translator->times_.load_seconds += load;
  return translator;
}

Result<Translator> Translator::create(std::shared_ptr<const model::Program> program,
                                      const TranslatorOptions& options) {
  try {
    auto start = std::chrono::steady_clock::now();
    Translator translator;
    tokenizer::TokenizerBlobs blobs{program->section(kSourceSpm), program->section(kTargetSpm),
                                    program->section(kSourceVocabulary), program->section(kTargetVocabulary)};
    auto made = tokenizer::Tokenizer::create(blobs);
    if (!made) return failure(made.error().code, "{}: {}", program->path(), made.error().message);
    translator.tokenizer_ = std::make_unique<tokenizer::Tokenizer>(std::move(*made));
    translator.split_ = options.split;
    translator.source_language_ = metadata_text(*program, "source_language");
    DUET_ASSIGN(auto runner, EncoderDecoderRunner::create(program, options.session));
    translator.runner_ = std::make_unique<EncoderDecoderRunner>(std::move(runner));
    if (translator.runner_->max_source_tokens() < 2)
      return failure(options.session.limits.empty() ? ErrorCode::kBadInput : ErrorCode::kUsage,
                     "max_source_tokens is {}, expected 2 or more: a piece of text and </s>",
                     translator.runner_->max_source_tokens());
    auto rows = [&](const char* name) {
      auto found = program->definition().metadata.find(name);
      return found != program->definition().metadata.end() && found->is_number_unsigned()
                 ? found->get<uint64_t>()
                 : 0;
    };
    if (rows("source_vocabulary") != translator.tokenizer_->source_size() ||
        rows("target_vocabulary") != translator.tokenizer_->target_size())
      return failure(ErrorCode::kBadInput, "{}: the tokenizer has {} and {} entries, the model {} and {}",
                     program->path(), translator.tokenizer_->source_size(),
                     translator.tokenizer_->target_size(), rows("source_vocabulary"),
                     rows("target_vocabulary"));
    translator.scheduler_ = std::make_unique<Scheduler>(*translator.runner_);
    translator.times_.load_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return translator;
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "{}: out of memory while loading", program->path());
  }
}

void Translator::warn_unknown(Line& line, const tokenizer::Encoding& encoding, std::string_view text) const {
  constexpr size_t kMostBytes = 80, kMostPieceBytes = 40;
  int32_t unknown = static_cast<int32_t>(*tokenizer_->source_vocabulary().id(tokenizer::Tokenizer::kUnknown));
  std::string pieces;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    auto [begin, end] = encoding.ranges[i];
    if (encoding.ids[i] != unknown || begin >= end) continue;
    std::string_view piece = tokenizer::strip(text.substr(begin, end - begin));
    size_t shown = tokenizer::code_point_boundary(piece, std::min(piece.size(), kMostPieceBytes));
    if (pieces.size() < kMostBytes)
      pieces += (pieces.empty() ? "" : " ") + std::string(piece.substr(0, shown)) +
                (shown < piece.size() ? "…" : "");
  }
  if (!pieces.empty()) line.warnings.push_back({Warning::Kind::kUnknown, "unknown to the model: " + pieces});
}

// text: the line behind its language token, whose bytes belong to the first segment's source.
Status Translator::add_segments(PendingLine& pending, std::string_view text, size_t token_bytes) {
  std::vector<std::string_view> sentences = {text};
  if (split_ == Split::kSentence) sentences = tokenizer::split_sentences(text, source_language_);
  for (std::string_view sentence : sentences) {
    DUET_ASSIGN(auto parts, tokenizer::cut_to_limit(*tokenizer_, sentence,
                                                    static_cast<size_t>(runner_->max_source_tokens()),
                                                    pending.language_token));
    if (parts.size() > 1)
      pending.line.warnings.push_back(
          {Warning::Kind::kSourceCut, fmt::format("a sentence of more than {} tokens was cut into {} parts",
                                                  runner_->max_source_tokens(), parts.size())});
    for (std::string_view part : parts) {
      Segment segment;
      // A carriage return is part of the line's end, not of the text.
      std::string_view encoded = part.ends_with('\r') ? part.substr(0, part.size() - 1) : part;
      DUET_ASSIGN(auto encoding, tokenizer_->encode(encoded, pending.language_token));
      warn_unknown(pending.line, encoding, encoded);
      size_t start = static_cast<size_t>(part.data() - pending.line.source.data());
      size_t before = pending.line.segments.empty() ? token_bytes : 0;
      segment.source = pending.line.source.substr(start - before, part.size() + before);
      segment.source_ids = std::move(encoding.ids);
      pending.line.segments.push_back(std::move(segment));
    }
  }
  return {};
}

Status Translator::take_line(PendingLine& pending, std::string bytes) {
  Stopwatch watch(times_.tokenize_seconds);
  Line& line = pending.line;
  auto text = tokenizer::sanitize_utf8(std::move(bytes));
  line.source = std::move(text.text);
  if (text.replaced > 0)
    line.warnings.push_back(
        {Warning::Kind::kInvalidUtf8, fmt::format("{} invalid UTF-8 sequence{} replaced by U+FFFD",
                                                  text.replaced, text.replaced > 1 ? "s" : "")});
  auto split = tokenizer::split_language_token(line.source);
  if (tokenizer::strip(split.rest).empty()) {  // white space, or a language token alone
    pending.copy = true;
    if (line.source.empty()) return {};
    line.segments.emplace_back();
    line.segments[0].source = line.source;
    line.segments[0].done = true;
    return {};
  }
  pending.language_token = std::string(split.token);
  if (!split.token.empty() && !tokenizer_->source_vocabulary().id(split.token))
    line.warnings.push_back(
        {Warning::Kind::kLanguageToken,
         fmt::format("the model has no language token {} and reads it as an unknown word",
                     split.token.substr(0, tokenizer::code_point_boundary(split.token, 40)))});
  return add_segments(pending, split.rest, line.source.size() - split.rest.size());
}

Status Translator::submit(std::string bytes) {
  std::unique_lock lock(shared_->in_use, std::try_to_lock);
  if (!lock) return in_use_elsewhere();
  const uint64_t number = ++lines_submitted_;
  try {
    lines_.emplace_back();
    PendingLine& pending = lines_.back();
    pending.line.number = number;
    pending.first_request = requests_;
    Status status = take_line(pending, std::move(bytes));
    if (!status) {
      lines_.pop_back();
      const Error& error = status.error();
      return failure(error.code, "line {}: {}{}", number, error.message,
                     error.code == ErrorCode::kUsage ? " (--max-source-tokens)" : "");
    }
    std::vector<Segment>& segments = pending.line.segments;
    bytes_ += pending.line.source.size();
    if (pending.copy) return {};
    requests_ += segments.size();
    pending.unfinished = segments.size();
    for (size_t i = 0; i < segments.size(); ++i) {
      Segment& segment = segments[i];
      if (segment.source_ids.size() <=
          (pending.language_token.empty() ? 1 : 2)) {  // normalised away: nothing but </s>
        segment.translation = std::string(tokenizer::strip(segment.source));
        segment.done = true;
        --pending.unfinished;
        continue;
      }
      DUET_TRY(scheduler_->submit({pending.first_request + i, segment.source_ids, {}, 0}));
    }
    return {};
  } catch (const std::bad_alloc&) {
    // Requests of it that the scheduler has already find no line when they finish.
    if (!lines_.empty() && lines_.back().line.number == number) {
      if (lines_.back().unfinished > 0) bytes_ -= lines_.back().line.source.size();
      lines_.pop_back();
    }
    return failure(ErrorCode::kOutOfMemory, "line {}: out of memory", number);
  }
}

Status Translator::finish_segment(uint64_t request, Hypothesis hypothesis) {
  Stopwatch watch(times_.tokenize_seconds);
  // The last line whose requests begin at or before this one; lines without requests share their successor's
  // number.
  auto after =
      std::upper_bound(lines_.begin(), lines_.end(), request,
                       [](uint64_t id, const PendingLine& pending) { return id < pending.first_request; });
  if (after == lines_.begin()) return {};  // of a line that was given up
  PendingLine& pending = *std::prev(after);
  size_t index = static_cast<size_t>(request - pending.first_request);
  if (index >= pending.line.segments.size()) return {};
  Segment& segment = pending.line.segments[index];
  segment.target_ids = std::move(hypothesis.tokens);
  segment.token_scores = std::move(hypothesis.scores);
  segment.cut = hypothesis.cut;
  segment.done = true;
  for (float score : segment.token_scores) segment.score += static_cast<double>(score);
  DUET_ASSIGN(segment.translation, tokenizer_->decode(segment.target_ids));
  if (segment.cut)
    pending.line.warnings.push_back(
        {Warning::Kind::kTargetCut,
         fmt::format("a translation was cut at the limit of {} tokens", segment.target_ids.size())});
  if (segment.translation.empty())
    pending.line.warnings.push_back({Warning::Kind::kEmpty, "the model gave no words for a text"});
  streamed_.erase(request);
  --pending.unfinished;
  return {};
}

// The translations with the white space that stands around their sources; in line mode none before the first
// and behind the last, as in the reference. growing: what there is of the first unfinished segment, where the
// text then ends; null when all have finished.
std::string Translator::join(const PendingLine& pending, const std::string* growing) const {
  if (pending.copy) return pending.line.source;
  std::string text;
  for (const Segment& segment : pending.line.segments) {
    auto [before, behind] = margins(segment.source);
    if (split_ == Split::kSentence || !text.empty()) text += before;
    if (growing && !segment.done) {
      text += *growing;
      break;
    }
    text += segment.translation;
    text += behind;
  }
  if (split_ == Split::kSentence) return text;
  std::string_view inner = tokenizer::strip(text);
  text.resize(inner.empty() ? 0 : static_cast<size_t>(inner.data() + inner.size() - text.data()));
  if (!growing && pending.line.source.ends_with('\r')) text += '\r';
  return text;
}

Status Translator::give_up() {
  lines_.clear();
  streamed_.clear();
  bytes_ = 0;
  SchedulerCounts counts = scheduler_->counts();
  scheduler_ = std::make_unique<Scheduler>(*runner_);  // frees the slots
  scheduler_->start_from(counts);
  return failure(ErrorCode::kInterrupted, "the translation was cancelled");
}

Status Translator::step(const LineDone& done) {
  std::unique_lock lock(shared_->in_use, std::try_to_lock);
  if (!lock) return in_use_elsewhere();
  try {
    if (shared_->cancelled.exchange(false, std::memory_order_relaxed)) return give_up();
    auto stepped = [&](std::span<const Scheduler::Progress> progress) -> Status {
      if (streaming_) {
        // Requests that come from a prefill begin, even if they had got further before they were restarted.
        bool beginning = std::exchange(prefills_seen_, counts().prefill_calls) != counts().prefill_calls;
        for (const auto& p : progress) {
          if (p.finished) continue;
          std::vector<int32_t>& tokens = streamed_[p.id];
          if (beginning) tokens.clear();
          tokens.push_back(p.token);
        }
      }
      return stepped_ ? stepped_(progress) : Status();
    };
    if (!scheduler_->idle())
      DUET_TRY(scheduler_->step([&](uint64_t id, Hypothesis h) { return finish_segment(id, std::move(h)); },
                                streaming_ || stepped_ ? Scheduler::Stepped(stepped) : nullptr));
    while (!lines_.empty() && lines_.front().unfinished == 0) {
      lines_.front().line.translation = join(lines_.front(), nullptr);
      Line line = std::move(lines_.front().line);
      lines_.pop_front();
      bytes_ -= line.source.size();
      DUET_TRY(done(std::move(line)));
    }
    return {};
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "out of memory while translating");
  }
}

Result<std::string> Translator::text_so_far() const {
  if (lines_.empty()) return std::string();
  const PendingLine& first = lines_.front();
  std::string growing;
  for (size_t i = 0; i < first.line.segments.size(); ++i) {
    if (first.line.segments[i].done) continue;
    auto tokens = streamed_.find(first.first_request + i);
    if (tokens != streamed_.end()) {
      DUET_ASSIGN(growing, tokenizer_->decode(tokens->second));
    }
    break;
  }
  // The bytes of a character that is not complete yet.
  constexpr std::string_view kReplacement = "\uFFFD";
  while (growing.ends_with(kReplacement)) growing.resize(growing.size() - kReplacement.size());
  return join(first, &growing);
}

Result<std::string> Translator::translate(std::string_view text) {
  std::unique_lock lock(shared_->in_use, std::try_to_lock);
  if (!lock) return in_use_elsewhere();
  std::string result;
  auto append = [&](Line&& line) -> Status {
    result += (line.number > 1 ? "\n" : "") + line.translation;
    return {};
  };
  lines_submitted_ = 0;
  Status status;
  while (status) {
    size_t end = text.find('\n');
    status = submit(std::string(text.substr(0, end)));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  // After a failure, too: the next text begins with nothing in flight.
  while (!idle()) DUET_TRY(step(append));
  if (!status) return tl::make_unexpected(std::move(status).error());
  return result;
}

TranslatorTimes Translator::times() {
  TranslatorTimes times = times_;
  int prefill = runner_->session().find_method("reset_encode_prefill");
  auto nanoseconds = runner_->session().step_nanoseconds(prefill);
  const auto& operations = runner_->program().definition().methods[static_cast<size_t>(prefill)].operations;
  // All that comes before the prompt's own tokens: the encoder, and its keys and values for the decoder's
  // layers.
  bool encoder = true;
  for (size_t i = 0; i < nanoseconds.size(); ++i) {
    encoder = encoder && operations[i].name != "prompt_index";
    (encoder ? times.encode_seconds : times.prefill_seconds) += static_cast<double>(nanoseconds[i]) * 1e-9;
  }
  times.decode_seconds = counts().decode_seconds;
  return times;
}

}  // namespace duet::runner
