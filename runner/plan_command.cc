#include "runner/command_line.h"
namespace duet::runner {
void add_plan_command(CLI::App&, Command&) {}
}
