// Reads the tokenizer of a Hugging Face Marian directory (OPUS-MT on the hub) into the blobs of a program
// file.
#pragma once

#include <cstdint>
#include <string>

#include "memory/error.h"
#include "tokenizer/tokenizer.h"

namespace duet::tokenizer {

struct TokenizerFiles {
  std::string source_spm;
  std::string target_spm;
  std::string source_vocabulary;  // a Vocabulary section
  std::string target_vocabulary;  // empty: shared
  std::string source_language;    // as in tokenizer_config.json; empty if it says nothing
  std::string target_language;

  // Views of the strings above.
  TokenizerBlobs blobs() const;
};

// Reads source.spm, target.spm, vocab.json, tokenizer_config.json (may be absent) and, if that says
// `separate_vocabs`, target_vocab.json. The sizes are the model's embedding rows: the ids of each side must
// be 0 .. size - 1, each once. Errors name the file, the entry, its value and what was expected: kIo,
// kBadInput, kUnsupported.
Result<TokenizerFiles> read_huggingface_tokenizer(const std::string& directory,
                                                  uint32_t source_vocabulary_size,
                                                  uint32_t target_vocabulary_size);

}  // namespace duet::tokenizer
