// Makes a program from a model directory: importer, Marian builder and tokenizer files put together.
#pragma once

#include <string>

#include "memory/error.h"
#include "model/marian_builder.h"

namespace duet::runner {

// Names of the program's tokenizer sections.
inline constexpr char kSourceSpm[] = "tokenizer/source.spm";
inline constexpr char kTargetSpm[] = "tokenizer/target.spm";
inline constexpr char kSourceVocabulary[] = "tokenizer/source.vocabulary";
inline constexpr char kTargetVocabulary[] = "tokenizer/target.vocabulary";

struct ConvertOptions {
  std::string name;     // empty: the directory's name
  std::string licence;  // empty: what the model card (README.md) says in its front matter
  model::MarianBuildOptions build;
};

struct ConvertReport {
  uint64_t parameters = 0;  // numbers in the checkpoint, tied tables once
  uint64_t checkpoint_bytes = 0;
  uint64_t program_bytes = 0;
  nlohmann::ordered_json constants;  // name, dtype, shape, bytes of each
};

// Reads a Hugging Face Marian directory and writes the program. Errors: of the importer, the tokenizer and
// the writer.
Result<ConvertReport> convert(const std::string& directory, const std::string& output,
                              const ConvertOptions& options);

}  // namespace duet::runner
