// duet validate: does a session of this program keep its promises, whatever it is called with?
#include <unistd.h>

#include <chrono>
#include <iostream>

#include "runner/command_line.h"
#include "runner/elapsed.h"
#include "runner/line_input.h"
#include "runner/report.h"
#include "runner/validate.h"

namespace duet::runner {
namespace {

constexpr const char* kHelp = R"(Calls every method with junk of every boundary size.

Calls that the inputs' declarations allow run on one thread and on several, and
must give the same bits. Calls that they forbid must be refused. A refused call
must leave the state as it was. Exit code 1 when a promise is broken.)";

constexpr const char* kFooter = R"(Examples:
  duet validate cache.duet
  duet validate en-de.duet --limit slots=4 --random 1000 --seed 7)";

struct Options {
  ProgramOption program;
  NamedLimitOptions limits;
  LoadOptions load;
  LogOptions log;
  int random_calls = 100;
  uint64_t seed = 0;
};

Result<int> run(const Options& options) {
  options.log.apply();
  install_interrupt_handler();
  DUET_ASSIGN(auto program, options.program.open(options.load.mode()));
  ValidateOptions how;
  DUET_ASSIGN(how.session, options.limits.session());
  how.random_calls = options.random_calls;
  how.seed = options.seed;
  const bool shown = ::isatty(STDERR_FILENO) && !options.log.quiet;
  auto last = std::chrono::steady_clock::now();
  how.progress = [&](uint64_t calls) {
    if (shown && seconds_since(last) > 0.2) {
      std::cerr << fmt::format("\r{} calls\x1b[K", with_commas(calls)) << std::flush;
      last = std::chrono::steady_clock::now();
    }
    return !interrupted();
  };
  auto report = validate(program, how);
  if (shown) std::cerr << "\r\x1b[K";
  if (!report) return tl::make_unexpected(with_limit_option(report.error()));
  using enum Table::Align;
  Table table({{"method"},
               {"ran", kRight},
               {"refused by state", kRight},
               {"forbidden, refused", kRight},
               {"no such inputs", kRight}});
  for (const MethodValidation& m : report->methods)
    table.add({printable(m.method), with_commas(m.accepted), with_commas(m.refused), with_commas(m.forbidden),
               with_commas(m.impossible)});
  DUET_TRY(print(table.text()));
  for (const std::string& problem : report->problems)
    DUET_TRY(print("problem: " + printable(problem) + "\n"));
  DUET_TRY(print(report->problem_count == 0 ? std::string("all promises kept\n")
                                            : fmt::format("{} problem{}\n", report->problem_count,
                                                          report->problem_count > 1 ? "s" : "")));
  return report->problem_count == 0 ? 0 : 1;
}

}  // namespace

void add_validate_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("validate", kHelp);
  command->footer(kFooter);
  options->program.add_to(*command);
  command->add_option("--random", options->random_calls, "Further calls of any method, in any order")
      ->check(CLI::Range(0, 1'000'000).description(""))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Of the junk")
      ->check(seed_number())
      ->type_name("N")
      ->capture_default_str();
  options->limits.add_to(*command);
  options->load.add_to(*command);
  options->log.level = "warning";
  options->log.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
