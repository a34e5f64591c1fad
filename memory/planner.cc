#include "memory/planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace duet::memory {
namespace {

constexpr uint64_t kMostBytes = std::numeric_limits<uint64_t>::max() / kBufferAlignment * kBufferAlignment;

// What the search of step 5 may cost, in placed buffers looked at: about a millisecond. Counted, not timed,
// so that a plan is the same on every machine.
constexpr uint64_t kSearchWork = 500'000;

// Lists of rivals are kept when a buffer has at most so many on average; sorting longer ones costs more than
// walking over everything placed.
constexpr size_t kMostRivals = 48;

// Greedy offset calculation with a short search for a better order.
//
//  1. Two buffers are rivals when they are live in one step. Rivals must not share a byte, all others may.
//  2. The lower bound is the largest sum of sizes live in one step.
//  3. To place the buffers in a given order: each goes to the lowest gap that its already placed rivals
//  leave.
//     The arena is as large as the highest end. A placement is given up at the first buffer that would end at
//     or above the best arena so far.
//  4. The orders tried: largest first, largest area (bytes x steps) first, longest-lived first, earliest
//  first,
//     last to die first. Programs of transformers end with the first order: it reaches the lower bound.
//  5. Then the order "largest first" is repaired: the buffer at which the placement was given up moves to a
//     pseudo-random earlier place in the order, and the placement is tried again. A buffer that is hard to
//     place so becomes one that is placed early, when there is still room.
//  6. Stop at the lower bound, since no plan is smaller, or when the search has used up its work.
//
// The pseudo-random sequence has a fixed seed: equal requests give equal plans.
class Planner {
 public:
  Planner(std::span<const BufferRequest> requests, uint64_t lower_bound) : lower_bound_(lower_bound) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const BufferRequest& r = requests[i];
      if (r.bytes > 0) buffers_.push_back({aligned(r.bytes), r.first, r.last, i});
    }
    offsets_.resize(buffers_.size());
    list_rivals();
  }

  void run() {
    if (buffers_.empty()) return;
    auto bytes = [](const Buffer& b) { return static_cast<double>(b.bytes); };
    auto steps = [](const Buffer& b) {
      return static_cast<double>(b.last) - static_cast<double>(b.first) + 1;
    };
    Order largest_first = order_by(bytes);
    bool done = reaches_bound(largest_first) ||
                reaches_bound(order_by([&](const Buffer& b) { return bytes(b) * steps(b); })) ||
                reaches_bound(order_by(steps)) ||
                reaches_bound(order_by([](const Buffer& b) { return -static_cast<double>(b.first); })) ||
                reaches_bound(order_by([](const Buffer& b) { return static_cast<double>(b.last); }));
    if (!done) repair(std::move(largest_first));
  }

  void write(ArenaPlan& plan) const {
    if (buffers_.empty()) return;
    plan.arena_bytes = best_arena_;
    for (size_t i = 0; i < buffers_.size(); ++i) plan.offsets[buffers_[i].request] = best_offsets_[i];
  }

 private:
  struct Buffer {
    uint64_t bytes;  // aligned
    int first, last;
    size_t request;
  };
  struct Placed {
    uint64_t begin, end;
    int first, last;
  };
  using Order = std::vector<uint32_t>;          // indices of buffers_
  using Range = std::pair<uint64_t, uint64_t>;  // addresses [begin, end)

  // Highest key first; equal ones in program order.
  template <class Key>
  Order order_by(Key key) const {
    Order order(buffers_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](uint32_t i) { return key(buffers_[i]); });
    return order;
  }

  void list_rivals() {
    Order by_first = order_by([](const Buffer& b) { return -static_cast<double>(b.first); });
    std::vector<std::vector<uint32_t>> rivals(buffers_.size());
    size_t pairs = 0;
    for (size_t k = 0; k < by_first.size(); ++k) {
      for (size_t m = k + 1; m < by_first.size(); ++m) {
        if (buffers_[by_first[m]].first > buffers_[by_first[k]].last) break;
        rivals[by_first[k]].push_back(by_first[m]);
        rivals[by_first[m]].push_back(by_first[k]);
        if (++pairs > kMostRivals * buffers_.size() / 2) return;  // rivals_ stays empty: walk over all
      }
    }
    rivals_ = std::move(rivals);
  }

  // The lowest offset at which a buffer shares no byte with a placed rival.
  uint64_t lowest_gap(uint32_t buffer) {
    return rivals_.empty() ? lowest_gap_by_all(buffers_[buffer]) : lowest_gap_by_rivals(buffer);
  }

  uint64_t lowest_gap_by_rivals(uint32_t buffer) {
    found_.clear();
    for (uint32_t r : rivals_[buffer])
      if (is_placed_[r]) found_.emplace_back(offsets_[r], offsets_[r] + buffers_[r].bytes);
    std::ranges::sort(found_);
    work_ += rivals_[buffer].size() + 1;
    uint64_t at = 0;
    for (auto [begin, end] : found_) {
      if (begin >= at + buffers_[buffer].bytes) break;
      at = std::max(at, end);
    }
    return at;
  }

  uint64_t lowest_gap_by_all(const Buffer& b) {
    uint64_t at = 0;
    for (const Placed& p : placed_) {
      ++work_;
      if ((p.first > b.last) | (b.first > p.last)) continue;  // | : one branch, well predicted
      if (p.begin >= at + b.bytes) break;
      at = std::max(at, p.end);
    }
    ++work_;
    return at;
  }

  void add_placed(uint32_t buffer, uint64_t offset) {
    offsets_[buffer] = offset;
    if (!rivals_.empty()) {
      is_placed_[buffer] = true;
      return;
    }
    const Buffer& b = buffers_[buffer];
    placed_.insert(std::ranges::upper_bound(placed_, offset, {}, &Placed::begin),
                   {offset, offset + b.bytes, b.first, b.last});
  }

  // Places in the given order. Returns order.size() after a new best plan, else the position of the buffer at
  // which it gave up.
  size_t place(const Order& order) {
    placed_.clear();
    is_placed_.assign(buffers_.size(), false);
    uint64_t arena = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      uint64_t bytes = buffers_[order[k]].bytes, at = lowest_gap(order[k]);
      if (at + bytes >= best_arena_) return k;
      add_placed(order[k], at);
      arena = std::max(arena, at + bytes);
    }
    best_arena_ = arena;
    best_offsets_ = offsets_;
    return order.size();
  }

  bool reaches_bound(const Order& order) {
    place(order);
    return best_arena_ == lower_bound_;
  }

  void repair(Order order) {
    uint64_t random = 0x9e3779b97f4a7c15;  // any seed but zero; xorshift64 (Marsaglia 2003)
    for (work_ = 0; work_ < kSearchWork;) {
      size_t stuck = place(order);
      if (best_arena_ == lower_bound_) return;
      if (stuck == order.size()) continue;  // a new best: the next try finds what stands highest in it
      DUET_CHECK(stuck > 0);                // a single buffer is never above the lower bound
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      auto to = static_cast<ptrdiff_t>(random % stuck), from = static_cast<ptrdiff_t>(stuck);
      std::rotate(order.begin() + to, order.begin() + from, order.begin() + from + 1);
    }
  }

  const uint64_t lower_bound_;
  std::vector<Buffer> buffers_;                // without the empty ones
  std::vector<std::vector<uint32_t>> rivals_;  // by buffer; empty when there are too many to list
  std::vector<uint64_t> best_offsets_;
  uint64_t best_arena_ = std::numeric_limits<uint64_t>::max();
  uint64_t work_ = 0;

  // Of one placement.
  std::vector<uint64_t> offsets_;
  std::vector<char> is_placed_;  // with rivals_
  std::vector<Range> found_;     // with rivals_: the placed ones of a buffer
  std::vector<Placed> placed_;   // without: everything placed, by address
};

