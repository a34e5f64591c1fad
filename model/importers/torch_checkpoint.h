// Reader of PyTorch checkpoints, pytorch_model.bin: a state dict of dense tensors in either form of
// torch.save.
//   since torch 1.6   a zip archive of data.pkl and a stored entry for each storage
//   before            pickles in a row: magic number, protocol version 1001, system, state dict, storage
//   keys;
//                     then for each key i64 element count and raw elements
// A pickle is read as data (unpickler.h): nothing in a file is ever executed.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/error.h"
#include "memory/mapped_file.h"
#include "model/importers/stored_tensor.h"

namespace duet::model {

struct TorchCheckpoint {
  StoredTensors tensors;  // views of `owned`, or of the file; tied tensors are views of the same bytes
  std::vector<std::unique_ptr<std::byte[]>> owned;
  bool views_file = false;  // false: the file's bytes are not needed any more
};

// The tensors of a file's bytes; `path` is for messages. Storages in a zip archive are copied, each once,
// which also compares their checksums; a tensor that is not contiguous is gathered into a copy. Hence peak
// memory: the weights once, as they are stored (none of them for the older form). At most 8 times the file's
// size in tensors that share storages is accepted. Errors: kBadInput; kUnsupported for what is no state dict
// and for opcodes, names, element types or compression that none needs.
Result<TorchCheckpoint> parse_torch_checkpoint(const std::string& path, std::span<const std::byte> file);

// A checkpoint and the mapped file behind it. Movable.
class TorchCheckpointFile {
 public:
  static Result<TorchCheckpointFile> open(const std::string& path);

  const StoredTensors& tensors() const { return checkpoint_.tensors; }  // valid as long as this object

 private:
  std::optional<memory::MappedFile> file_;
  TorchCheckpoint checkpoint_;
};

}  // namespace duet::model
