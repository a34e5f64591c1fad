// duet bench: how fast a program translates here. What is measured and counted: bench.h.
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "model/kernels/kernels.h"
#include "runner/bench.h"
#include "runner/bench_text.h"
#include "runner/command_line.h"
#include "runner/line_input.h"
#include "runner/report.h"
#include "runner/text_output.h"
#include "tokenizer/text.h"

namespace duet::runner {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHelp = R"(Measures greedy translation by a program.

Tokens per second at several numbers of slots, the time from load to the first
token, and the latency of one sentence. Checks that all give the same
translations; exit code 1 if not.)";

constexpr const char* kFooter = R"(Examples:
  duet bench
  duet bench en-de.duet -i sample.txt --slots-list 1,16,64 --threads 2 --repeat 9
  duet bench --json --seconds 0.2 | jq '.throughput[] | [.slots, .target_tokens_per_second.median]')";

constexpr const char* kCounted =
    "greedy; text to text: splitting, encoder, decoder and joining; tokens include the final </s> of each "
    "sentence";

constexpr int kMostRepeats = 1000;
constexpr double kMostSeconds = 3600;

struct Options {
  ProgramOption program;
  std::string input;
  std::vector<int64_t> slots_list;
  int repeat = 5;
  double seconds = 1;
  bool json = false;
  LimitOptions limits;
  LoadOptions load;
  LogOptions log;
};

// The lines of a file that have something in them.
Result<std::vector<std::string>> read_lines(const std::string& path) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  std::vector<std::string> lines;
  DUET_ASSIGN(auto input, LineInput::open(path));
  size_t bytes = 0;
  while (true) {
    DUET_ASSIGN(auto next, input.next(true));
    if (interrupted()) return failure(ErrorCode::kInterrupted, "");
    if (next.kind == LineInput::Next::Kind::kEnd) break;
    bytes += next.line.size();
    if (bytes > kMostBytes)
      return failure(ErrorCode::kBadInput, "{}: more than {} bytes of text; a sample is enough", input.name(),
                     kMostBytes);
    std::string line = tokenizer::sanitize_utf8(std::move(next.line)).text;
    if (!tokenizer::strip(line).empty()) lines.push_back(std::move(line));
  }
  if (lines.empty()) return failure(ErrorCode::kBadInput, "{}: no text to translate", input.name());
  return lines;
}

struct Report {
  std::string program;
  uint64_t program_bytes = 0;
  std::string text;  // where the lines came from
  size_t lines = 0;
  int threads = 0;
  Bench::TextCounts counts;
  std::vector<Throughput> throughput;
  Spread first_token_ms;
  Latency latency;
};

// --- JSON

Json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Json throughput_json(const Throughput& t) {
  return {{"slots", t.slots},
          {"target_tokens_per_second", spread_json(t.target_tokens_per_second)},
          {"source_tokens_per_second", spread_json(t.source_tokens_per_second)},
          {"sentences_per_second", spread_json(t.sentences_per_second)},
          {"decode_step_milliseconds", spread_json(t.decode_step_ms)},
          {"mean_slots_in_use", t.slots_in_use},
          {"measurement_seconds", spread_json(t.seconds)},
          {"text_rounds_per_measurement", t.rounds},
          {"planned_bytes", t.planned_bytes},
          {"limits", t.limits}};
}

Json report_json(const Options& options, const Report& report, const std::vector<Difference>& differences) {
  Json json = {{"settings",
                {{"duet_version", DUET_VERSION},
                 {"program", report.program},
                 {"program_bytes", report.program_bytes},
                 {"kernels", model::kernels::kernels().name},
                 {"threads", report.threads},
                 {"text", report.text},
                 {"text_lines", report.lines},
                 {"text_sentences", report.counts.sentences},
                 {"text_source_tokens", report.counts.source_tokens},
                 {"text_target_tokens", report.counts.target_tokens},
                 {"repeat", options.repeat},
                 {"seconds", options.seconds},
                 {"counted", kCounted}}},
               {"throughput", Json::array()}};
  for (const Throughput& t : report.throughput) json["throughput"].push_back(throughput_json(t));
  json["load_to_first_token_milliseconds"] = spread_json(report.first_token_ms);
  json["latency_milliseconds"] = {{"p50", report.latency.p50_ms},
                                  {"p95", report.latency.p95_ms},
                                  {"min", report.latency.ms.min},
                                  {"max", report.latency.ms.max},
                                  {"sentences_measured", report.latency.sentences}};
  json["translations_identical"] = differences.empty();
  return json;
}

// --- Text

std::string plain(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 3 : value < 1000 ? 1 : 0);
}
std::string range(const Spread& s) { return fmt::format("{} .. {}", plain(s.min), plain(s.max)); }

