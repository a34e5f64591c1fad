// What happens when somebody cuts a file short that this process has mapped: its pages behind the new end
// raise SIGBUS, which ends a process. With the handler installed, the lost pages of a guarded mapping read as
// zeros instead, the guard remembers it, and whoever computed with them finds out before he believes his
// results.
//
//  - The handler walks a list of nodes that are never freed, only used again; it takes no lock and allocates
//    nothing.
//  - A fault anywhere else goes to the handler that was there before.
#pragma once

#include <cstddef>

namespace duet::memory {

// For the process; once is enough. A program that uses Duet as a library decides itself: without it a file
// that shrinks while it is mapped ends the process.
void survive_shrinking_files();

// Guards a mapping as long as it lives. Allocates when more mappings are guarded than ever before.
class MappingGuard {
 public:
  MappingGuard();  // guards nothing yet
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;
  ~MappingGuard();

  // REQUIRES: `data` is page-aligned and stays mapped until release().
  void watch(const void* data, size_t bytes) noexcept;
  void release() noexcept;  // before it is unmapped
  bool faulted() const noexcept;

 private:
  struct Node;
  friend struct GuardList;
  Node* node_;
};

}  // namespace duet::memory
