#include "fixture.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace duet::tokenizer {

std::vector<GoldenModel> golden_models() {
  const std::string golden = DUET_GOLDEN;
  std::vector<GoldenModel> models;
  for (const char* name : {"small-a", "small-b", "small-c", "tatoeba-en-fr"}) {
    GoldenModel model{name, golden + "/" + name + "/model", golden + "/" + name + "/greedy.jsonl"};
    if (model.name == "tatoeba-en-fr") model.model_directory = DUET_ASSETS "/tatoeba-en-fr";
    std::ifstream config(model.model_directory + "/config.json");
    if (!config || !std::filesystem::exists(model.greedy_file)) continue;
    auto json = nlohmann::json::parse(config);
    model.source_size = json.at("vocab_size");
    model.target_size = json.value("decoder_vocab_size", model.source_size);
    models.push_back(model);
  }
  return models;
}

std::unique_ptr<TokenizerFiles> golden_files(std::string_view name) {
  for (const GoldenModel& model : golden_models()) {
    if (model.name != name) continue;
    auto files = read_huggingface_tokenizer(model.model_directory, model.source_size, model.target_size);
    if (!files) throw std::runtime_error(files.error().message);
    return std::make_unique<TokenizerFiles>(std::move(*files));
  }
  throw std::runtime_error("no golden model " + std::string(name));
}

LoadedTokenizer load(std::unique_ptr<TokenizerFiles> files) {
  auto tokenizer = Tokenizer::create(files->blobs());
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return {std::move(files), std::make_unique<Tokenizer>(std::move(*tokenizer))};
}

LoadedTokenizer load_golden(std::string_view name) { return load(golden_files(name)); }

namespace {

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

std::string protobuf_varint(int number, uint64_t value) { return varint(number << 3) + varint(value); }

}  // namespace

std::string protobuf_field(int number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string serialize(const SpmModel& model) {
  std::string out;
  for (const SpmPiece& piece : model.pieces) {
    std::string score(4, '\0');
    std::memcpy(score.data(), &piece.score, 4);
    out += protobuf_field(
        1, protobuf_field(1, piece.text) + varint(2 << 3 | 5) + score + protobuf_varint(3, piece.type));
  }
  out += protobuf_field(2, protobuf_varint(3, model.model_type));
  out += protobuf_field(3, model.character_map.empty() ? "" : protobuf_field(2, model.character_map));
  return out + model.extra;
}

std::vector<std::string> source_pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> pieces;
  for (int32_t id : ids) pieces.emplace_back(tokenizer.source_piece(id));
  return pieces;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

}  // namespace duet::tokenizer
