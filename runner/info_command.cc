#include "runner/command_line.h"
namespace duet::runner {
void add_info_command(CLI::App&, Command&) {}
}