std::string report_text(const Options& options, const Report& report) {
  using enum Table::Align;
  std::string text = fmt::format(
      "program  {}, {} bytes\nsetting  duet {}, {} kernels, {} threads\n"
      "text     {}: {} lines, {} sentences, {} source tokens, {} target tokens\n"
      "counted  {}\n"
      "shown    median (and least .. most) of {} measurements, each of about {} s or longer, after a "
      "warm-up\n\n",
      printable(report.program), with_commas(report.program_bytes), DUET_VERSION,
      model::kernels::kernels().name, report.threads, printable(report.text), with_commas(report.lines),
      with_commas(report.counts.sentences), with_commas(report.counts.source_tokens),
      with_commas(report.counts.target_tokens), kCounted, options.repeat, options.seconds);
  Table table({{"slots", kRight},
               {"target tokens/s", kRight},
               {"(least .. most)", kRight},
               {"source tokens/s", kRight},
               {"sentences/s", kRight},
               {"ms/decode step", kRight},
               {"slots in use, mean", kRight},
               {"bytes planned", kRight}});
  for (const Throughput& t : report.throughput)
    table.add({std::to_string(t.slots), plain(t.target_tokens_per_second.median),
               range(t.target_tokens_per_second), plain(t.source_tokens_per_second.median),
               plain(t.sentences_per_second.median), plain(t.decode_step_ms.median),
               fmt::format("{:.1f}", t.slots_in_use), with_commas(t.planned_bytes)});
  text += table.text();
  Table times({{"one sentence"}, {"ms", kRight}, {"what it covers"}});
  times.add({"load to first token", plain(report.first_token_ms.median),
             fmt::format("open file, tokenizer and session, encode, first step; median of {} loads ({} ms)",
                         options.repeat, range(report.first_token_ms))});
  times.add({"latency p50", plain(report.latency.p50_ms),
             fmt::format("text to text in a session of 1 slot; {} sentences ({} ms)",
                         with_commas(report.latency.sentences), range(report.latency.ms))});
  times.add({"latency p95", plain(report.latency.p95_ms), "the same"});
  return text + "\n" + times.text();
}

// --- The command

// Which numbers of slots: --slots-list, or the one of --slots, or 1, 8, 32 and 64.
Result<std::vector<int64_t>> slot_counts(const Options& options) {
  if (!options.slots_list.empty() && options.limits.slots)
    return failure(ErrorCode::kUsage, "both --slots and --slots-list are given; expected one of them");
  if (options.limits.slots) return std::vector<int64_t>{*options.limits.slots};
  return options.slots_list.empty() ? std::vector<int64_t>{1, 8, 32, 64} : options.slots_list;
}

// A person at a terminal sees what is going on.
void say(const Options& options, const std::string& what) {
  if (!options.log.quiet && ::isatty(STDERR_FILENO)) std::cerr << "bench: " << what << std::endl;
}

Result<int> run(const Options& options) {
  options.log.apply();
  if (options.repeat < 1 || options.repeat > kMostRepeats)
    return failure(ErrorCode::kUsage, "--repeat is {}, expected 1 to {}", options.repeat, kMostRepeats);
  if (!(options.seconds >= 0 && options.seconds <= kMostSeconds))
    return failure(ErrorCode::kUsage, "--seconds is {}, expected 0 to {}", options.seconds, kMostSeconds);
  install_interrupt_handler();
  BenchOptions bench_options;
  DUET_ASSIGN(bench_options.slots, slot_counts(options));
  bench_options.session = options.limits.session();
  bench_options.load = options.load.mode();
  bench_options.repeat = options.repeat;
  bench_options.seconds = options.seconds;
  Report report;
  if (options.input.empty()) {
    for (const char* line : bench_text()) bench_options.lines.emplace_back(line);
    report.text = "built in";
  } else {
    DUET_ASSIGN(bench_options.lines, read_lines(options.input));
    report.text = options.input == "-" ? "standard input" : options.input;
  }
  DUET_ASSIGN(report.program, find_program(options.program.path));
  std::error_code ignored;
  report.program_bytes = std::filesystem::file_size(report.program, ignored);
  report.lines = bench_options.lines.size();
  report.threads = bench_options.session.threads;

  const std::vector<int64_t> slots = bench_options.slots;
  Bench bench(report.program, std::move(bench_options));
  for (int64_t count : slots) {
    say(options, fmt::format("{} slots", count));
    DUET_ASSIGN(auto throughput, bench.throughput(count));
    report.throughput.push_back(throughput);
  }
  report.counts = bench.text_counts();
  say(options, "load to first token, and latency");
  DUET_ASSIGN(report.first_token_ms, bench.first_token_ms());
  DUET_ASSIGN(report.latency, bench.latency());

  DUET_TRY(options.json ? print_json(report_json(options, report, bench.differences()))
                        : print(report_text(options, report)));
  for (const Difference& d : bench.differences())
    std::cerr << fmt::format("duet: line {}: {} slots give \"{}\", {} slots \"{}\"\n", d.line, d.slots,
                             printable(d.translation), d.other_slots, printable(d.other));
  return bench.differences().empty() ? 0 : 1;
}

}  // namespace

void add_bench_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  options->log.level = "warning";  // every load would log its arenas
  CLI::App* command = app.add_subcommand("bench", kHelp);
  command->footer(kFooter);
  options->program.add_to(*command);
  command
      ->add_option("-i,--input", options->input,
                   "Text to translate, a sentence a line; - is standard input [40 lines of English]")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--slots-list", options->slots_list,
                   "Numbers of slots to measure [1,8,32,64, or the one of --slots]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,N,...")
      ->check(whole_number());
  command->add_option("--repeat", options->repeat, "Measurements of each kind")
      ->type_name("N")
      ->check(whole_number())
      ->capture_default_str();
  command
      ->add_option("--seconds", options->seconds,
                   "About the shortest measurement of throughput: the text is translated again until then")
      ->type_name("S")
      ->capture_default_str();
  command->add_flag("--json", options->json, "One JSON object; units stand in the names");
  options->limits.add_to(*command);
  options->load.add_to(*command);
  options->log.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
