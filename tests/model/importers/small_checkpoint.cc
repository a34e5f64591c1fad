#include "tests/model/importers/small_checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace duet::model {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = std::filesystem::temp_directory_path() / "duet-importers-XXXXXX";
  if (!::mkdtemp(name.data())) std::abort();
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryDirectory::write(const std::string& name, const std::string& bytes) const {
  std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

SmallTensor small_f32(std::vector<uint64_t> shape, int seed) {
  SmallTensor tensor{"F32", std::move(shape), {}};
  uint64_t count = 1;
  for (uint64_t dimension : tensor.shape) count *= dimension;
  for (uint64_t i = 0; i < count; ++i) {
    float value = static_cast<float>(seed) + static_cast<float>(i) / 1024;
    tensor.data.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return tensor;
}

std::string safetensors_bytes(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

std::string safetensors_bytes(const SmallTensors& tensors) {
  nlohmann::json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  return safetensors_bytes(header.dump(), data);
}

SmallCheckpoint::SmallCheckpoint() {
  config = nlohmann::json::parse(R"({
    "model_type": "marian", "architectures": ["MarianMTModel"], "d_model": 8, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 6, "decoder_ffn_dim": 10,
    "activation_function": "swish", "vocab_size": 12, "decoder_vocab_size": 12, "max_position_embeddings": 5,
    "scale_embedding": true, "static_position_embeddings": true, "normalize_before": false,
    "normalize_embedding": false, "add_final_layer_norm": false, "add_bias_logits": false,
    "share_encoder_decoder_embeddings": true, "tie_word_embeddings": true, "pad_token_id": 11, "eos_token_id": 0,
    "decoder_start_token_id": 11, "is_encoder_decoder": true})");
  generation = nlohmann::json::parse(R"({
    "pad_token_id": 11, "eos_token_id": 0, "decoder_start_token_id": 11, "forced_eos_token_id": 0,
    "bad_words_ids": [[11]], "max_length": 64, "num_beams": 4})");
  int seed = 0;
  auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    tensors[name] = small_f32(std::move(shape), ++seed);
  };
  auto add_layer = [&](const std::string& layer, uint64_t ffn, std::vector<std::string> attentions) {
    for (const std::string& attention : attentions) {
      for (const char* part : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
        add(layer + attention + "." + part + ".weight", {8, 8});
        add(layer + attention + "." + part + ".bias", {8});
      }
      add(layer + attention + "_layer_norm.weight", {8});
      add(layer + attention + "_layer_norm.bias", {8});
    }
    add(layer + "fc1.weight", {ffn, 8});
    add(layer + "fc1.bias", {ffn});
    add(layer + "fc2.weight", {8, ffn});
    add(layer + "fc2.bias", {8});
    add(layer + "final_layer_norm.weight", {8});
    add(layer + "final_layer_norm.bias", {8});
  };
  add_layer("model.encoder.layers.0.", 6, {"self_attn"});
  add_layer("model.decoder.layers.0.", 10, {"self_attn", "encoder_attn"});
  add_layer("model.decoder.layers.1.", 10, {"self_attn", "encoder_attn"});
  add("model.shared.weight", {12, 8});
  add("final_logits_bias", {1, 12});
}

void SmallCheckpoint::write(const TemporaryDirectory& directory) const {
  directory.write("config.json", config.dump());
  if (!generation.is_null()) directory.write("generation_config.json", generation.dump());
  directory.write("model.safetensors", safetensors_bytes(tensors));
}

void expect_error(const Error* error, ErrorCode code, const std::vector<std::string>& parts) {
  ASSERT_TRUE(error) << "expected an error with " << parts.front();
  EXPECT_EQ(static_cast<int>(error->code), static_cast<int>(code)) << error->message;
  for (const std::string& part : parts)
    EXPECT_NE(error->message.find(part), std::string::npos) << "no \"" << part << "\" in: " << error->message;
}

}  // namespace duet::model