// The largest sum of sizes live in one step, from the changes at the beginnings and ends of lifetimes.
uint64_t lower_bound(std::span<const BufferRequest> requests) {
  struct Change {
    int64_t step;
    bool starts;  // at the same step ends come first
    uint64_t bytes;
  };
  std::vector<Change> changes;
  changes.reserve(2 * requests.size());
  for (const auto& r : requests) {
    changes.push_back({r.first, true, aligned(r.bytes)});
    changes.push_back({int64_t{r.last} + 1, false, aligned(r.bytes)});
  }
  std::ranges::sort(changes, {}, [](const Change& c) { return std::pair(c.step, c.starts); });
  uint64_t live = 0, most = 0;
  for (const Change& c : changes) {
    live = c.starts ? live + c.bytes : live - c.bytes;
    most = std::max(most, live);
  }
  return most;
}

}  // namespace

Result<ArenaPlan> plan_arena(std::span<const BufferRequest> requests) {
  ArenaPlan plan;
  for (const auto& r : requests) {
    if (r.first > r.last)
      return failure(ErrorCode::kBadInput, "buffer {}: its first step {} is after its last step {}", r.name,
                     r.first, r.last);
    if (r.bytes > kMostBytes || aligned(r.bytes) > kMostBytes - plan.naive_bytes)
      return failure(ErrorCode::kOutOfMemory,
                     "buffer {}: {} bytes, after {} bytes of other buffers, are more than 64 bits can count",
                     r.name, r.bytes, plan.naive_bytes);
    plan.naive_bytes += aligned(r.bytes);
  }
  plan.offsets.assign(requests.size(), 0);
  plan.lower_bound_bytes = lower_bound(requests);
  Planner planner(requests, plan.lower_bound_bytes);
  planner.run();
  planner.write(plan);
  return plan;
}

std::optional<Overlap> find_overlap(std::span<const BufferRequest> requests, const ArenaPlan& plan) {
  DUET_CHECK(plan.offsets.size() == requests.size());
  for (size_t a = 0; a < requests.size(); ++a) {
    for (size_t b = a + 1; b < requests.size(); ++b) {
      const BufferRequest &x = requests[a], &y = requests[b];
      if (x.bytes == 0 || y.bytes == 0) continue;
      bool same_time = x.first <= y.last && y.first <= x.last;
      uint64_t x_begin = plan.offsets[a], y_begin = plan.offsets[b];
      // Begins inside: written without sums, which could overflow for a plan that is wrong.
      bool same_place = x_begin <= y_begin ? y_begin - x_begin < x.bytes : x_begin - y_begin < y.bytes;
      if (same_time && same_place) return Overlap{a, b};
    }
  }
  return std::nullopt;
}

}  // namespace duet::memory
