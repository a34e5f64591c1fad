// What all commands share: where a program is found, limits, logging, and how a command ends.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/error.h"
#include "memory/log.h"
#include "model/program.h"
#include "model/session.h"

namespace duet::runner {

// A command's work; what it fails with becomes a line on stderr and an exit code. An int is an exit code of
// its own.
using Command = std::function<Result<int>()>;

// Each file *_command.cc adds one; `chosen` becomes its work when the user asks for it.
void add_translate_command(CLI::App& app, Command& chosen);
void add_convert_command(CLI::App& app, Command& chosen);
void add_plan_command(CLI::App& app, Command& chosen);
void add_info_command(CLI::App& app, Command& chosen);
void add_verify_command(CLI::App& app, Command& chosen);
void add_tokenize_command(CLI::App& app, Command& chosen);
void add_call_command(CLI::App& app, Command& chosen);
void add_validate_command(CLI::App& app, Command& chosen);
void add_bench_command(CLI::App& app, Command& chosen);

// The arguments for app.parse(), changed such that CLI11 does not take the text "[a, b]" for a list of two;
// the options of all commands change them back.
std::vector<std::string> shield_brackets(CLI::App& app, int argc, char** argv);

// Help in 80 columns; a command's list of commands shows the first line of each description.
std::shared_ptr<CLI::Formatter> help_formatter();
// Checks for options, whose messages say what was expected. one_of() suggests the nearest choice.
CLI::Validator one_of(std::vector<std::string> choices);
CLI::Validator whole_number();
CLI::Validator seed_number();  // 0 to 2^64 - 1
CLI::Validator not_empty();

// The program a command looks at: `duet info x.duet` or `duet info -m x.duet`; without one, the one that
// ships with Duet.
struct ProgramOption {
  std::string path;
  void add_to(CLI::App& command);
  // Errors: those of find_program() and Program::open().
  Result<std::shared_ptr<const model::Program>> open(model::LoadMode mode = model::LoadMode::kMmap) const;
};

// -q and --log-level.
struct LogOptions {
  bool quiet = false;
  std::string level = "info";
  void add_to(CLI::App& command);
  void apply() const;
};

// --load: the same in every command that computes with a program.
struct LoadOptions {
  std::string how = "mmap";
  void add_to(CLI::App& command);
  model::LoadMode mode() const;
};

// --slots --max-source-tokens --max-target-tokens --batch-tokens --threads: the same in every command.
struct LimitOptions {
  std::optional<int64_t> slots, max_source_tokens, max_target_tokens, batch_tokens;
  std::optional<int> threads;
  void add_to(CLI::App& command);
  model::SessionOptions session() const;
};

// --limit NAME=N and --threads: for programs of any kind, whose limits have any names.
struct NamedLimitOptions {
  std::vector<std::string> limits;
  std::optional<int> threads;
  void add_to(CLI::App& command);
  // Errors: kUsage for what is not NAME=N, and for a limit given twice.
  Result<model::SessionOptions> session() const;
};
// A message of Session::create about a limit, as the user of --limit gave it: "slots is 0" -> "--limit: slots
// is 0".
Error with_limit_option(Error error);

// Threads used when none are asked for: the processors that this process may use, by affinity and by quota.
int default_threads();

// The program that comes with Duet, beside the executable: ../share/duet/tatoeba-en-fr.duet.
std::string default_program();
// -m, or the program that comes with Duet. Errors: kIo when that one is missing.
Result<std::string> find_program(const std::string& asked);

// A message about a limit names the option: "max_source_tokens is 0" -> "--max-source-tokens is 0".
std::string with_option_names(std::string message);

// "Kind of bytes that a person reads": 8,388,608.
std::string with_commas(uint64_t number);

}  // namespace duet::runner
