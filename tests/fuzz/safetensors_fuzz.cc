#include "model/importers/safetensors.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto tensors = duet::model::parse_safetensors("fuzz", duet::fuzz::bytes_of(data, size));
  if (!tensors) return 0;
  for (const auto& [name, tensor] : *tensors) (void)duet::model::to_finite_floats(tensor, "fuzz", name);
  return 0;
}
