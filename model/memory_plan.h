// Where every tensor of every method lies: plan_memory() takes the lifetimes of a program's values under a
// session's limits and places them.
//  - Inputs and outputs of a method lie in the io arena for the whole call; methods overlay each other.
//  - Shared buffers have one place in the shared arena, the same for all methods.
//  - Everything else, kernel scratch included, lies in the workspace, which all methods overlay. A result
//  that may be
//    computed in place takes over its operand's memory: the two count as one buffer.
#pragma once

#include <string>
#include <vector>

#include "memory/planner.h"
#include "memory/shared_memory_manager.h"
#include "model/program.h"

namespace duet::model {

struct BufferPlan {
  std::string name;
  memory::ArenaId arena = memory::ArenaId::kWorkspace;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  int first = 0;  // first and last operator that the buffer is live in
  int last = 0;
};

struct Place {
  memory::ArenaId arena = memory::ArenaId::kWorkspace;
  uint64_t offset = 0;
};

struct MethodPlan {
  std::string name;
  int steps = 0;
  // Of the workspace:
  uint64_t arena_bytes = 0;
  uint64_t naive_bytes = 0;        // sum of all buffers
  uint64_t lower_bound_bytes = 0;  // most bytes live in one step
  uint64_t io_bytes = 0;
  uint64_t shared_bytes = 0;        // of the shared buffers that the method uses
  std::vector<BufferPlan> buffers;  // workspace, then io, then shared
  std::vector<Place> values;        // per value of the method
  std::vector<uint64_t> scratch;    // per operator: offset in the workspace
};

struct MemoryPlan {
  std::vector<int64_t> symbols;  // per symbol of the program; dynamic ones at their maximum
  int threads = 1;
  uint64_t workspace_bytes = 0;
  uint64_t shared_bytes = 0;
  uint64_t io_bytes = 0;
  uint64_t total_bytes() const { return workspace_bytes + shared_bytes + io_bytes; }
  std::vector<uint64_t> shared_offsets;  // per shared buffer
  std::vector<MethodPlan> methods;
};

inline constexpr int kMaxThreads = 256;

// Errors: kUsage for limits out of range; kBadInput for sizes that overflow.
Result<MemoryPlan> plan_memory(const ProgramDefinition& definition, const Limits& limits, int threads);

}  // namespace duet::model
