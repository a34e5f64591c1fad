// The planner against the overlap oracle, the lower bound and programs whose best plan is known.
#include "memory/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

namespace duet::memory {
namespace {

using Requests = std::vector<BufferRequest>;

ArenaPlan plan(const Requests& requests) {
  auto result = plan_arena(requests);
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return result ? *result : ArenaPlan{};
}

uint64_t aligned(uint64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// Sizes spread over magnitudes, any lifetimes.
Requests random_program(uint32_t seed, int buffers, int longest) {
  std::mt19937 random(seed);
  Requests requests;
  for (int i = 0; i < buffers; ++i) {
    int first = static_cast<int>(random() % static_cast<unsigned>(buffers));
    int length = static_cast<int>(random() % static_cast<unsigned>(longest));
    uint64_t bytes = random() >> (random() % 32);
    if (random() % 16 == 0) bytes = 0;
    requests.push_back({fmt::format("b{}", i), bytes, first, first + length});
  }
  return requests;
}

// One encoder layer after another in the operators of DESIGN: norm, q/k/v, attention, output (+ residual),
// norm, two feed-forward products. Lifetimes as a compiler of steps would give them.
Requests transformer(int layers, uint64_t tokens, uint64_t d_model, uint64_t d_ff, bool pre_norm) {
  Requests requests;
  int step = 0;
  auto add = [&](const char* name, uint64_t columns, int first) {
    requests.push_back({name, tokens * columns * 4, first, first});
    return requests.size() - 1;
  };
  auto use = [&](size_t buffer, int at) { requests[buffer].last = std::max(requests[buffer].last, at); };
  size_t x = add("embed", d_model, step);
  for (int layer = 0; layer < layers; ++layer) {
    auto op = [&](const char* name, uint64_t columns, std::initializer_list<size_t> inputs) {
      ++step;
      size_t out = add(name, columns, step);
      for (size_t input : inputs) use(input, step);
      size_t scratch = add("quantized_rows", (d_model + 3) / 4, step);
      (void)scratch;
      return out;
    };
    size_t input = pre_norm ? op("norm1", d_model, {x}) : x;
    size_t qkv = op("qkv", 3 * d_model, {input});
    size_t attended = op("attend", d_model, {qkv});
    size_t y = op("out_proj", d_model, {attended, x});
    if (!pre_norm) y = op("norm1", d_model, {y});
    size_t ff_input = pre_norm ? op("norm2", d_model, {y}) : y;
    size_t hidden = op("fc1", d_ff, {ff_input});
    size_t z = op("fc2", d_model, {hidden, y});
    x = pre_norm ? z : op("norm2", d_model, {z});
  }
  return requests;
}

TEST(Oracle, FindsAPlantedOverlap) {
  Requests requests = random_program(1, 50, 10);
  requests.push_back({"victim", 100, 5, 5});
  requests.push_back({"planted", 100, 5, 9});
  ArenaPlan p = plan(requests);
  ASSERT_FALSE(find_overlap(requests, p));
  p.offsets[51] = p.offsets[50] + 64;  // the second cache line of the victim
  auto overlap = find_overlap(requests, p);
  ASSERT_TRUE(overlap);
  p.offsets[51] = std::numeric_limits<uint64_t>::max() / 2;
  EXPECT_FALSE(find_overlap(requests, p));
}

TEST(Oracle, NamesBothBuffersOfAnOverlap) {
  Requests requests = {{"a", 64, 0, 1}, {"b", 64, 2, 3}, {"c", 64, 1, 2}};
  ArenaPlan p;
  p.offsets = {0, 64, 127};  // the last byte of b is the first of c
  auto overlap = find_overlap(requests, p);
  ASSERT_TRUE(overlap);
  EXPECT_EQ(overlap->a, 1u);
  EXPECT_EQ(overlap->b, 2u);
}

TEST(Oracle, AcceptsNeighboursInTimeOrPlace) {
  Requests requests = {{"a", 64, 0, 1}, {"same place, later", 64, 2, 3}, {"same time, above", 64, 0, 3}};
  ArenaPlan p;
  p.offsets = {0, 0, 64};
  EXPECT_FALSE(find_overlap(requests, p));
  requests[1].first = 1;
  EXPECT_TRUE(find_overlap(requests, p));
}

TEST(Planner, RandomProgramsNeverOverlapAndStayBetweenTheirBounds) {
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    int buffers = 1 + static_cast<int>(seed % 60), longest = 1 + static_cast<int>(seed % 23);
    Requests requests = random_program(seed, buffers, longest);
    ArenaPlan p = plan(requests);
    auto overlap = find_overlap(requests, p);
    ASSERT_FALSE(overlap) << "seed " << seed << ": " << requests[overlap->a].name << " and "
                          << requests[overlap->b].name;
    ASSERT_GE(p.arena_bytes, p.lower_bound_bytes) << "seed " << seed;
    ASSERT_LE(p.arena_bytes, p.naive_bytes) << "seed " << seed;
    uint64_t end = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(p.offsets[i] % kBufferAlignment, 0u) << "seed " << seed;
      if (requests[i].bytes > 0) end = std::max(end, p.offsets[i] + aligned(requests[i].bytes));
    }
    ASSERT_EQ(p.arena_bytes, end) << "seed " << seed;
  }
}

// Hundreds of buffers of which most are live together: the walk over everything placed instead of rival
// lists.
TEST(Planner, CrowdedProgramsNeverOverlap) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Requests requests = random_program(seed, 300, 300);
    ArenaPlan p = plan(requests);
    ASSERT_FALSE(find_overlap(requests, p)) << "seed " << seed;
    ASSERT_LE(static_cast<double>(p.arena_bytes), 1.15 * static_cast<double>(p.lower_bound_bytes))
        << "seed " << seed;
  }
}

