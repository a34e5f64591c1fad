#include "memory/shared_memory_manager.h"

#include <algorithm>
#include <cstring>

#include "memory/log.h"

namespace duet::memory {
namespace {

void log_methods(std::span<const MethodMemory> methods, uint64_t workspace_bytes, uint64_t shared_bytes) {
  bool shared_allocated = false;
  for (const MethodMemory& m : methods) {
    const bool first = &m == methods.data();
    if (first || m.workspace_bytes > 0 || m.shared_bytes > 0)
      log(LogLevel::kInfo,
          fmt::format("{} normal buffer for method {}, memory id 0, size {}", first ? "Allocated" : "Reusing",
                      m.name, first ? workspace_bytes : m.workspace_bytes));
    if (m.shared_bytes > 0) {
      log(LogLevel::kInfo, fmt::format("{} shared buffer for method {}, memory id 1, size {}",
                                       shared_allocated ? "Reusing" : "Allocated", m.name,
                                       shared_allocated ? m.shared_bytes : shared_bytes));
      shared_allocated = true;
    }
  }
}

}  // namespace

Result<SharedMemoryManager> SharedMemoryManager::create(std::span<const MethodMemory> methods,
                                                        uint64_t shared_bytes, uint64_t io_bytes) {
  uint64_t workspace_bytes = 0;
  for (const auto& m : methods) {
    DUET_CHECK(m.shared_bytes <= shared_bytes);
    workspace_bytes = std::max(workspace_bytes, m.workspace_bytes);
  }
  // Each arena may fit while all three do not.
  uint64_t total = workspace_bytes;
  for (uint64_t bytes : {shared_bytes, io_bytes})
    total = bytes > UINT64_MAX - total ? UINT64_MAX : total + bytes;
  DUET_TRY(check_memory(total, fmt::format("the session (workspace {}, shared {}, io {} bytes)",
                                           workspace_bytes, shared_bytes, io_bytes)));
  SharedMemoryManager manager;
  DUET_ASSIGN(manager.arenas_[0], Arena::create(workspace_bytes));
  DUET_ASSIGN(manager.arenas_[1], Arena::create(shared_bytes));
  DUET_ASSIGN(manager.arenas_[2], Arena::create(io_bytes));
  log_methods(methods, workspace_bytes, shared_bytes);
  log(LogLevel::kDebug, fmt::format("Allocated io buffer, memory id 2, size {}", io_bytes));
  return manager;
}

uint64_t SharedMemoryManager::total_bytes() const {
  uint64_t total = 0;
  for (const auto& arena : arenas_) total += arena.bytes();
  return total;
}

void SharedMemoryManager::poison_workspace() {
  constexpr uint32_t kNan = 0x7fc00000;
  Arena& workspace = arenas_[static_cast<size_t>(ArenaId::kWorkspace)];
  for (uint64_t at = 0; at < workspace.bytes(); at += sizeof kNan)
    std::memcpy(workspace.data() + at, &kNan, std::min<uint64_t>(sizeof kNan, workspace.bytes() - at));
}

}  // namespace duet::memory
