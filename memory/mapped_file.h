// The bytes of a file, read-only: mapped, mapped and locked in memory, or read. Movable; they stay where they
// are as long as the object lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "memory/error.h"

namespace duet::memory {

enum class LoadMode : uint8_t {
  kMmap,   // pages come from the page cache when they are first used, and all processes share them
  kMlock,  // the same, all at once, and they stay: no later use waits for the disk
  kRead,   // a copy of this process's own: the file may change, shrink or go
};

class MappedFile {
 public:
  // Errors: kIo when the file is missing, is a directory, cannot be mapped or shrinks meanwhile; kBadInput
  // when it is empty; kOutOfMemory when the pages cannot be locked, or a copy would not fit the machine.
  static Result<MappedFile> open(const std::string& path, LoadMode mode = LoadMode::kMmap);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const;  // page-aligned
  const std::string& path() const;

  // kIo when the file is shorter than when it was mapped: what lies behind its end reads as zeros (or raises
  // SIGBUS, see memory/mapping_guard.h), so that nothing computed since can be trusted. A system call.
  Status check_whole() const;

 private:
  struct Mapping;
  explicit MappedFile(std::unique_ptr<Mapping> mapping);

  std::unique_ptr<Mapping> mapping_;
  friend Status check_mapped_files();
};

// check_whole() of all files that are mapped in this process: for work that reads several and then writes.
Status check_mapped_files();

// Reads a whole file that is expected to be small. Errors: kIo; kBadInput when it is larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

}  // namespace duet::memory
