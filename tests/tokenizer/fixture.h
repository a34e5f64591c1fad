// What the tokenizer tests share: the golden models, small random numbers and hand-made SentencePiece models.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/huggingface_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace duet::tokenizer {

struct GoldenModel {
  std::string name;
  std::string model_directory;
  std::string greedy_file;
  uint32_t source_size = 0;
  uint32_t target_size = 0;
};

// The golden models that are in this checkout.
std::vector<GoldenModel> golden_models();

// A tokenizer with the blobs that it reads in place.
struct LoadedTokenizer {
  std::unique_ptr<TokenizerFiles> files;
  std::unique_ptr<Tokenizer> tokenizer;
};
LoadedTokenizer load(std::unique_ptr<TokenizerFiles> files);
LoadedTokenizer load_golden(std::string_view name);
std::unique_ptr<TokenizerFiles> golden_files(std::string_view name);

// A SentencePiece model written by hand. Types: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte.
struct SpmPiece {
  std::string text;
  float score = -1;
  int type = 1;
};
struct SpmModel {
  std::vector<SpmPiece> pieces{{"<unk>", 0, 2}, {"\xE2\x96\x81", -3}};
  std::string character_map;  // none if empty
  int model_type = 1;         // 1 unigram, 2 BPE
  std::string extra;          // appended as it is
};
std::string serialize(const SpmModel& model);
std::string protobuf_field(int number, std::string_view bytes);

// The pieces of ids, for messages that a person can read.
std::vector<std::string> source_pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids);

std::vector<std::string> lines_of(const std::string& path);

}  // namespace duet::tokenizer
