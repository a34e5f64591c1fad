#include "runner/command_line.h"
namespace duet::runner {
void add_bench_command(CLI::App&, Command&) {}
}
