// duet call: runs methods of any program in order, in one session. Arguments become calls (parse_words),
// calls get their inputs before the first one runs (prepare), and each call's outputs and the state that it
// wrote are printed and kept as files (Results).
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>

#include "runner/call_results.h"
#include "runner/call_values.h"
#include "runner/command_line.h"
#include "runner/elapsed.h"
#include "runner/report.h"
#include "runner/state_file.h"
#include "runner/suggest.h"

namespace duet::runner {
namespace {

using model::InputSpec;
using model::Method;
using model::ProgramDefinition;

constexpr int kMostRepeats = 1000000;

constexpr const char* kHelp = R"(Runs methods of any program, in order, in one session.

PROGRAM METHOD name=VALUE ... [METHOD name=VALUE ...] ...: an argument with = is
an input of the method before it, one without is the next method. A VALUE is
  [1,2,3]  [[1.5],[2]]  7  true   a literal, nested for more dimensions
  ones[10,20]  zeros[3]  range[4] range counts 0, 1, 2, ...
  rand[10,20]  rand[3]@7          pseudo-random, of a seed [0]
  FILE.npy                        an array of NumPy
  FILE:f32[10,20]                 raw little-endian elements
Outputs are METHOD.CALL.NAME, state that a call wrote METHOD.CALL.state.BUFFER;
CALL counts the calls from 0. `duet info PROGRAM` lists methods and inputs.)";

constexpr const char* kFooter = R"(Examples:
  duet call cache.duet set_cache k=ones[3,20] v=rand[3,20]@7 get_cache
  duet call cache.duet set_cache k=keys.npy v=values.bin:f32[3,20] --state
  duet call en-de.duet reset_encode_prefill source_tokens=[7,9,0] \
    source_lengths=[3] slots=[0] prompt_tokens=[58100] prompt_lengths=[1] \
    target_limits=[40] decode slots=[0] decode slots=[0] -q
  duet call x.duet encode --fill rand --repeat 20 --time --print none
  duet call x.duet start --fill ones --save-state begun.state
  duet call x.duet step --load-state begun.state --out results)";

struct Options {
  std::string program;
  std::vector<std::string> words;
  NamedLimitOptions limits;
  LoadOptions load;
  LogOptions log;
  std::string fill;
  uint64_t seed = 0;
  int repeat = 1;
  ResultOptions results;
  bool time = false;
  std::string load_state, save_state;
};

// A method and its inputs as they were typed.
struct WordCall {
  std::string method;
  std::vector<std::pair<std::string, std::string>> inputs;
};

struct Call {
  const Method* method;
  int index;  // of the method
  std::map<std::string, Tensor> inputs;
  std::vector<model::TensorView> views;  // of the inputs, in the method's order
  std::vector<double> milliseconds;
};

template <class... Args>
tl::unexpected<Error> usage(fmt::format_string<Args...> format, Args&&... args) {
  return failure(ErrorCode::kUsage, format, std::forward<Args>(args)...);
}

// "; did you mean x? There are: x, y" or "; there are: x, y".
std::string choices(const std::string& word, const std::vector<std::string>& names) {
  std::string meant = nearest(word, names);
  return printable(fmt::format("; {}here are: {}", meant.empty() ? "t" : "did you mean " + meant + "? T",
                               fmt::join(names, ", ")));
}

std::vector<std::string> method_names(const ProgramDefinition& definition) {
  std::vector<std::string> names;
  for (const Method& method : definition.methods) names.push_back(method.name);
  return names;
}

std::vector<std::string> input_names(const Method& method) {
  std::vector<std::string> names;
  for (const InputSpec& input : method.inputs) names.push_back(input.name);
  return names;
}

Result<std::vector<WordCall>> parse_words(std::span<const std::string> words) {
  std::vector<WordCall> calls;
  for (const std::string& word : words) {
    size_t equals = word.find('=');
    if (equals == std::string::npos) {
      calls.push_back({word, {}});
      continue;
    }
    if (calls.empty())
      return usage("{}: an input stands behind its method: METHOD name=VALUE", printable(word));
    std::string name = word.substr(0, equals);
    for (const auto& [known, value] : calls.back().inputs)
      if (known == name)
        return usage("method {}: input {} is given twice", printable(calls.back().method), printable(name));
    calls.back().inputs.emplace_back(std::move(name), word.substr(equals + 1));
  }
  return calls;
}

