// Configuration of a Hugging Face Marian directory: config.json says what the model is,
// generation_config.json how to decode with it. Semantics and defaults are those of transformers 5.23.0
// (MarianConfig, GenerationConfig).
#pragma once

#include <string>

#include "memory/error.h"
#include "model/importers/checkpoint.h"

namespace duet::model {

// Where generation_config.json exists it alone counts for decoding: config.json's decoding fields are ignored
// then, as the reference ignores them. Errors: kIo; kBadInput for a value that makes no sense; kUnsupported
// for a model or a way of decoding that Duet does not do. Every message names file, field, value and what was
// expected.
Result<MarianConfig> read_huggingface_config(const std::string& directory);

}  // namespace duet::model
