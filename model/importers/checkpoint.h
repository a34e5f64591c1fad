// What every importer yields: a Marian configuration and its named weights, checked against each other, read
// as floats on demand. Formats end here: a builder sees nothing of the files. Importers:
// huggingface_marian.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"
#include "model/importers/stored_tensor.h"

namespace duet::model {

enum class MarianActivation : uint8_t {
  kRelu,
  kGelu,   // exact: x/2 (1 + erf(x/sqrt(2)))
  kSwish,  // x sigmoid(x)
};

enum class EarlyStopping : uint8_t {
  kHeuristic,  // false: stop when a better hypothesis is unlikely
  kFirst,      // true: stop as soon as num_beams hypotheses are complete
  kNever,      // "never": stop when no better hypothesis can come
};

// The sizes are at least 1 and at most 2^20 (layers 256), so that products of three fit 64 bits. d_model is
// even and a multiple of both head counts; every id is below decoder_vocabulary_size.
struct MarianConfig {
  uint32_t d_model = 0;
  uint32_t encoder_layers = 0;
  uint32_t decoder_layers = 0;
  uint32_t encoder_heads = 0;
  uint32_t decoder_heads = 0;
  uint32_t encoder_ffn_dim = 0;
  uint32_t decoder_ffn_dim = 0;
  uint32_t max_position_embeddings = 0;  // rows of the position tables
  uint32_t vocabulary_size = 0;          // of the source
  uint32_t decoder_vocabulary_size =
      0;  // of the target; equal to the source's when the embeddings are shared
  MarianActivation activation = MarianActivation::kGelu;
  bool scale_embedding = false;  // multiply embeddings by sqrt(d_model)
  bool tie_word_embeddings = true;
  bool share_encoder_decoder_embeddings = true;

  // Decoding.
  uint32_t pad_id = 0;
  uint32_t eos_id = 0;
  uint32_t decoder_start_id = 0;
  std::optional<uint32_t> forced_eos_id;  // the only token allowed at the last place that max_length gives
  std::vector<uint32_t> suppressed_ids;   // never generated; ascending, each once; without eos_id
  std::optional<uint32_t>
      max_length;  // tokens of the target with its start token; absent: the model says nothing
  uint32_t num_beams = 1;
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;
  bool renormalize_logits = false;  // beams: log-softmax again after ids were suppressed
};

// A linear layer: y = x weight^T + bias.
struct LinearWeights {
  uint64_t outputs = 0;
  uint64_t inputs = 0;
  std::vector<float> weight;  // [outputs, inputs]
  std::vector<float> bias;    // [outputs]
};

struct NormWeights {
  std::vector<float> gamma;  // [d_model]
  std::vector<float> beta;   // [d_model]
};

// Which stored tensor plays which part. Two parts with the same name are one table: store it once.
struct MarianTables {
  std::string encoder_embedding;  // [vocabulary_size, d_model]
  std::string decoder_embedding;  // [decoder_vocabulary_size, d_model]
  std::string output_weight;      // [decoder_vocabulary_size, d_model]
  std::string encoder_positions;  // [max_position_embeddings, d_model]; empty: sinusoidal_positions()
  std::string decoder_positions;  // likewise
  std::string final_logits_bias;  // [1, decoder_vocabulary_size]; empty: zeros
};

// Immutable; copies share the weights. Safe to read from several threads.
class MarianCheckpoint {
 public:
  // REQUIRES: `tensors` holds every weight that `config` implies under its Hugging Face name, with its shape;
  // `owner` keeps their bytes alive. `path` names the file in messages.
  MarianCheckpoint(MarianConfig config, MarianTables tables, std::string path, StoredTensors tensors,
                   std::shared_ptr<const void> owner);

  const MarianConfig& config() const { return config_; }
  const MarianTables& tables() const { return tables_; }
  const std::string& path() const { return path_; }

  // A weight by its full name ("model.shared.weight", or a name in tables()), in PyTorch's layout.
  // Errors: kUsage when there is none; kBadInput when it holds NaN or infinity.
  Result<std::vector<float>> tensor(std::string_view name) const;

  // "model.encoder.layers.0.self_attn.q_proj", "model.decoder.layers.1.fc2", ...
  Result<LinearWeights> linear(std::string_view module) const;

  // "model.decoder.layers.0.encoder_attn_layer_norm", ...
  Result<NormWeights> norm(std::string_view module) const;

  Result<std::vector<float>> encoder_embedding() const { return tensor(tables_.encoder_embedding); }
  Result<std::vector<float>> decoder_embedding() const { return tensor(tables_.decoder_embedding); }
  Result<std::vector<float>> output_weight() const { return tensor(tables_.output_weight); }
  Result<std::vector<float>> encoder_positions() const { return positions(tables_.encoder_positions); }
  Result<std::vector<float>> decoder_positions() const { return positions(tables_.decoder_positions); }
  Result<std::vector<float>> final_logits_bias() const;  // [decoder_vocabulary_size]

  bool output_is_tied() const { return tables_.output_weight == tables_.decoder_embedding; }
  bool embeddings_are_shared() const { return tables_.encoder_embedding == tables_.decoder_embedding; }
  bool positions_are_shared() const { return tables_.encoder_positions == tables_.decoder_positions; }

  // Of all stored tensors, for logs and tests.
  const StoredTensors& stored() const { return tensors_; }

 private:
  Result<std::vector<float>> positions(const std::string& name) const;

  MarianConfig config_;
  MarianTables tables_;
  std::string path_;
  StoredTensors tensors_;
  std::shared_ptr<const void> owner_;
};

// [positions, d_model]: column c of the first half is sin(p / 10000^(2c/D)), of the second half the cosine of
// the same angle; computed in double and rounded once, as transformers' MarianSinusoidalPositionalEmbedding
// does. d_model is even.
std::vector<float> sinusoidal_positions(uint64_t positions, uint64_t d_model);

}  // namespace duet::model