Result<std::unique_ptr<model::Session>> make_session(const Options& options, const std::string& path) {
  DUET_ASSIGN(auto session_options, options.limits.session());
  DUET_ASSIGN(auto program, model::Program::open(path, options.load.mode()));
  auto session = model::Session::create(std::move(program), session_options);
  if (!session) return tl::make_unexpected(with_limit_option(session.error()));
  return session;
}

// --- Inputs

std::string spec_text(const InputSpec& input) {
  return printable(
      fmt::format("{} {}{}", input.name, model::dtype_name(input.dtype), model::shape_text(input.shape)));
}

Status add_given(const CallTarget& target, const WordCall& words, Call& call) {
  for (const auto& [name, text] : words.inputs) {
    const auto& specs = target.method.inputs;
    auto spec = std::find_if(specs.begin(), specs.end(), [&](const InputSpec& s) { return s.name == name; });
    if (spec == specs.end())
      return usage("method {} has no input {}{}", printable(words.method), printable(name),
                   specs.empty() ? "; it has none" : choices(name, input_names(target.method)));
    DUET_ASSIGN(Tensor tensor, parse_value(target, *spec, text));
    call.inputs.emplace(name, std::move(tensor));
  }
  return {};
}

Status add_missing(const CallTarget& target, const std::string& fill, uint64_t seed, Call& call) {
  if (auto chosen = parse_fill(fill)) {
    DUET_ASSIGN(auto filled, fill_inputs(target, call.inputs, *chosen, seed));
    call.inputs.merge(filled);
    return {};
  }
  std::string missing;
  for (const InputSpec& input : target.method.inputs)
    if (!call.inputs.count(input.name)) missing += (missing.empty() ? "" : ", ") + spec_text(input);
  if (missing.empty()) return {};
  return usage(
      "method {}: inputs not given: {}; give them as name=VALUE, or use --fill ones|zeros|range|rand",
      printable(target.method.name), missing);
}

Result<std::vector<Call>> prepare(const Options& options, const model::Session& session,
                                  const std::vector<WordCall>& words) {
  const ProgramDefinition& definition = session.program().definition();
  std::vector<Call> calls;
  for (const WordCall& word : words) {
    int index = session.find_method(word.method);
    if (index < 0)
      return usage("no method \"{}\"{}", printable(word.method),
                   choices(word.method, method_names(definition)));
    Call call{&definition.methods[static_cast<size_t>(index)], index, {}, {}, {}};
    CallTarget target{definition, *call.method, session.plan().symbols};
    DUET_TRY(add_given(target, word, call));
    DUET_TRY(add_missing(target, options.fill, random_bits(options.seed, calls.size()), call));
    calls.push_back(std::move(call));
  }
  for (Call& call : calls)  // which do not move any more
    for (const InputSpec& input : call.method->inputs)
      call.views.push_back(call.inputs.at(input.name).view());
  return calls;
}

// --- Running

Status run_calls(const Options& options, model::Session& session, std::vector<Call>& calls,
                 CallResults& results) {
  for (int round = 0; round < options.repeat; ++round)
    for (size_t i = 0; i < calls.size(); ++i) {
      auto start = std::chrono::steady_clock::now();
      auto outputs = session.execute(calls[i].index, calls[i].views);
      if (options.time) calls[i].milliseconds.push_back(seconds_since(start) * 1e3);
      if (!outputs)
        return failure(outputs.error().code, "{}{}", calls.size() > 1 ? fmt::format("call {}: ", i) : "",
                       printable(outputs.error().message));
      if (round + 1 == options.repeat) DUET_TRY(results.add(*calls[i].method, *outputs));
      bool only_lines = options.results.directory.empty() && options.save_state.empty();
      if (only_lines && !results.has_reader()) return {};
    }
  return {};
}

