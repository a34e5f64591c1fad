// pytorch_model.bin: zip archives, the older form, and bare pickles.
#include "model/importers/torch_checkpoint.h"
#include "model/importers/unpickler.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto bytes = duet::fuzz::bytes_of(data, size);
  (void)duet::model::unpickle("fuzz", bytes);
  auto checkpoint = duet::model::parse_torch_checkpoint("fuzz", bytes);
  if (!checkpoint) return 0;
  for (const auto& [name, tensor] : checkpoint->tensors)
    (void)duet::model::to_finite_floats(tensor, "fuzz", name);
  return 0;
}
