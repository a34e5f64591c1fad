// The weights of a Hugging Face Marian directory, checked by name and shape, with tied tables resolved.
#include "model/importers/huggingface_marian.h"

#include <cstring>
#include <filesystem>
#include <span>

#include "model/importers/huggingface_config.h"
#include "model/importers/json_file.h"
#include "model/importers/safetensors.h"
#include "model/importers/torch_checkpoint.h"

namespace duet::model {
namespace {

constexpr const char* kShared = "model.shared.weight";
constexpr const char* kEncoderEmbedding = "model.encoder.embed_tokens.weight";
constexpr const char* kDecoderEmbedding = "model.decoder.embed_tokens.weight";
constexpr const char* kOutput = "lm_head.weight";
constexpr const char* kEncoderPositions = "model.encoder.embed_positions.weight";
constexpr const char* kDecoderPositions = "model.decoder.embed_positions.weight";
constexpr const char* kLogitsBias = "final_logits_bias";

struct ExpectedTensor {
  std::vector<uint64_t> shape;
  bool required = true;
};

using ExpectedTensors = std::map<std::string, ExpectedTensor, std::less<>>;

void expect_linear(ExpectedTensors& expected, const std::string& module, uint64_t outputs, uint64_t inputs) {
  expected[module + ".weight"] = {{outputs, inputs}};
  expected[module + ".bias"] = {{outputs}};
}

void expect_norm(ExpectedTensors& expected, const std::string& module, uint64_t d_model) {
  expected[module + ".weight"] = {{d_model}};
  expected[module + ".bias"] = {{d_model}};
}

void expect_layer(ExpectedTensors& expected, const std::string& layer, uint64_t d_model, uint64_t ffn_dim,
                  std::span<const char* const> attentions) {
  for (const char* attention : attentions) {
    for (const char* part : {"q_proj", "k_proj", "v_proj", "out_proj"})
      expect_linear(expected, fmt::format("{}.{}.{}", layer, attention, part), d_model, d_model);
    expect_norm(expected, fmt::format("{}.{}_layer_norm", layer, attention), d_model);
  }
  expect_linear(expected, layer + ".fc1", ffn_dim, d_model);
  expect_linear(expected, layer + ".fc2", d_model, ffn_dim);
  expect_norm(expected, layer + ".final_layer_norm", d_model);
}

// Every tensor that a file of this configuration may hold. Tables that may be tied or computed are not
// required one by one: resolve_embeddings() says what is missing.
ExpectedTensors expected_tensors(const MarianConfig& config) {
  constexpr const char* kAttentions[] = {"self_attn", "encoder_attn"};
  ExpectedTensors expected;
  uint64_t d_model = config.d_model;
  for (uint32_t i = 0; i < config.encoder_layers; ++i)
    expect_layer(expected, fmt::format("model.encoder.layers.{}", i), d_model, config.encoder_ffn_dim,
                 std::span(kAttentions).first(1));
  for (uint32_t i = 0; i < config.decoder_layers; ++i)
    expect_layer(expected, fmt::format("model.decoder.layers.{}", i), d_model, config.decoder_ffn_dim,
                 kAttentions);
  if (config.share_encoder_decoder_embeddings) expected[kShared] = {{config.vocabulary_size, d_model}, false};
  expected[kEncoderEmbedding] = {{config.vocabulary_size, d_model}, false};
  expected[kDecoderEmbedding] = {{config.decoder_vocabulary_size, d_model}, false};
  expected[kOutput] = {{config.decoder_vocabulary_size, d_model}, false};
  expected[kEncoderPositions] = {{config.max_position_embeddings, d_model}, false};
  expected[kDecoderPositions] = {{config.max_position_embeddings, d_model}, false};
  expected[kLogitsBias] = {{1, config.decoder_vocabulary_size}, false};
  return expected;
}

Status check_tensors(const std::string& path, const StoredTensors& tensors, const ExpectedTensors& expected) {
  for (const auto& [name, wanted] : expected)
    if (wanted.required && !tensors.contains(name))
      return failure(ErrorCode::kBadInput, "{}: tensor {} is missing, expected shape {}", path, name,
                     describe_shape(wanted.shape));
  for (const auto& [name, tensor] : tensors) {
    auto place = expected.find(name);
    if (place == expected.end())
      return failure(ErrorCode::kBadInput,
                     "{}: tensor {} of shape {} has no place in a Marian model of this config.json", path,
                     in_quotes(name), describe_shape(tensor.shape));
    if (tensor.shape != place->second.shape)
      return failure(ErrorCode::kBadInput, "{}: tensor {} has shape {}, expected {}", path, name,
                     describe_shape(tensor.shape), describe_shape(place->second.shape));
    if (tensor.type != StoredType::kF32 && tensor.type != StoredType::kF16 &&
        tensor.type != StoredType::kBF16)
      return failure(ErrorCode::kUnsupported, "{}: tensor {} has dtype {}, expected F32, F16 or BF16", path,
                     name, name_of(tensor.type));
  }
  return {};
}

bool same_bits(const StoredTensor& a, const StoredTensor& b) {
  return a.type == b.type && a.bytes.size() == b.bytes.size() &&
         std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

// Parameters of the reference model -> the stored tensor that each ends up with.
class TyingRules {
 public:
  TyingRules(const StoredTensors& tensors, std::initializer_list<const char*> parameters)
      : tensors_(tensors) {
    for (const char* name : parameters)
      if (tensors.contains(name)) source_[name] = name;
  }

  // PreTrainedModel.tie_weights(): `target` takes `source`'s table, unless the file holds both with different
  // values. Where the file holds only the target, it is the source that takes the target's.
  void tie(const char* target, const char* source) {
    bool has_source = source_.contains(source), has_target = source_.contains(target);
    if (has_source && has_target) {
      if (same_bits(stored(source), stored(target))) source_[target] = source_[source];
    } else if (has_source) {
      source_[target] = source_[source];
    } else if (has_target) {
      source_[source] = source_[target];
    }
  }

  // The stored tensor's name; null when nothing was found for the parameter.
  const std::string* find(const char* parameter) const {
    auto place = source_.find(parameter);
    return place == source_.end() ? nullptr : &place->second;
  }

 private:
  const StoredTensor& stored(const char* parameter) const {
    return tensors_.find(source_.find(parameter)->second)->second;
  }

  const StoredTensors& tensors_;
  std::map<std::string, std::string, std::less<>> source_;
};

// Which tables count for the encoder's input, the decoder's input and the output layer.
Status resolve_embeddings(const std::string& path, const MarianConfig& config, const StoredTensors& tensors,
                          MarianTables& tables) {
  TyingRules rules(tensors, {kShared, kEncoderEmbedding, kDecoderEmbedding, kOutput});
  if (config.tie_word_embeddings && config.share_encoder_decoder_embeddings) {
    // The reference's order. A pass over the pairs leaves unresolved only those before the first table that
    // exists.
    for (int pass = 0; pass < 2; ++pass)
      for (const char* target : {kOutput, kDecoderEmbedding, kEncoderEmbedding}) rules.tie(target, kShared);
  } else if (config.tie_word_embeddings) {
    rules.tie(kOutput, kDecoderEmbedding);
  } else if (config.share_encoder_decoder_embeddings && tensors.contains(kShared)) {
    // Releases before 5.0 tied both inputs to model.shared here and stored it alone; 5.x stores a table for
    // each side.
    for (const char* target : {kDecoderEmbedding, kEncoderEmbedding}) rules.tie(target, kShared);
  }
  struct Part {
    const char* parameter;
    std::string MarianTables::*table;
    uint64_t rows;
  };
  for (const Part& part :
       {Part{kEncoderEmbedding, &MarianTables::encoder_embedding, config.vocabulary_size},
        Part{kDecoderEmbedding, &MarianTables::decoder_embedding, config.decoder_vocabulary_size},
        Part{kOutput, &MarianTables::output_weight, config.decoder_vocabulary_size}}) {
    const std::string* name = rules.find(part.parameter);
    if (!name)
      return failure(ErrorCode::kBadInput,
                     "{}: tensor {} is missing, expected shape [{}, {}] (tie_word_embeddings {}, "
                     "share_encoder_decoder_embeddings {}: no other table stands in for it)",
                     path, part.parameter, part.rows, config.d_model, config.tie_word_embeddings,
                     config.share_encoder_decoder_embeddings);
    tables.*part.table = *name;
  }
  return {};
}

// Tables with the same bits are one, though the file may hold copies.
void merge_copies(const StoredTensors& tensors, MarianTables& tables) {
  auto merge = [&](std::string& name, const std::string& earlier) {
    if (name.empty() || earlier.empty() || name == earlier) return;
    const StoredTensor &a = tensors.find(name)->second, &b = tensors.find(earlier)->second;
    if (a.shape == b.shape && same_bits(a, b)) name = earlier;
  };
  merge(tables.decoder_embedding, tables.encoder_embedding);
  merge(tables.output_weight, tables.decoder_embedding);
  merge(tables.output_weight, tables.encoder_embedding);
  merge(tables.decoder_positions, tables.encoder_positions);
}

struct Weights {
  std::string path;
  StoredTensors tensors;
  std::shared_ptr<const void> owner;  // of the tensors' bytes
};

template <class File>
Result<Weights> open_weights(std::string path) {
  DUET_ASSIGN(File opened, File::open(path));
  auto file = std::make_shared<const File>(std::move(opened));
  return Weights{std::move(path), file->tensors(), file};
}

// Explains a directory without weights that can be read.
tl::unexpected<Error> no_weights(const std::string& directory) {
  std::error_code ignored;
  for (const char* name :
       {"model.safetensors.index.json", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"})
    if (std::filesystem::exists(directory + "/" + name, ignored))
      return failure(ErrorCode::kUnsupported,
                     "{}/{}: weights in this form are not read, expected one model.safetensors or "
                     "pytorch_model.bin: save "
                     "the model with transformers, MarianMTModel.from_pretrained(...).save_pretrained(...)",
                     directory, name);
  return failure(ErrorCode::kIo,
                 "{}/model.safetensors: there is no such file, nor pytorch_model.bin beside it", directory);
}

Result<Weights> find_weights(const std::string& directory) {
  std::error_code ignored;
  std::string safetensors = directory + "/model.safetensors", torch = directory + "/pytorch_model.bin";
  if (std::filesystem::exists(safetensors, ignored)) return open_weights<SafetensorsFile>(safetensors);
  if (std::filesystem::exists(torch, ignored)) return open_weights<TorchCheckpointFile>(torch);
  return no_weights(directory);
}

}  // namespace

Result<MarianCheckpoint> import_huggingface_marian(const std::string& directory) {
  DUET_ASSIGN(MarianConfig config, read_huggingface_config(directory));
  DUET_ASSIGN(Weights weights, find_weights(directory));
  const std::string& path = weights.path;
  const StoredTensors& tensors = weights.tensors;

  DUET_TRY(check_tensors(path, tensors, expected_tensors(config)));
  MarianTables tables;
  DUET_TRY(resolve_embeddings(path, config, tensors, tables));
  if (tensors.contains(kEncoderPositions)) tables.encoder_positions = kEncoderPositions;
  if (tensors.contains(kDecoderPositions)) tables.decoder_positions = kDecoderPositions;
  if (tensors.contains(kLogitsBias)) tables.final_logits_bias = kLogitsBias;
  merge_copies(tensors, tables);
  return MarianCheckpoint(std::move(config), std::move(tables), std::move(weights.path),
                          std::move(weights.tensors), std::move(weights.owner));
}

}  // namespace duet::model
