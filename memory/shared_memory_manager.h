// Owns the three arenas of a session: one workspace that all methods overlay, one shared arena that keeps
// state between calls, one io arena for what the caller reads and writes. Made at load; nothing is allocated
// after it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "memory/arena.h"
#include "memory/error.h"

namespace duet::memory {

enum class ArenaId : uint8_t { kWorkspace = 0, kShared = 1, kIo = 2 };  // the "memory id" of the log lines

struct MethodMemory {
  std::string name;
  uint64_t workspace_bytes = 0;
  uint64_t shared_bytes = 0;  // what of the shared arena the method uses; 0 when none
};

// Used by one caller at a time, like the session that owns it. Movable; arenas stay where they are.
// Invariants:
// 1. arena_bytes(kWorkspace) is the largest workspace_bytes of the methods.
// 2. An arena reads as zeros until somebody writes to it.
class SharedMemoryManager {
 public:
  // Maps the arenas and logs which method uses what, in the order given:
  //   Allocated normal buffer for method NAME, memory id 0, size BYTES
  //   Allocated shared buffer for method NAME, memory id 1, size BYTES
  //   Reusing normal buffer for method NAME, memory id 0, size BYTES
  // The first method's lines say "Allocated", with the bytes mapped for all methods; a "Reusing" line gives
  // what its own method uses. A method without a workspace and without state has no lines (but the first has
  // a normal one), and one without state no shared line. The io arena is one debug line.
  // REQUIRES: no method uses more than shared_bytes of the shared arena.
  // Errors: kOutOfMemory.
  static Result<SharedMemoryManager> create(std::span<const MethodMemory> methods, uint64_t shared_bytes,
                                            uint64_t io_bytes);

  std::byte* arena(ArenaId id) { return arenas_[static_cast<size_t>(id)].data(); }
  uint64_t arena_bytes(ArenaId id) const { return arenas_[static_cast<size_t>(id)].bytes(); }
  uint64_t total_bytes() const;

  // Fills the workspace with NaNs (words 0x7fc00000): for tests that prove that no method reads what it did
  // not write.
  void poison_workspace();

 private:
  SharedMemoryManager() = default;

  std::array<Arena, 3> arenas_;  // by ArenaId
};

}  // namespace duet::memory
