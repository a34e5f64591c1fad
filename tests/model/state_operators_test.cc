// The bookkeeping of slots and cache blocks beside a plain model of it (sets of blocks), over random
// sequences of calls; and state or operands that no correct program has: errors, never a byte outside.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <set>

#include "model/operators/operator.h"
#include "model/primitives.h"
#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

constexpr int32_t kEnd = 1;
constexpr int32_t kCanary = 0x5ca1ab1e;
constexpr int64_t kGuard = 64;  // canaries on either side of a buffer

using Ints = std::vector<int32_t>;

int64_t blocks_of(int64_t tokens) { return (tokens + 15) / 16; }

enum Buffer {
  kStatus,
  kPositions,
  kLimits,
  kSourceLengths,
  kTokens,
  kSelfTable,
  kCrossTable,
  kFreeBlocks,
  kPoolState
};

// The nine buffers, and calls of the operators on them.
class State {
 public:
  State(int64_t slots, int64_t self_blocks, int64_t cross_blocks, int64_t blocks)
      : slots_(slots),
        dims_{{{slots},
               {slots},
               {slots},
               {slots},
               {slots},
               {slots, self_blocks},
               {slots, cross_blocks},
               {blocks},
               {2}}} {
    for (size_t i = 0; i < 9; ++i) {
      int64_t size = dims_[i][0] * (dims_[i].size() > 1 ? dims_[i][1] : 1);
      memory_[i].assign(static_cast<size_t>(size + 2 * kGuard), kCanary);
      std::fill_n(memory_[i].begin() + kGuard, size, 0);
    }
  }

  int32_t* at(Buffer buffer) { return memory_[buffer].data() + kGuard; }
  int64_t size(Buffer buffer) const { return static_cast<int64_t>(memory_[buffer].size()) - 2 * kGuard; }
  int64_t slots() const { return slots_; }
  int64_t self_capacity() const { return dims_[kSelfTable][1] * 16; }
  int64_t cross_capacity() const { return dims_[kCrossTable][1] * 16; }
  int64_t blocks() const { return dims_[kFreeBlocks][0]; }
  const std::array<Ints, 9>& bytes() const { return memory_; }
  bool guards_intact() const {
    for (const Ints& m : memory_)
      for (int64_t i = 0; i < kGuard; ++i)
        if (m[static_cast<size_t>(i)] != kCanary || m[m.size() - 1 - static_cast<size_t>(i)] != kCanary)
          return false;
    return true;
  }

  Status call(const std::string& kind, std::vector<Ints> own, Ints* result = nullptr, size_t own_count = 0) {
    Attributes attributes;
    if (kind == "advance") attributes["end"] = int64_t{kEnd};
    if (kind == "forced_tokens") attributes["token"] = int64_t{77};
    auto op = make_operator(kind, attributes);
    if (!op) return tl::make_unexpected(op.error());
    std::vector<TensorView> inputs;
    auto view = [](Ints& values) {
      return TensorView{
          reinterpret_cast<std::byte*>(values.data()), DType::kI32, 1, {static_cast<int64_t>(values.size())}};
    };
    for (Ints& values : own) inputs.push_back(view(values));
    inputs.resize(std::max(own_count, own.size()));  // optional ones left out
    for (size_t i = 0; i < 9; ++i) {
      TensorView v{reinterpret_cast<std::byte*>(at(static_cast<Buffer>(i))),
                   DType::kI32,
                   static_cast<int>(dims_[i].size()),
                   {}};
      std::copy(dims_[i].begin(), dims_[i].end(), v.dims);
      inputs.push_back(v);
    }
    Ints output(own[0].size(), -9);
    TensorView out = view(output);
    Status status = (*op)->run({inputs, {&out, 1}, nullptr, kind}, {});
    if (result) *result = output;
    return status;
  }

 private:
  int64_t slots_;
  std::array<std::vector<int64_t>, 9> dims_;
  std::array<Ints, 9> memory_;
};