TEST(Planner, LowerBoundIsTheBusiestStep) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Requests requests = random_program(seed, 30, 9);
    uint64_t busiest = 0;
    for (int step = 0; step < 50; ++step) {
      uint64_t live = 0;
      for (const auto& r : requests)
        if (r.first <= step && step <= r.last) live += aligned(r.bytes);
      busiest = std::max(busiest, live);
    }
    ASSERT_EQ(plan(requests).lower_bound_bytes, busiest) << "seed " << seed;
  }
}

TEST(Planner, NearlyAllRandomProgramsReachTheLowerBound) {
  int reached = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    ArenaPlan p = plan(random_program(seed, 60, 12));
    reached += p.arena_bytes == p.lower_bound_bytes;
  }
  EXPECT_GE(reached, 295);  // largest-first alone reaches it in fewer
}

TEST(Planner, AChainNeedsItsTwoLargestNeighbours) {
  Requests requests;
  for (int i = 0; i < 100; ++i)
    requests.push_back({"link", static_cast<uint64_t>(64 * (1 + i * 37 % 50)), i, i + 1});
  ArenaPlan p = plan(requests);
  EXPECT_EQ(p.arena_bytes, p.lower_bound_bytes);
  uint64_t most = 0;
  for (size_t i = 1; i < requests.size(); ++i)
    most = std::max(most, requests[i - 1].bytes + requests[i].bytes);
  EXPECT_EQ(p.arena_bytes, most);
}

TEST(Planner, TransformersOfAnyShapeReachTheLowerBound) {
  for (int layers : {1, 2, 6, 12, 40}) {
    for (uint64_t tokens : {1, 7, 64, 4096}) {
      for (uint64_t d_ff : {64, 1024, 2048, 4096}) {
        for (bool pre_norm : {false, true}) {
          ArenaPlan p = plan(transformer(layers, tokens, 512, d_ff, pre_norm));
          EXPECT_EQ(p.arena_bytes, p.lower_bound_bytes)
              << layers << " layers, " << tokens << " tokens, d_ff " << d_ff << ", pre_norm " << pre_norm;
        }
      }
    }
  }
}

TEST(Planner, DeeperTransformersNeedNoMoreMemory) {
  EXPECT_EQ(plan(transformer(2, 64, 512, 2048, false)).arena_bytes,
            plan(transformer(24, 64, 512, 2048, false)).arena_bytes);
}

TEST(Planner, NothingIsSharedWhenEverythingIsLive) {
  Requests requests;
  for (int i = 0; i < 20; ++i) requests.push_back({"state", static_cast<uint64_t>(i) * 100, 0, 0});
  ArenaPlan p = plan(requests);
  EXPECT_EQ(p.arena_bytes, p.naive_bytes);
  EXPECT_EQ(p.arena_bytes, p.lower_bound_bytes);
}

TEST(Planner, NoBuffersAndEmptyBuffersTakeNothing) {
  EXPECT_EQ(plan({}).arena_bytes, 0u);
  ArenaPlan p = plan({{"empty", 0, 0, 9}, {"also empty", 0, 3, 3}});
  EXPECT_EQ(p.arena_bytes, 0u);
  EXPECT_EQ(p.offsets.size(), 2u);
}

TEST(Planner, OneByteTakesAnAlignedUnit) {
  ArenaPlan p = plan({{"byte", 1, 0, 0}, {"line", 64, 0, 0}, {"line and a byte", 65, 0, 0}});
  EXPECT_EQ(p.naive_bytes, 64u + 64 + 128);
  EXPECT_EQ(p.arena_bytes, 256u);
}

TEST(Planner, EqualRequestsGiveEqualPlans) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Requests requests = random_program(seed, 80, 80);
    ASSERT_EQ(plan(requests).offsets, plan(requests).offsets);
  }
}

TEST(Planner, AcceptsTheWholeRangeOfSteps) {
  constexpr int kLow = std::numeric_limits<int>::min(), kHigh = std::numeric_limits<int>::max();
  Requests requests = {{"always", 64, kLow, kHigh}, {"first", 64, kLow, kLow}, {"last", 64, kHigh, kHigh}};
  ArenaPlan p = plan(requests);
  EXPECT_EQ(p.arena_bytes, 128u);
  EXPECT_EQ(p.lower_bound_bytes, 128u);
  EXPECT_FALSE(find_overlap(requests, p));
}

TEST(Planner, RefusesALifetimeThatEndsBeforeItBegins) {
  auto result = plan_arena(Requests{{"fine", 1, 0, 1}, {"backwards", 1, 5, 4}});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kBadInput);
  EXPECT_NE(result.error().message.find("backwards"), std::string::npos) << result.error().message;
}

TEST(Planner, RefusesSizesBeyond64Bits) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  // A sum that wraps around, a size whose rounding up wraps, and the largest that does not.
  for (const Requests& requests :
       {Requests{{"half", kMost / 2 + 1, 0, 0}, {"other half", kMost / 2 + 1, 1, 1}},
        Requests{{"one less than all", kMost, 0, 0}}}) {
    auto result = plan_arena(requests);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory);
    EXPECT_NE(result.error().message.find(std::to_string(requests.back().bytes)), std::string::npos);
  }
  EXPECT_EQ(plan({{"largest", kMost - 63, 0, 0}}).arena_bytes, kMost - 63);
}

}  // namespace
}  // namespace duet::memory
