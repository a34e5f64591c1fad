// duet translate: the main job.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "model/kernels/kernels.h"
#include "runner/command_line.h"
#include "runner/elapsed.h"
#include "runner/line_input.h"
#include "runner/text_output.h"
#include "runner/translator.h"

namespace duet::runner {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kHelp = R"(Translates text: arguments (each a line), a file (-i), or standard input.

Every line of the input gives one line of output, in the same order; an empty
line stays empty. Results appear as soon as they and all before them are ready.
A line ends at a line feed only and has at most 16 MiB.)";

constexpr const char* kFooter = R"(Examples:
  duet translate "When the night has come and the land is dark."
  echo "Good morning." | duet translate -q
  duet translate -i book.txt -o livre.txt --split sentence --stats
  duet translate --json Hello. | jq .segments[0].score)";

struct Options {
  std::vector<std::string> texts;
  std::string input, output, program, split, stream;
  bool json = false, stats = false;
  LimitOptions limits;
  LoadOptions load;
  LogOptions log;
};

// Not getrusage(): its peak includes the process that started this one.
uint64_t peak_rss_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
  return 0;
}

const char* plural(uint64_t count) { return count == 1 ? "" : "s"; }

// "1,234 lines, 5,678 tokens/s", renewed in place while a person watches.
class ProgressLine {
 public:
  explicit ProgressLine(bool shown) : shown_(shown), start_(Clock::now()) {}
  ~ProgressLine() { clear(); }
  void update(uint64_t lines, uint64_t tokens) {
    if (!shown_ || seconds_since(last_) < 0.2) return;
    last_ = Clock::now();
    std::string text =
        fmt::format("\r{} line{}, {} tokens/s \x1b[K", with_commas(lines), plural(lines),
                    with_commas(static_cast<uint64_t>(static_cast<double>(tokens) / seconds_since(start_))));
    visible_ = ::write(STDERR_FILENO, text.data(), text.size()) > 0;
  }
  void clear() {
    if (visible_) [[maybe_unused]]
      auto ignored = ::write(STDERR_FILENO, "\r\x1b[K", 4);
    visible_ = false;
  }

 private:
  bool shown_, visible_ = false;
  Clock::time_point start_, last_;
};

nlohmann::ordered_json line_json(const Line& line) {
  nlohmann::ordered_json json = {{"line", line.number},
                                 {"source", line.source},
                                 {"translation", line.translation},
                                 {"warnings", nlohmann::ordered_json::array()},
                                 {"segments", nlohmann::ordered_json::array()}};
  for (const Warning& warning : line.warnings) json["warnings"].push_back(warning.text);
  for (const Segment& s : line.segments)
    json["segments"].push_back({{"source", s.source},
                                {"translation", s.translation},
                                {"source_ids", s.source_ids},
                                {"target_ids", s.target_ids},
                                {"score", s.score},
                                {"token_scores", s.token_scores},
                                {"cut", s.cut}});
  return json;
}

class TranslateJob {
 public:
  TranslateJob(const Options& options, Clock::time_point start, Translator translator, LineInput input,
               TextOutput output)
      : options_(options),
        start_(start),
        translator_(std::move(translator)),
        input_(std::move(input)),
        output_(std::move(output)),
        progress_(!options.log.quiet && ::isatty(STDERR_FILENO) && !output_.is_terminal() &&
                  !input_.is_terminal()) {}

  Result<int> run() {
    if (options_.stats) translator_.measure();
    growing_ = options_.stream == "text" && output_.part_path().empty();  // nobody watches a .part file
    if (growing_) translator_.stream();
    Status status = options_.stream == "tokens" ? stream_tokens() : translate();
    progress_.clear();
    // Whatever happened, whole lines that are ready are not lost, and one that was growing ends.
    if (!streamed_.empty() && (!status || interrupted())) [[maybe_unused]]
      Status ended = output_.write("\n");
    Status flushed = output_.flush();
    if (!status) return leave(status.error());
    if (!flushed) return leave(flushed.error());
    if (interrupted()) return leave({ErrorCode::kInterrupted, ""});
    if (Status finished = output_.finish(); !finished) return leave(finished.error());
    summarize_warnings();
    if (options_.stats) print_stats();
    return 0;
  }