std::string times_text(std::vector<Call>& calls) {
  using enum Table::Align;
  Table table({{"call"}, {"runs", kRight}, {"min ms", kRight}, {"median ms", kRight}, {"max ms", kRight}});
  for (size_t i = 0; i < calls.size(); ++i) {
    auto& times = calls[i].milliseconds;
    std::sort(times.begin(), times.end());
    size_t middle = times.size() / 2;
    double median = times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
    table.add({printable(fmt::format("{}.{}", calls[i].method->name, i)), std::to_string(times.size()),
               fmt::format("{:.4f}", times.front()), fmt::format("{:.4f}", median),
               fmt::format("{:.4f}", times.back())});
  }
  return table.text();
}

Result<int> run(const Options& options) {
  options.log.apply();
  if (options.repeat < 1 || options.repeat > kMostRepeats)
    return usage("--repeat is {}, expected 1 to {}", options.repeat, kMostRepeats);
  std::span<const std::string> words = options.words;
  std::string path = options.program;
  if (path.empty()) {
    if (words.empty()) return usage("expected PROGRAM METHOD name=VALUE ...; see `duet call --help`");
    path = words.front();
    words = words.subspan(1);
  }
  DUET_ASSIGN(auto word_calls, parse_words(words));
  DUET_ASSIGN(auto session, make_session(options, path));
  if (word_calls.empty())
    return usage(
        "no method to call; {} has: {}", printable(path),
        printable(fmt::format("{}", fmt::join(method_names(session->program().definition()), ", "))));
  DUET_ASSIGN(auto calls, prepare(options, *session, word_calls));
  DUET_ASSIGN(auto results, CallResults::open(*session, options.results));
  std::error_code ignored;
  if (!options.save_state.empty() && std::filesystem::equivalent(options.save_state, path, ignored))
    return usage("--save-state {}: is the program itself; name another file", printable(options.save_state));
  if (!options.load_state.empty()) DUET_TRY(load_state(*session, options.load_state));
  Status ran = run_calls(options, *session, calls, results);
  DUET_TRY(results.finish());  // what was ready before an error is not lost
  DUET_TRY(ran);
  if (!options.save_state.empty()) DUET_TRY(save_state(*session, options.save_state));
  if (options.time) std::cerr << times_text(calls);
  return 0;
}

void add_result_options(CLI::App& command, Options& options) {
  command.add_option("--print", options.results.print, "Of outputs and written state: none, abridged or all")
      ->check(one_of({"none", "abridged", "all"}))
      ->type_name("HOW")
      ->capture_default_str();
  command
      .add_option("-o,--out", options.results.directory,
                  "Write outputs and written state into this directory")
      ->check(not_empty())
      ->type_name("DIR");
  command.add_option("--format", options.results.format, "Of those files: npy, or bin (raw, little-endian)")
      ->check(one_of({"npy", "bin"}))
      ->type_name("FORMAT")
      ->capture_default_str();
  command.add_flag("--state", options.results.list_state, "List all shared buffers after each call");
  command.add_option("--load-state", options.load_state, "Begin with the state in this file")
      ->check(not_empty())
      ->type_name("FILE");
  command.add_option("--save-state", options.save_state, "Keep the state after the last call in this file")
      ->check(not_empty())
      ->type_name("FILE");
}

}  // namespace

void add_call_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("call", kHelp);
  command->footer(kFooter);
  command->add_option("WORDS", options->words, "PROGRAM METHOD name=VALUE ... [METHOD name=VALUE ...] ...")
      ->type_name("");
  command
      ->add_option("-m,--program,--model", options->program, "PROGRAM; the first argument is a method then")
      ->check(not_empty())
      ->type_name("PROGRAM");
  command
      ->add_option("--fill", options->fill,
                   "Inputs not given: ones, zeros, range or rand, as large as they may be")
      ->check(one_of({"ones", "zeros", "range", "rand"}))
      ->type_name("HOW");
  command->add_option("--seed", options->seed, "Of --fill rand")
      ->check(seed_number())
      ->type_name("N")
      ->capture_default_str();
  add_result_options(*command, *options);
  command
      ->add_option("--repeat", options->repeat,
                   "Run all calls so many times; the results are the last round's")
      ->check(whole_number())
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--time", options->time, "Times of each call, on standard error");
  options->limits.add_to(*command);
  options->load.add_to(*command);
  options->log.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
