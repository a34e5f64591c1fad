// Weights by name, and the tables that a checkpoint may leave out.
#include "model/importers/checkpoint.h"

#include <cmath>

namespace duet::model {

MarianCheckpoint::MarianCheckpoint(MarianConfig config, MarianTables tables, std::string path,
                                   StoredTensors tensors, std::shared_ptr<const void> owner)
    : config_(std::move(config)),
      tables_(std::move(tables)),
      path_(std::move(path)),
      tensors_(std::move(tensors)),
      owner_(std::move(owner)) {}

Result<std::vector<float>> MarianCheckpoint::tensor(std::string_view name) const {
  auto place = tensors_.find(name);
  if (place == tensors_.end()) return failure(ErrorCode::kUsage, "{}: there is no tensor {}", path_, name);
  return to_finite_floats(place->second, path_, name);
}

Result<LinearWeights> MarianCheckpoint::linear(std::string_view module) const {
  LinearWeights layer;
  std::string name = fmt::format("{}.weight", module);
  DUET_ASSIGN(layer.weight, tensor(name));
  DUET_ASSIGN(layer.bias, tensor(fmt::format("{}.bias", module)));
  const std::vector<uint64_t>& shape = tensors_.find(name)->second.shape;
  if (shape.size() != 2) return failure(ErrorCode::kUsage, "{}: {} is not a linear layer", path_, module);
  layer.outputs = shape[0];
  layer.inputs = shape[1];
  return layer;
}

Result<NormWeights> MarianCheckpoint::norm(std::string_view module) const {
  NormWeights layer;
  DUET_ASSIGN(layer.gamma, tensor(fmt::format("{}.weight", module)));
  DUET_ASSIGN(layer.beta, tensor(fmt::format("{}.bias", module)));
  return layer;
}

Result<std::vector<float>> MarianCheckpoint::final_logits_bias() const {
  if (tables_.final_logits_bias.empty()) return std::vector<float>(config_.decoder_vocabulary_size, 0.0f);
  return tensor(tables_.final_logits_bias);
}

Result<std::vector<float>> MarianCheckpoint::positions(const std::string& name) const {
  if (name.empty()) return sinusoidal_positions(config_.max_position_embeddings, config_.d_model);
  return tensor(name);
}

std::vector<float> sinusoidal_positions(uint64_t positions, uint64_t d_model) {
  DUET_CHECK(d_model % 2 == 0);
  uint64_t half = d_model / 2;
  std::vector<double> period(half);  // angle = position / period
  for (uint64_t c = 0; c < half; ++c)
    period[c] = std::pow(10000.0, static_cast<double>(2 * c) / static_cast<double>(d_model));
  std::vector<float> table(positions * d_model);
  for (uint64_t p = 0; p < positions; ++p)
    for (uint64_t c = 0; c < half; ++c) {
      double angle = static_cast<double>(p) / period[c];
      table[p * d_model + c] = static_cast<float>(std::sin(angle));
      table[p * d_model + half + c] = static_cast<float>(std::cos(angle));
    }
  return table;
}

}  // namespace duet::model