 private:
  tl::unexpected<Error> leave(Error error) const {
    std::string kept;
    if (!output_.part_path().empty() && output_.bytes_written() > 0)
      kept = fmt::format("what was translated until then is in {}", output_.part_path());
    if (error.code == ErrorCode::kInterrupted && !options_.output.empty())
      error.message = fmt::format("interrupted after {} line{}", with_commas(lines_), plural(lines_));
    if (!kept.empty()) error.message += (error.message.empty() ? "" : "; ") + kept;
    return tl::make_unexpected(std::move(error));
  }

  // Reads lines while there are some and room for them. True: the input has ended.
  Result<bool> read_lines() {
    // Enough segments to keep the slots full; lines wait for longer ones before them, blank ones cost
    // nothing.
    constexpr size_t kMostBytes = size_t{1} << 20, kMostLines = 4096;
    const size_t most_segments = static_cast<size_t>(translator_.runner().slots()) * 4 + 16;
    while (translator_.segments_in_flight() < most_segments && translator_.lines_in_flight() < kMostLines &&
           translator_.bytes_in_flight() < kMostBytes && !interrupted()) {
      DUET_ASSIGN(auto next, input_.next(translator_.idle()));
      if (next.kind == LineInput::Next::Kind::kEnd) return true;
      if (next.kind == LineInput::Next::Kind::kNothingYet) return false;
      if (!next.ended_by_feed) unfed_line_ = lines_read_ + 1;
      ++lines_read_;
      Status submitted = translator_.submit(std::move(next.line));
      if (!submitted)
        return failure(submitted.error().code, "{}: {}", input_.name(), submitted.error().message);
      if (options_.stream == "tokens" &&
          translator_.requests() >= batch_start_ + static_cast<uint64_t>(translator_.runner().slots()))
        return false;
    }
    return false;
  }

  // The same; an error ends the input, and is told when all lines before it are written.
  bool input_ends() {
    auto ended = read_lines();
    if (!ended) input_status_ = tl::make_unexpected(std::move(ended).error());
    return ended.value_or(true);
  }

  Status translate() {
    bool ended = false;
    while (!interrupted()) {
      if (!ended) ended = input_ends();
      if (translator_.idle()) {
        if (ended) break;
        continue;
      }
      DUET_TRY(translator_.step([&](Line&& line) { return write_line(std::move(line)); }));
      if (growing_) DUET_TRY(write_growing_text());
      // A reader sees a line as soon as it is ready.
      DUET_TRY(output_.flush());
      progress_.update(lines_, translator_.counts().target_tokens);
    }
    return input_status_;
  }

  Status write_line(Line&& line) {
    warn(line);
    ++lines_;
    std::string text =
        options_.json ? line_json(line).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                      : std::move(line.translation);
    // What was streamed already is not written twice.
    if (!streamed_.empty() && text.starts_with(streamed_)) text.erase(0, streamed_.size());
    streamed_.clear();
    DUET_TRY(output_.write(text));
    if (options_.json || line.number != unfed_line_) DUET_TRY(output_.write("\n"));
    return {};
  }

  Status write_growing_text() {
    DUET_ASSIGN(std::string text, translator_.text_so_far());
    if (text.size() <= streamed_.size() || !text.starts_with(streamed_)) return {};
    DUET_TRY(output_.write(std::string_view(text).substr(streamed_.size())));
    streamed_ = std::move(text);
    return {};
  }

