// A read-only memory-mapped file. Movable; the mapping lives as long as the object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/error.h"

namespace duet::memory {

class MappedFile {
 public:
  // Errors: kIo when the file is missing, is a directory or cannot be mapped; kBadInput when it is empty.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_ = nullptr;  // page-aligned
  size_t size_ = 0;
};

// Reads a whole file that is expected to be small. Errors: kIo; kBadInput when it is larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

}  // namespace duet::memory
