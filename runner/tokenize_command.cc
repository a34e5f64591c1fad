#include "runner/command_line.h"
namespace duet::runner {
void add_tokenize_command(CLI::App&, Command&) {}
}