  // Each step for the whole batch, as the reference runner prints it: ['<pad> Bonjour','<pad>
  // quand',]['Monde','la',]
  Status stream_tokens() {
    std::vector<bool> started;
    translator_.observe_tokens([&](std::span<const Scheduler::Progress> progress) -> Status {
      std::vector<std::string> row(translator_.requests() - batch_start_, "<pad>");
      started.resize(row.size());
      for (const auto& p : progress) {
        auto i = static_cast<size_t>(p.id - batch_start_);
        row[i] = (started[i] ? "" : "<pad> ") + token_text(p.token);
        started[i] = true;
      }
      std::string text = "[";
      for (const std::string& token : row) text += "'" + token + "',";
      DUET_TRY(output_.write(text + "]"));
      return output_.flush();
    });
    bool ended = false;
    while (!ended && !interrupted()) {
      started.clear();
      batch_start_ = translator_.requests();
      ended = input_ends();
      bool any = translator_.requests() > batch_start_;
      while (!translator_.idle() && !interrupted())
        DUET_TRY(translator_.step([&](Line&& line) -> Status {
          warn(line);
          ++lines_;
          return {};
        }));
      if (any) DUET_TRY(output_.write("\n"));
      DUET_TRY(output_.flush());
    }
    return input_status_;
  }

  std::string token_text(int32_t id) const {
    std::string text(translator_.tokenizer().target_piece(id));
    for (size_t at; (at = text.find("\u2581")) != std::string::npos;) text.replace(at, 3, at == 0 ? "" : " ");
    return text;
  }

  void warn(const Line& line) {
    constexpr uint64_t kMostShown = 20;
    for (const Warning& warning : line.warnings) {
      if (warning.kind == Warning::Kind::kUnknown) {
        ++lines_with_unknown_;
        continue;
      }
      if (++warnings_ > kMostShown) continue;
      progress_.clear();
      memory::log(memory::LogLevel::kWarning,
                  fmt::format("{}: line {}: {}", input_.name(), line.number, warning.text));
    }
    if (warnings_ > kMostShown) warnings_hidden_ = warnings_ - kMostShown;
  }

  void summarize_warnings() const {
    if (warnings_hidden_ > 0)
      memory::log(memory::LogLevel::kWarning,
                  fmt::format("{} more warnings; --json gives them all", warnings_hidden_));
    if (lines_with_unknown_ > 0)
      memory::log(memory::LogLevel::kWarning, fmt::format("{} line{} with characters that the model does not "
                                                          "know and cannot translate; --json names them",
                                                          lines_with_unknown_, plural(lines_with_unknown_)));
  }

  void print_stats() {
    TranslatorTimes times = translator_.times();
    const SchedulerCounts& counts = translator_.counts();
    double total = seconds_since(start_), work = total - times.load_seconds;
    auto rate = [](uint64_t count, double seconds) {
      return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
    };
    const auto& plan = translator_.runner().session().plan();
    auto slots = static_cast<uint64_t>(translator_.runner().slots());
    std::cerr << fmt::format(
        "load      {:9.3f} s   program, memory, tokenizer\n"
        "tokenize  {:9.3f} s   text to tokens and back\n"
        "encode    {:9.3f} s   {} source token{} in {} call{}, {:.0f} tokens/s\n"
        "prefill   {:9.3f} s   first decoder steps\n"
        "decode    {:9.3f} s   {} step{}\n"
        "total     {:9.3f} s   {} line{}, {} target token{}, {:.0f} target tokens/s without load\n"
        "memory    {} bytes planned (workspace {}, shared {}, io {}), peak RSS {} bytes\n"
        "settings  {} slot{}, {} thread{}, {} kernels, {} restart{} for want of cache\n",
        times.load_seconds, times.tokenize_seconds, times.encode_seconds, with_commas(counts.source_tokens),
        plural(counts.source_tokens), with_commas(counts.prefill_calls), plural(counts.prefill_calls),
        rate(counts.source_tokens, times.encode_seconds), times.prefill_seconds, times.decode_seconds,
        with_commas(counts.decode_calls), plural(counts.decode_calls), total, with_commas(lines_),
        plural(lines_), with_commas(counts.target_tokens), plural(counts.target_tokens),
        rate(counts.target_tokens, work), with_commas(plan.total_bytes()), with_commas(plan.workspace_bytes),
        with_commas(plan.shared_bytes), with_commas(plan.io_bytes), with_commas(peak_rss_bytes()), slots,
        plural(slots), plan.threads, plural(static_cast<uint64_t>(plan.threads)),
        model::kernels::kernels().name, counts.restarts, plural(counts.restarts));
  }

