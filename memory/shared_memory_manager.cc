#include "memory/shared_memory_manager.h"

#include <algorithm>
#include <cstring>

#include "memory/log.h"

namespace duet::memory {
namespace {

// The method whose line says "Allocated": the first that uses the arena, else the first of all.
template <class Bytes>
size_t first_user(std::span<const MethodMemory> methods, Bytes bytes) {
  auto it = std::ranges::find_if(methods, [&](const MethodMemory& m) { return bytes(m) > 0; });
  return it == methods.end() ? 0 : static_cast<size_t>(it - methods.begin());
}

void log_methods(std::span<const MethodMemory> methods, uint64_t workspace_bytes, uint64_t shared_bytes) {
  size_t workspace_user = first_user(methods, [](const MethodMemory& m) { return m.workspace_bytes; });
  size_t shared_user = first_user(methods, [](const MethodMemory& m) { return m.shared_bytes; });
  for (size_t i = 0; i < methods.size(); ++i) {
    const MethodMemory& m = methods[i];
    if (i == workspace_user) {
      log(LogLevel::kInfo, fmt::format("Allocated normal buffer for method {}, memory id 0, size {}", m.name,
                                       workspace_bytes));
    } else if (m.workspace_bytes > 0) {
      log(LogLevel::kInfo, fmt::format("Reusing normal buffer for method {}, memory id 0, size {}", m.name,
                                       m.workspace_bytes));
    }
    if (i == shared_user && shared_bytes > 0) {
      log(LogLevel::kInfo,
          fmt::format("Allocated shared buffer for method {}, memory id 1, size {}", m.name, shared_bytes));
    } else if (m.shared_bytes > 0) {
      log(LogLevel::kInfo,
          fmt::format("Reusing shared buffer for method {}, memory id 1, size {}", m.name, m.shared_bytes));
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
