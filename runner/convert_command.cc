// duet convert: a model directory becomes a program.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "runner/command_line.h"
#include "runner/convert.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string directory, output, report;
  ConvertOptions convert;
  LogOptions log;
};

Status write_report(const Options& options, const ConvertReport& report) {
  nlohmann::ordered_json json = {
      {"source", options.directory},           {"program", options.output},
      {"parameters", report.parameters},       {"checkpoint_bytes", report.checkpoint_bytes},
      {"program_bytes", report.program_bytes}, {"constants", report.constants}};
  std::string path = (fs::path(options.report) / "convert.json").string();
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.close();
  if (!file) return failure(ErrorCode::kIo, "{}: cannot write the report", path);
  return {};
}

Status make_report_directory(const Options& options) {
  std::error_code error;
  if (!options.report.empty()) fs::create_directories(options.report, error);
  if (error)
    return failure(ErrorCode::kIo, "{}: cannot make the report's directory: {}", options.report,
                   error.message());
  return {};
}

Result<int> run(const Options& options) {
  options.log.apply();
  DUET_TRY(make_report_directory(options));
  DUET_ASSIGN(auto report, convert(options.directory, options.output, options.convert));
  if (!options.report.empty()) DUET_TRY(write_report(options, report));
  if (!options.log.quiet)
    std::cerr << fmt::format("{}: {} parameters, {} bytes of weights -> {}: {} bytes, f32\n",
                             options.directory, with_commas(report.parameters),
                             with_commas(report.checkpoint_bytes), options.output,
                             with_commas(report.program_bytes));
  return 0;
}

}  // namespace

void add_convert_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("convert", "Makes a program from a model directory: Hugging Face Marian (OPUS-MT).");
  command->footer(
      "Example:\n"
      "  duet convert opus-mt-en-de/ -o en-de.duet\n"
      "  duet translate -m en-de.duet \"Good morning.\"");
  command
      ->add_option(
          "DIR", options->directory,
          "config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm, vocab.json, …")
      ->required();
  command->add_option("-o,--output", options->output, "The program file to write")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--report", options->report, "Also write a report (convert.json) into this directory")
      ->type_name("DIR")
      ->check(not_empty());
  command->add_option("--name", options->convert.name, "The model's name [the directory's]")
      ->type_name("NAME");
  command
      ->add_option("--licence", options->convert.licence, "The weights' licence [what the model card says]")
      ->type_name("NAME");
  options->log.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
