// duet verify: is a program, byte for byte, what `duet convert` wrote?
#include "model/program_header.h"
#include "model/program_verify.h"
#include "runner/command_line.h"
#include "runner/report.h"

namespace duet::runner {
namespace {

constexpr const char* kHelp = R"(Checks a program file down to its last byte.

Opening a program checks its header and leaves the weights unread. This reads
all of it: a single changed bit anywhere is found (exit code 3).)";

constexpr const char* kFooter = R"(Examples:
  duet verify en-de.duet
  duet verify --checksums en-de.duet && echo fine)";

struct Options {
  ProgramOption program;
  bool checksums = false;
};

Result<int> run(const Options& options) {
  DUET_ASSIGN(auto program, options.program.open());
  DUET_ASSIGN(auto bytes, model::verify_bytes(*program));
  const model::ProgramDefinition& definition = program->definition();
  Table table({{"checked"}, {"", Table::Align::kRight}, {"bytes", Table::Align::kRight}, {"against"}});
  table.add({"header", "1", with_commas(bytes.header), "its checksum, and all rules of the format"});
  table.add({"sections", std::to_string(definition.sections.size()), with_commas(bytes.sections),
             "their checksums"});
  table.add({"constants", std::to_string(definition.constants.size()), with_commas(bytes.constants),
             "their checksums"});
  table.add({"padding", "", with_commas(bytes.padding), "zero"});
  DUET_TRY(print(table.text()));
  DUET_TRY(print(fmt::format("{}: {} bytes, all as they were written\n", printable(program->path()),
                             with_commas(program->file_bytes()))));
  return 0;
}

}  // namespace

void add_verify_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("verify", kHelp);
  command->footer(kFooter);
  options->program.add_to(*command);
  command->add_flag("--checksums", options->checksums,
                    "Checksums and padding only (at present, that is all)");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