  const Options& options_;
  const Clock::time_point start_;
  Translator translator_;
  LineInput input_;
  TextOutput output_;
  ProgressLine progress_;
  bool growing_ = false;  // --stream
  std::string streamed_;  // of the first unfinished line
  Status input_status_;
  uint64_t unfed_line_ = 0;  // the number of a last line without a line feed
  uint64_t lines_read_ = 0, lines_ = 0, batch_start_ = 0;
  uint64_t warnings_ = 0, warnings_hidden_ = 0, lines_with_unknown_ = 0;
};

Result<LineInput> open_input(const Options& options) {
  if (options.texts.empty()) return LineInput::open(options.input.empty() ? "-" : options.input);
  return LineInput::of_arguments(options.texts);
}

// A file's name instead of its text is what a person types first.
void hint_at_file(const Options& options) {
  std::error_code ignored;
  for (const std::string& text : options.texts) {
    if (text.size() > 4096 || !std::filesystem::is_regular_file(text, ignored)) continue;
    memory::log(
        memory::LogLevel::kWarning,
        fmt::format(
            "translating the words \"{0}\"; to translate the file of that name: duet translate -i {0}",
            text));
    return;
  }
}

Result<int> run(const Options& options) {
  auto start = Clock::now();
  options.log.apply();
  if (!options.texts.empty() && !options.input.empty())
    return failure(ErrorCode::kUsage, "both text and -i {} are given; expected one of them", options.input);
  if (options.json && !options.stream.empty())
    return failure(ErrorCode::kUsage, "--json and --stream exclude each other");
  hint_at_file(options);
  install_interrupt_handler();
  DUET_ASSIGN(auto input, open_input(options));
  TranslatorOptions translator_options;
  translator_options.session = options.limits.session();
  translator_options.load = options.load.mode();
  bool sentences =
      options.split.empty() ? !options.texts.empty() || input.is_terminal() : options.split == "sentence";
  translator_options.split = sentences ? Split::kSentence : Split::kLine;
  DUET_ASSIGN(std::string program, find_program(options.program));
  DUET_ASSIGN(auto translator, Translator::open(program, translator_options));
  if (std::string part = options.output + ".part"; !options.output.empty() && input.is_file(part))
    return failure(ErrorCode::kUsage,
                   "{}: the input is the file in which the output is built; rename it first", part);
  DUET_ASSIGN(auto output, TextOutput::open(options.output));
  if (input.is_terminal() && !options.log.quiet)
    std::cerr << "Type or paste text to translate; Ctrl-D ends.\n";
  return TranslateJob(options, start, std::move(translator), std::move(input), std::move(output)).run();
}

}  // namespace

void add_translate_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("translate", kHelp);
  command->footer(kFooter);
  command->add_option("TEXT", options->texts,
                      "Text to translate, a line each; without it, -i or standard input");
  command->add_option("-i,--input", options->input, "File to translate; - is standard input")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("-o,--output", options->output,
                   "File for the translation; written as FILE.part until complete")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("-m,--program,--model", options->program,
                   "Program made by `duet convert` [the English-French one of Duet]")
      ->type_name("PROGRAM")
      ->check(not_empty());
  command
      ->add_option("--split", options->split,
                   "line: a line is one sentence; sentence: find the sentences in each line "
                   "[sentence for arguments and on a terminal, line for files and pipes]")
      ->type_name("line|sentence")
      ->check(one_of({"line", "sentence"}));
  command->add_flag("--json", options->json, "One JSON object a line: ids, scores, warnings");
  command
      ->add_flag("--stream{text}", options->stream,
                 "Show text while it grows; --stream=tokens: each step of the whole batch")
      ->type_name("[=text|tokens]")
      ->check(one_of({"text", "tokens"}));
  command->add_flag("--stats", options->stats, "At the end: times, tokens per second, memory");
  options->limits.add_to(*command);
  options->load.add_to(*command);
  options->log.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
