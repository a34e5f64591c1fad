// The command line: chooses a command, runs it, turns errors into one line on stderr and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <vector>

#include "memory/mapping_guard.h"
#include "model/kernels/kernels.h"
#include "runner/command_line.h"
#include "runner/suggest.h"

namespace duet::runner {
namespace {

constexpr const char* kFooter = R"(Examples:
  duet translate "When the night has come and the land is dark."
  duet translate -i book.txt -o livre.txt --stats
  duet convert opus-mt-en-de/ -o en-de.duet && duet translate -m en-de.duet Hello.
  duet plan --slots 4 --max-source-tokens 21 --max-target-tokens 40

Results go to standard output, everything else to standard error.
Exit codes: 0 fine, 1 a comparison differs, 2 usage, 3 bad model or input,
4 I/O or memory, 130 interrupted. In a checkout, `./duet test` runs all tests.)";

int report(const Error& error) {
  if (error.code != ErrorCode::kClosedPipe && !error.message.empty())
    std::cerr << "duet: " << with_option_names(error.message) << std::endl;
  return memory::exit_code(error.code);
}

int run(int argc, char** argv) {
  CLI::App app{"Duet runs encoder-decoder translation models from one file, in planned memory, on any CPU."};
  app.name("duet");
  app.formatter(help_formatter());
  app.footer(kFooter);
  std::string version = fmt::format("duet {} ({} kernels)", DUET_VERSION, model::kernels::kernels().name);
  app.set_version_flag("--version", version, "Version and the kernels in use");
  app.require_subcommand(1);
  Command chosen;
  add_translate_command(app, chosen);
  add_convert_command(app, chosen);
  add_plan_command(app, chosen);
  add_info_command(app, chosen);
  add_verify_command(app, chosen);
  add_tokenize_command(app, chosen);
  add_call_command(app, chosen);
  add_validate_command(app, chosen);
  add_bench_command(app, chosen);
  if (argc == 1) {
    std::cerr << app.help();
    return 2;
  }
  // "help" and "help translate" are what a person tries first.
  std::vector<char*> arguments(argv, argv + argc);
  std::string help = "--help";
  if (argc <= 3 && std::string(argv[1]) == "help") {
    arguments.erase(arguments.begin() + 1);
    arguments.push_back(help.data());
    argc = static_cast<int>(arguments.size());
    argv = arguments.data();
  }
  // What CLI11 would misread comes first.
  if (std::string doubt = explain_doubtful_word(app, argc, argv); !doubt.empty()) {
    std::cerr << "duet: " << doubt << std::endl;
    return 2;
  }
  try {
    auto words = shield_brackets(app, argc, argv);
    std::reverse(words.begin(), words.end());  // as CLI11 wants them
    app.parse(std::move(words));
  } catch (const CLI::Success& asked) {  // --help, --version
    int code = app.exit(asked);
    if (std::cout.flush()) return code;
    std::cerr << "duet: standard output: cannot write" << std::endl;
    return 4;
  } catch (const CLI::ParseError& error) {
    std::cerr << "duet: " << explain_usage_error(app, error, argc, argv) << std::endl;
    return 2;
  }
  auto result = chosen();
  return result ? *result : report(result.error());
}

}  // namespace
}  // namespace duet::runner

int main(int argc, char** argv) {
  // A reader that goes away and a file that grows too large show as errors of write().
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  duet::memory::survive_shrinking_files();
  // No file that is opened later may become a standard stream. A missing one fails when it is used, as it
  // should.
  while (true) {
    int fd = ::open("/dev/null", O_RDONLY);
    if (fd == STDIN_FILENO && ::close(fd) == 0) fd = ::open("/dev/null", O_WRONLY);
    if (fd > STDERR_FILENO) ::close(fd);
    if (fd < 0 || fd > STDERR_FILENO) break;
  }
  try {
    return duet::runner::run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("duet: out of memory\n", stderr);
    return 4;
  } catch (const std::exception& error) {  // a bug
    std::fprintf(stderr, "duet: internal error, please report: %s\n", error.what());
    return 4;
  }
}