// What the state should be, kept the simplest way.
class Model {
 public:
  struct Slot {
    bool started = false;
    int64_t position = 0, limit = 0, source = 0;
    std::set<int32_t> blocks;
  };

  explicit Model(const State& state) : slots(static_cast<size_t>(state.slots())) {
    for (int32_t b = 0; b < state.blocks(); ++b) free.insert(b);
  }
  void release(int64_t slot) {
    free.insert(slots[static_cast<size_t>(slot)].blocks.begin(),
                slots[static_cast<size_t>(slot)].blocks.end());
    slots[static_cast<size_t>(slot)] = {};
  }
  // Takes the blocks that the state's tables show; every one of them must have been free.
  void take(State& state, int64_t slot, int64_t self_tokens) {
    Slot& s = slots[static_cast<size_t>(slot)];
    std::set<int32_t> now;
    for (int64_t b = 0; b < blocks_of(self_tokens); ++b)
      now.insert(state.at(kSelfTable)[slot * state.self_capacity() / 16 + b]);
    for (int64_t b = 0; b < blocks_of(s.source); ++b)
      now.insert(state.at(kCrossTable)[slot * state.cross_capacity() / 16 + b]);
    ASSERT_EQ(static_cast<int64_t>(now.size()), blocks_of(self_tokens) + blocks_of(s.source))
        << "slot " << slot << " holds a block twice";
    for (int32_t block : now) {
      if (s.blocks.count(block)) continue;
      ASSERT_EQ(free.erase(block), 1u) << "block " << block << " was not free";
    }
    for (int32_t block : s.blocks)
      ASSERT_TRUE(now.count(block)) << "slot " << slot << " lost block " << block;
    s.blocks = now;
  }
  void expect_matches(State& state) const {
    for (size_t i = 0; i < slots.size(); ++i) {
      ASSERT_EQ(state.at(kStatus)[i], slots[i].started) << "slot " << i;
      if (!slots[i].started) continue;
      ASSERT_EQ(state.at(kPositions)[i], slots[i].position) << "slot " << i;
      ASSERT_EQ(state.at(kLimits)[i], slots[i].limit) << "slot " << i;
      ASSERT_EQ(state.at(kSourceLengths)[i], slots[i].source) << "slot " << i;
    }
    int32_t returned = state.at(kPoolState)[0], fresh = state.at(kPoolState)[1];
    std::set<int32_t> in_state(state.at(kFreeBlocks), state.at(kFreeBlocks) + returned);
    ASSERT_EQ(in_state.size(), static_cast<size_t>(returned)) << "a block was given back twice";
    for (int32_t b = fresh; b < state.blocks(); ++b) ASSERT_TRUE(in_state.insert(b).second) << "block " << b;
    ASSERT_EQ(in_state, free);
    ASSERT_TRUE(state.guards_intact());
  }

  std::vector<Slot> slots;
  std::set<int32_t> free;
};

class RandomCalls {
 public:
  RandomCalls(uint32_t seed, int64_t slots, int64_t blocks)
      : random_(seed), state_(slots, 3, 2, blocks), model_(state_) {}

  void step() {
    switch (random_() % 8) {
      case 0:
      case 1:
        return prefill();
      case 2:
        return release();
      case 3:
        return mistake();
      default:
        return decode();
    }
  }
  int failures() const { return failures_; }
  int exhausted() const { return exhausted_; }
  int finished() const { return finished_; }

