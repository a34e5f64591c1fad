// Files that are read or written as a whole: tensors and kept state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/error.h"

namespace duet::runner {

// A regular file that is open for reading, from its beginning on. Movable.
class InputFile {
 public:
  // Errors: kIo when it cannot be opened or is no regular file.
  static Result<InputFile> open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }  // when it was opened
  uint64_t left() const { return bytes_ - read_; }
  // Fills `to` with the next bytes. Errors: kBadInput when the file ends before; kIo.
  Status read(std::span<std::byte> to);
  void rewind();

 private:
  InputFile(std::string path, int fd, uint64_t bytes) : path_(std::move(path)), fd_(fd), bytes_(bytes) {}
  std::string path_;
  int fd_;
  uint64_t bytes_;
  uint64_t read_ = 0;
};

// Writes the parts one after the other; `path` is always a whole file, the old one or the new one. Errors:
// those of memory::PartFile.
Status write_whole_file(const std::string& path, std::span<const std::span<const std::byte>> parts);

}  // namespace duet::runner
