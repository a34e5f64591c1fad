// One contiguous piece of zeroed memory: all that a session ever allocates is a few of these, at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "memory/error.h"

namespace duet::memory {

// What the machine can give to this process.
struct MachineMemory {
  uint64_t physical_bytes = 0;              // RAM of the machine
  std::optional<uint64_t> available_bytes;  // the kernel's estimate of what can be had without swapping
  std::optional<uint64_t>
      control_group_bytes;  // the tightest limit of the control groups (containers) around us

  // The most that a process can hold: more than this ends in the out-of-memory killer.
  uint64_t limit_bytes() const;
};
MachineMemory machine_memory();

// kOutOfMemory when `bytes` exceeds what the machine can ever give. `what` begins the message: "the shared
// arena".
Status check_memory(uint64_t bytes, std::string_view what);

// Anonymous private pages. Movable. Invariants:
// 1. data() is page-aligned (hence aligned to kBufferAlignment) and stays where it is when the arena is
// moved.
// 2. Every byte reads as zero until it is written; a page takes no memory until it is touched.
// 3. Zero bytes are fine: data() is then nullptr.
class Arena {
 public:
  // Errors: kOutOfMemory, with the bytes asked for and the memory that the machine has. Sizes beyond the
  // machine's memory are refused here: the kernel would grant them and kill the process later.
  static Result<Arena> create(uint64_t bytes);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Arena(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace duet::memory