 private:
  int64_t dice(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  Ints some_slots(bool started_only) {
    Ints slots;
    for (int64_t i = 0; i < state_.slots(); ++i)
      if (random_() % 2 && (!started_only || model_.slots[static_cast<size_t>(i)].started))
        slots.push_back(static_cast<int32_t>(i));
    std::shuffle(slots.begin(), slots.end(), random_);
    return slots;
  }
  // A call that must fail and change nothing.
  void expect_failure(const std::string& kind, const std::vector<Ints>& own, ErrorCode code,
                      size_t own_count = 0) {
    auto before = state_.bytes();
    Status status = state_.call(kind, own, nullptr, own_count);
    ASSERT_FALSE(status) << kind;
    ASSERT_EQ(static_cast<int>(status.error().code), static_cast<int>(code)) << status.error().message;
    ASSERT_EQ(before, state_.bytes()) << kind << " changed the state before it failed";
    ++failures_;
  }

  void prefill() {
    Ints slots = some_slots(false), sources, limits, prompts;
    if (slots.empty()) return;
    int64_t needed = 0, available = static_cast<int64_t>(model_.free.size());
    for (int32_t slot : slots) {
      sources.push_back(static_cast<int32_t>(dice(1, state_.cross_capacity())));
      limits.push_back(static_cast<int32_t>(dice(1, state_.self_capacity())));
      prompts.push_back(random_() % 2 ? 1 : static_cast<int32_t>(dice(1, limits.back())));
      needed += blocks_of(sources.back()) + blocks_of(prompts.back());
      available += static_cast<int64_t>(model_.slots[static_cast<size_t>(slot)].blocks.size());
    }
    if (needed > available) {
      ++exhausted_;
      return expect_failure("open_slots", {slots, sources, limits, prompts}, ErrorCode::kExhausted);
    }
    Status status = state_.call("open_slots", {slots, sources, limits, prompts});
    ASSERT_TRUE(status) << status.error().message;
    for (int32_t slot : slots) model_.release(slot);
    for (size_t r = 0; r < slots.size(); ++r) {
      model_.slots[static_cast<size_t>(slots[r])] = {true, 0, limits[r], sources[r], {}};
      model_.take(state_, slots[r], prompts[r]);
    }
    advance(slots, prompts, true);
  }

  void decode() {
    Ints slots = some_slots(true);
    if (slots.empty()) return;
    int64_t needed = 0;
    for (int32_t slot : slots) needed += model_.slots[static_cast<size_t>(slot)].position % 16 == 0;
    if (needed > static_cast<int64_t>(model_.free.size())) {
      ++exhausted_;
      return expect_failure("extend_slots", {slots}, ErrorCode::kExhausted);
    }
    Status status = state_.call("extend_slots", {slots});
    ASSERT_TRUE(status) << status.error().message;
    for (int32_t slot : slots)
      model_.take(state_, slot, model_.slots[static_cast<size_t>(slot)].position + 1);
    advance(slots, Ints(slots.size(), 1), false);
  }

  void advance(const Ints& slots, const Ints& added, bool say_added) {
    Ints ids, forced, finished;
    for (size_t i = 0; i < slots.size(); ++i)
      ids.push_back(static_cast<int32_t>(random_() % 20 == 0 ? kEnd : 2 + static_cast<int>(random_() % 50)));
    std::vector<Ints> own = {slots, ids};
    if (say_added) own.push_back(added);
    std::vector<Ints> for_forced = {slots};
    if (say_added) for_forced.push_back(added);
    ASSERT_TRUE(state_.call("forced_tokens", for_forced, &forced, 2));
    Status status = state_.call("advance", own, &finished, 3);
    ASSERT_TRUE(status) << status.error().message;
    for (size_t i = 0; i < slots.size(); ++i) {
      Model::Slot& slot = model_.slots[static_cast<size_t>(slots[i])];
      slot.position += added[i];
      bool last = slot.position >= slot.limit;
      ASSERT_EQ(forced[i], last ? 77 : -1);
      ASSERT_EQ(finished[i], last || ids[i] == kEnd);
      ASSERT_EQ(state_.at(kTokens)[slots[i]], ids[i]);
      if (finished[i]) model_.release(slots[i]), ++finished_;
    }
    model_.expect_matches(state_);
  }

  void release() {
    Ints slots = some_slots(false);
    Status status = state_.call("release_slots", {slots});
    ASSERT_TRUE(status) << status.error().message;
    for (int32_t slot : slots) model_.release(slot);
    model_.expect_matches(state_);
  }

  void mistake() {
    Ints slots = some_slots(false);
    if (slots.empty()) return;
    size_t bad = random_() % slots.size(), rows = slots.size();
    Ints ones(rows, 1);
    std::vector<Ints> open = {slots, ones, ones, ones};
    Ints outside = slots, twice = slots;
    outside[bad] = random_() % 2 ? -1 : static_cast<int32_t>(state_.slots());
    twice.push_back(slots[bad]);
    for (const char* kind : {"extend_slots", "release_slots"}) {
      expect_failure(kind, {outside}, ErrorCode::kUsage);
      if (kind == std::string("extend_slots") && !model_.slots[static_cast<size_t>(slots[bad])].started)
        expect_failure(kind, {slots}, ErrorCode::kUsage);
    }
    expect_failure("release_slots", {twice}, ErrorCode::kUsage);
    expect_failure("extend_slots", {twice}, ErrorCode::kUsage);
    expect_failure("advance", {outside, ones}, ErrorCode::kUsage, 3);
    expect_failure("advance", {twice, Ints(rows + 1, 5)}, ErrorCode::kUsage, 3);
    expect_failure("forced_tokens", {outside}, ErrorCode::kUsage, 2);
    expect_failure("open_slots", {twice, Ints(rows + 1, 1), Ints(rows + 1, 1), Ints(rows + 1, 1)},
                   ErrorCode::kUsage);
    for (size_t operand = 0; operand < 4; ++operand) {
      auto own = open;
      auto capacity = static_cast<int32_t>(operand == 1 ? state_.cross_capacity() : state_.self_capacity());
      own[operand][bad] = operand == 0 ? outside[bad] : operand == 3 ? 2 : random_() % 2 ? capacity + 1 : 0;
      expect_failure("open_slots", own, ErrorCode::kUsage);
    }
  }

  std::mt19937 random_;
  State state_;
  Model model_;
  int failures_ = 0, exhausted_ = 0, finished_ = 0;
};

TEST(SlotState, AccountsForEveryBlockOverRandomCallsAndChangesNothingWhenACallFails) {
  int exhausted = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RandomCalls calls(seed, 1 + seed % 9, 5 + (seed * 7) % 40);
    for (int i = 0; i < 1000 && !testing::Test::HasFatalFailure(); ++i) calls.step();
    if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
    EXPECT_GT(calls.failures(), 100);
    EXPECT_GT(calls.finished(), 10);
    exhausted += calls.exhausted();
  }
  EXPECT_GT(exhausted, 300);
}

