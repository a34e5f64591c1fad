#include "runner/convert.h"

#include <filesystem>
#include <set>

#include "memory/mapped_file.h"
#include "model/exporter.h"
#include "model/importers/huggingface_marian.h"
#include "tokenizer/huggingface_tokenizer.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;

// The `license:` line of a model card's front matter; empty if there is none.
std::string licence_of_card(const std::string& directory) {
  constexpr size_t kMostCardBytes = 1 << 20;
  auto card = memory::read_file(directory + "/README.md", kMostCardBytes);
  if (!card || !card->starts_with("---\n")) return "";
  size_t end = card->find("\n---", 4);
  size_t at = card->find("\nlicense:");
  if (at == std::string::npos || at > end) return "";
  size_t from = card->find_first_not_of(" \"'", at + 9), to = card->find('\n', at + 1);
  if (from >= to) return "";
  std::string value = card->substr(from, to - from);
  value.erase(value.find_last_not_of(" \"'\r") + 1);
  return value;
}

std::string directory_name(const std::string& directory) {
  std::error_code ignored;
  fs::path path = fs::weakly_canonical(directory, ignored);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// What can be seen before any work is done. A rename would put a file in the place of a device.
Status check_paths(const std::string& directory, const std::string& output) {
  std::error_code ignored;
  if (!fs::exists(directory, ignored))
    return failure(ErrorCode::kIo, "{}: no such directory, expected a model directory", directory);
  if (!fs::is_directory(directory, ignored))
    return failure(ErrorCode::kBadInput,
                   "{}: is no directory, expected a model directory with config.json and its weights",
                   directory);
  if (fs::is_directory(output, ignored))
    return failure(ErrorCode::kIo, "{}: is a directory, expected a file", output);
  if (fs::exists(output, ignored) && !fs::is_regular_file(output, ignored))
    return failure(ErrorCode::kIo, "{}: is no regular file; a program is written to a file of its own",
                   output);
  fs::path parent = fs::path(output).parent_path();
  if (!parent.empty() && !fs::is_directory(parent, ignored))
    return failure(ErrorCode::kIo, "{}: the directory {} does not exist", output, parent.string());
  return {};
}

}  // namespace

Result<ConvertReport> convert(const std::string& directory, const std::string& output,
                              const ConvertOptions& options) {
  try {
    DUET_TRY(check_paths(directory, output));
    DUET_ASSIGN(auto checkpoint, model::import_huggingface_marian(directory));
    const model::MarianConfig& config = checkpoint.config();
    DUET_ASSIGN(auto files, tokenizer::read_huggingface_tokenizer(directory, config.vocabulary_size,
                                                                  config.decoder_vocabulary_size));
    ConvertReport report;
    std::set<const std::byte*> counted;  // tied tensors may be the same bytes
    for (const auto& [name, stored] : checkpoint.stored())
      if (counted.insert(stored.bytes.data()).second) report.checkpoint_bytes += stored.bytes.size();

    model::MultiEntryPointExporter exporter;
    auto& metadata = exporter.metadata();
    metadata["name"] = options.name.empty() ? directory_name(directory) : options.name;
    metadata["source_language"] = files.source_language;
    metadata["target_language"] = files.target_language;
    metadata["licence"] = options.licence.empty() ? licence_of_card(directory) : options.licence;
    DUET_TRY(model::build_marian(checkpoint, options.build, exporter));
    exporter.section(kSourceSpm, std::move(files.source_spm));
    exporter.section(kTargetSpm, std::move(files.target_spm));
    exporter.section(kSourceVocabulary, std::move(files.source_vocabulary));
    if (!files.target_vocabulary.empty())
      exporter.section(kTargetVocabulary, std::move(files.target_vocabulary));
    DUET_ASSIGN(auto definition, exporter.finish());
    DUET_TRY(memory::check_mapped_files());  // a definition has copies: the weights have been read
    report.constants = nlohmann::ordered_json::array();
    for (const model::Constant& constant : definition->constants) {
      uint64_t elements = 1;
      for (const model::Dim& dim : constant.shape) elements *= static_cast<uint64_t>(dim.value());
      if (constant.name.find("positions") == std::string::npos) report.parameters += elements;
      report.constants.push_back({{"name", constant.name},
                                  {"dtype", model::dtype_name(constant.dtype)},
                                  {"shape", model::shape_text(constant.shape)},
                                  {"bytes", constant.data.size()}});
    }
    DUET_TRY(model::write_program(*definition, output));
    report.program_bytes = fs::file_size(output);
    return report;
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "{}: out of memory while converting", directory);
  } catch (const std::exception& error) {  // of std::filesystem and the JSON library
    return failure(ErrorCode::kIo, "{}: {}", directory, error.what());
  }
}

}  // namespace duet::runner
