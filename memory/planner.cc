#include "memory/planner.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace duet::memory {
namespace {

uint64_t aligned(uint64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

}  // namespace

Result<ArenaPlan> plan_arena(std::span<const BufferRequest> requests) {
  ArenaPlan plan;
  plan.offsets.assign(requests.size(), 0);
  struct Event {
    int64_t step;
    uint64_t bytes;
    bool starts;
  };
  std::vector<Event> events;
  for (const auto& r : requests) {
    if (r.first > r.last)
      return failure(ErrorCode::kBadInput, "buffer {}: its first step {} is after its last step {}", r.name,
                     r.first, r.last);
    constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max() / kBufferAlignment * kBufferAlignment;
    if (r.bytes > kMost || aligned(r.bytes) > kMost - plan.naive_bytes)
      return failure(ErrorCode::kOutOfMemory,
                     "buffer {}: {} bytes on top of {} exceed what 64 bits can count", r.name, r.bytes,
                     plan.naive_bytes);
    plan.naive_bytes += aligned(r.bytes);
    events.push_back({r.first, aligned(r.bytes), true});
    events.push_back({int64_t{r.last} + 1, aligned(r.bytes), false});
  }
  std::ranges::sort(events, [](const Event& a, const Event& b) {
    return a.step != b.step ? a.step < b.step : a.starts < b.starts;
  });
  uint64_t live = 0;
  for (const auto& e : events) {
    live = e.starts ? live + e.bytes : live - e.bytes;
    plan.lower_bound_bytes = std::max(plan.lower_bound_bytes, live);
  }
  std::vector<size_t> order(requests.size()), placed;
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });
  for (size_t i : order) {
    uint64_t size = aligned(requests[i].bytes), at = 0;
    if (size == 0) continue;
    for (size_t p : placed) {
      if (requests[p].first > requests[i].last || requests[i].first > requests[p].last) continue;
      if (plan.offsets[p] >= at + size) break;
      at = std::max(at, plan.offsets[p] + aligned(requests[p].bytes));
    }
    plan.offsets[i] = at;
    plan.arena_bytes = std::max(plan.arena_bytes, at + size);
    placed.insert(std::ranges::upper_bound(placed, at, {}, [&](size_t p) { return plan.offsets[p]; }), i);
  }
  return plan;
}

std::optional<Overlap> find_overlap(std::span<const BufferRequest> requests, const ArenaPlan& plan) {
  DUET_CHECK(plan.offsets.size() == requests.size());
  for (size_t a = 0; a < requests.size(); ++a) {
    for (size_t b = a + 1; b < requests.size(); ++b) {
      const BufferRequest &x = requests[a], &y = requests[b];
      if (x.bytes == 0 || y.bytes == 0) continue;
      bool same_time = x.first <= y.last && y.first <= x.last;
      bool same_place =
          plan.offsets[a] < plan.offsets[b] + y.bytes && plan.offsets[b] < plan.offsets[a] + x.bytes;
      if (same_time && same_place) return Overlap{a, b};
    }
  }
  return std::nullopt;
}

}  // namespace duet::memory