TEST(SlotState, SaysWhatIsExhaustedAndHowMuchIsFree) {
  State state(2, 3, 2, 3);
  expect_error(state.call("open_slots", {{0, 1}, {17, 16}, {5, 5}, {1, 1}}), ErrorCode::kExhausted,
               {"5 cache blocks of 16 tokens are needed", "3 of 3 are free"});
  ASSERT_TRUE(state.call("open_slots", {{0}, {17}, {5}, {1}}));
  ASSERT_TRUE(state.call("advance", {{0}, {5}, {1}}));
  expect_error(state.call("open_slots", {{1}, {1}, {5}, {1}}), ErrorCode::kExhausted,
               {"2 cache blocks", "0 of 3 are free"});
  ASSERT_TRUE(state.call("open_slots", {{0}, {17}, {5}, {1}}))
      << "what slot 0 holds counts as free for slot 0";
}

TEST(SlotState, EndsASlotAtItsLimit) {
  State state(1, 3, 2, 8);
  Ints finished;
  ASSERT_TRUE(state.call("open_slots", {{0}, {1}, {3}, {1}}));
  ASSERT_TRUE(state.call("advance", {{0}, {5}, {1}}, &finished));
  EXPECT_EQ(finished, Ints{0});
  ASSERT_TRUE(state.call("extend_slots", {{0}}));
  ASSERT_TRUE(state.call("advance", {{0}, {6}}, &finished, 3));
  EXPECT_EQ(finished, Ints{0});
  ASSERT_TRUE(state.call("extend_slots", {{0}}));
  ASSERT_TRUE(state.call("advance", {{0}, {7}}, &finished, 3));
  EXPECT_EQ(finished, Ints{1});
  expect_error(state.call("extend_slots", {{0}}), ErrorCode::kUsage, {"slot 0 is not decoding"});
}

