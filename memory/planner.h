// Places buffers with known lifetimes in one arena, so that buffers that are live in the same step never
// share a byte and the arena is small. Run at load, once per method; the executor then only adds offsets to a
// base address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/error.h"

namespace duet::memory {

inline constexpr uint64_t kBufferAlignment = 64;  // a cache line, an AVX-512 register, a row of an AMX tile
// REQUIRES: bytes + kBufferAlignment fits.
inline constexpr uint64_t aligned(uint64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

struct BufferRequest {
  std::string name;
  uint64_t bytes = 0;  // 0 is allowed: such a buffer has an offset and overlaps nothing
  int first = 0;       // live during the steps first..last, both included
  int last = 0;
};

struct ArenaPlan {
  std::vector<uint64_t> offsets;   // one per request, multiples of kBufferAlignment
  uint64_t arena_bytes = 0;        // end of the highest buffer
  uint64_t naive_bytes = 0;        // sum of the aligned sizes: what no sharing at all would take
  uint64_t lower_bound_bytes = 0;  // largest sum of the aligned sizes live in one step: no plan can take less
};

// Errors: kBadInput when a buffer ends before it begins; kOutOfMemory when the sizes add up to more than 64
// bits.
Result<ArenaPlan> plan_arena(std::span<const BufferRequest> requests);

// Two buffers that are live in the same step and share a byte. Compares all pairs and shares no code with the
// planner: the oracle of the tests, and of debug builds at load.
// REQUIRES: plan.offsets.size() == requests.size().
struct Overlap {
  size_t a, b;  // indices of requests, a < b
};
std::optional<Overlap> find_overlap(std::span<const BufferRequest> requests, const ArenaPlan& plan);

}  // namespace duet::memory
