// Importer of Hugging Face Marian directories (OPUS-MT models of the hub): config.json,
// generation_config.json and model.safetensors, or else pytorch_model.bin -> MarianCheckpoint. Tied weights
// are resolved as transformers 5.23.0 resolves them.
#pragma once

#include <string>

#include "memory/error.h"
#include "model/importers/checkpoint.h"

namespace duet::model {

// Errors: those of read_huggingface_config(), parse_safetensors() and parse_torch_checkpoint(); kBadInput for
// a weight that is missing, superfluous or of another shape than the configuration says; kUnsupported for
// weights in another file format or element type.
Result<MarianCheckpoint> import_huggingface_marian(const std::string& directory);

}  // namespace duet::model