// A program may fill or overwrite its state with anything, and pass any numbers: calls then fail or give
// nonsense, but touch nothing outside the buffers.
TEST(SlotState, StaysWithinItsBuffersWhateverTheyHold) {
  std::mt19937 random(4);
  int refused = 0, done = 0;
  static constexpr int32_t kNumbers[] = {0,  1,  2,   3,  15,  16,        17,        47,
                                         48, 49, 100, -1, -16, INT32_MAX, INT32_MIN, INT32_MAX - 5};
  for (int round = 0; round < 20000; ++round) {
    State state(4, 3, 2, 7);
    ASSERT_TRUE(state.call("open_slots", {{0, 2}, {20, 5}, {20, 30}, {1, 17}}));
    for (int i = 0; i < 1 + round % 3; ++i) {
      auto buffer = static_cast<Buffer>(random() % 9);
      state.at(buffer)[random() % static_cast<size_t>(state.size(buffer))] =
          kNumbers[random() % std::size(kNumbers)];
    }
    auto any = [&](size_t count, bool slots) {
      Ints values(count);
      for (int32_t& v : values)
        v = slots ? static_cast<int32_t>(random() % 4) : kNumbers[random() % std::size(kNumbers)];
      return values;
    };
    for (int i = 0; i < 12; ++i) {
      size_t rows = 1 + random() % 3;
      Status status;
      switch (random() % 6) {
        case 0:
          status = state.call("open_slots",
                              {any(rows, true), any(rows, false), any(rows, false), any(rows, false)});
          break;
        case 1:
          status = state.call("extend_slots", {any(rows, true)});
          break;
        case 2:
          status = state.call("release_slots", {any(rows, true)});
          break;
        case 3:
          status = state.call("forced_tokens", {any(rows, true), any(rows, false)});
          break;
        case 4:
          status = state.call("advance", {any(rows, true), any(rows, false), any(rows, false)});
          break;
        default:
          status = state.call("advance", {any(rows, true), any(rows, false)}, nullptr, 3);
      }
      ++(status ? done : refused);
      ASSERT_TRUE(state.guards_intact()) << "round " << round;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(done, 1000);
}

TEST(SlotState, NeedsNineDifferentBuffers) {
  std::vector<TensorSpec> specs;
  specs.push_back({"slots", DType::kI32, {"rows"}});
  const char* roles[] = {"status", "positions", "limits", "source_lengths", "tokens"};
  for (const char* role : roles) specs.push_back({role, DType::kI32, {"rows"}});
  specs.push_back({"self_table", DType::kI32, {"rows", 2}});
  specs.push_back({"cross_table", DType::kI32, {"rows", 2}});
  specs.push_back({"free_blocks", DType::kI32, {"rows"}});
  specs.push_back({"pool_state", DType::kI32, {2}});
  auto op = *make_operator("release_slots", {});
  auto infer = [&](size_t operand, size_t other) {
    std::vector<OperandSpec> operands;
    for (const TensorSpec& spec : specs) operands.push_back({&spec, true, nullptr});
    operands[operand] = operands[other];
    return op->infer(operands);
  };
  EXPECT_TRUE(infer(1, 1));
  expect_error(infer(2, 1), ErrorCode::kBadInput, {"status", "two"});
  expect_error(infer(0, 5), ErrorCode::kBadInput, {"tokens", "two"});
  expect_error(infer(7, 6), ErrorCode::kBadInput, {"self_table", "two"});
  expect_error(infer(8, 3), ErrorCode::kBadInput, {"limits", "two"});
}

}  // namespace
}  // namespace duet::model
