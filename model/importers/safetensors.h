// Reader of safetensors files: u64 little-endian header bytes, JSON header, data to the end of the file.
//   {"__metadata__": {"format": "pt"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
//   ...}
// Everything in the header is checked before a tensor is handed out: types, shapes, sizes, ranges, overlaps,
// names. Format: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "memory/error.h"
#include "memory/mapped_file.h"
#include "model/importers/stored_tensor.h"

namespace duet::model {

// A header takes about 130 bytes a tensor; this is room for a hundred thousand.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 16 << 20;

// The tensors of a file's bytes, as views of them. `path` is for messages.
// Errors: kBadInput; kUnsupported for an element type that the format does not define.
Result<StoredTensors> parse_safetensors(const std::string& path, std::span<const std::byte> file);

// A mapped file and its tensors. Movable.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const StoredTensors& tensors() const { return tensors_; }  // views, valid as long as this object

 private:
  SafetensorsFile(memory::MappedFile file, StoredTensors tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)) {}

  memory::MappedFile file_;
  StoredTensors tensors_;
};

}  // namespace duet::model
