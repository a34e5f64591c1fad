// The tensors that an unpickled state dict describes, each a view of a storage by offset, shape and strides.
// Everything is checked against the sizes that the storages claim; their bytes are the caller's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"
#include "model/importers/stored_tensor.h"
#include "model/importers/unpickler.h"

namespace duet::model {

// Flat elements, which any number of tensors may view.
struct TorchStorage {
  std::string key;  // names its bytes in the file
  StoredType type = StoredType::kF32;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

// Element [i, j, …] is the storage's element offset + i strides[0] + j strides[1] + …; all of them lie in it.
struct TorchTensor {
  std::string name;
  size_t storage = 0;  // index
  uint64_t offset = 0;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;  // in elements
  uint64_t elements = 0;          // at most the storage's
};

struct TorchStateDict {
  std::vector<TorchStorage> storages;  // no key twice
  std::vector<TorchTensor> tensors;    // no name twice
};

// `where` begins every message. Errors: kBadInput; kUnsupported for something else than a dict of tensors,
// and for element types and layouts that are not read.
Result<TorchStateDict> read_torch_state_dict(std::string_view where, const Pickle& pickle);

}  // namespace duet::model
