// The state of slots: which are in use, how far they are, and which cache blocks they hold.
//
// Nine shared buffers, always in this order behind an operator's own inputs; all zeros is "nothing started":
//   status i32[slots]              0 free, 1 decoding
//   positions i32[slots]           tokens in the self-attention cache
//   limits i32[slots]              target tokens that may be made, the final one included
//   source_lengths i32[slots]      tokens in the cross-attention cache
//   tokens i32[slots]              the next decoder input
//   self_table i32[slots, n]       blocks of the self-attention cache: ceil(positions / 16) are held
//   cross_table i32[slots, m]      blocks of the cross-attention cache: ceil(source_lengths / 16) are held
//   free_blocks i32[blocks]        a stack of blocks that were given back
//   pool_state i32[2]              depth of that stack; blocks never used so far are fresh: [count returned,
//   first fresh]
// An operator either does all of its work or fails before it has changed anything. What it finds is checked:
// any program may write to its buffers.
#include <algorithm>

#include "model/cache_layout.h"
#include "model/operators/operator.h"
#include "model/primitives.h"

namespace duet::model {
namespace {

constexpr int kStateBuffers = 9;

class SlotState {
 public:
  explicit SlotState(std::span<const TensorView> buffers)
      : status(buffers[0].as<int32_t>()),
        positions(buffers[1].as<int32_t>()),
        limits(buffers[2].as<int32_t>()),
        source_lengths(buffers[3].as<int32_t>()),
        tokens(buffers[4].as<int32_t>()),
        slots(buffers[0].dims[0]),
        self_capacity(buffers[5].dims[1] * kBlockTokens),
        cross_capacity(buffers[6].dims[1] * kBlockTokens),
        self_table_(buffers[5]),
        cross_table_(buffers[6]),
        free_(buffers[7].as<int32_t>()),
        pool_(buffers[8].as<int32_t>()),
        blocks_(buffers[7].dims[0]) {}

  int64_t free_blocks() const { return pool_[0] + (blocks_ - pool_[1]); }
  int64_t held_blocks(int64_t slot) const {
    return status[slot] == 0 ? 0 : blocks_of(positions[slot]) + blocks_of(source_lengths[slot]);
  }
  int64_t pool_blocks() const { return blocks_; }
  // Whether the pool's numbers can be true and have room for so many blocks more to be given back.
  bool pool_is_sound(int64_t given_back) const {
    return pool_[0] >= 0 && pool_[1] >= 0 && pool_[1] <= blocks_ && pool_[0] + given_back <= pool_[1];
  }
  bool slot_is_sound(int64_t slot) const {
    return status[slot] >= 0 && status[slot] <= 1 && positions[slot] >= 0 &&
           positions[slot] <= self_capacity && source_lengths[slot] >= 0 &&
           source_lengths[slot] <= cross_capacity;
  }

  // REQUIRES: enough free_blocks().
  void take_self(int64_t slot, int64_t tokens_before, int64_t tokens_after) {
    for (int64_t b = blocks_of(tokens_before); b < blocks_of(tokens_after); ++b)
      self_table_.as<int32_t>()[slot * self_table_.dims[1] + b] = take();
  }
  void take_cross(int64_t slot, int64_t length) {
    for (int64_t b = 0; b < blocks_of(length); ++b)
      cross_table_.as<int32_t>()[slot * cross_table_.dims[1] + b] = take();
  }
  void release(int64_t slot) {
    if (status[slot] == 0) return;
    // Last taken, first given back: the order in which blocks are used again does not matter to results.
    for (int64_t b = blocks_of(positions[slot]); b-- > 0;)
      free_[pool_[0]++] = self_table_.as<int32_t>()[slot * self_table_.dims[1] + b];
    for (int64_t b = blocks_of(source_lengths[slot]); b-- > 0;)
      free_[pool_[0]++] = cross_table_.as<int32_t>()[slot * cross_table_.dims[1] + b];
    status[slot] = 0;
    positions[slot] = source_lengths[slot] = 0;
  }

  int32_t *status, *positions, *limits, *source_lengths, *tokens;
  int64_t slots, self_capacity, cross_capacity;

 private:
  int32_t take() { return pool_[0] > 0 ? free_[--pool_[0]] : pool_[1]++; }

  TensorView self_table_, cross_table_;
  int32_t* free_;
  int32_t* pool_;
  int64_t blocks_;
};

// Base: own inputs first, then the nine buffers.
class StateOperator : public Operator {
 public:
  explicit StateOperator(int own_inputs) : own_(own_inputs) {}
  bool parallel() const override { return false; }
  std::vector<int> written_inputs() const override {
    std::vector<int> all;
    for (int i = 0; i < kStateBuffers; ++i) all.push_back(own_ + i);
    return all;
  }
  Cost cost(const Step& s) const override { return {0, 64 * s.inputs[0].elements()}; }
  Status decompose(const Step& s, Primitives&) const override {
    return run(s, {});
  }  // integers: exact anyway

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, static_cast<size_t>(own_ + kStateBuffers),
                          static_cast<size_t>(own_ + kStateBuffers)));
    for (int i = 0; i < own_; ++i) {
      const OperandSpec& operand = in[static_cast<size_t>(i)];
      if (i > 0 && !operand.spec && optional_input(i)) continue;
      DUET_TRY(expect_tensor(operand, "of the operator", DType::kI32, 1));
      DUET_TRY(expect_dim(operand, "of the operator", 0, in[0].spec->shape[0]));
    }
    static constexpr const char* kRoles[] = {"status",         "positions",   "limits",
                                             "source_lengths", "tokens",      "self_table",
                                             "cross_table",    "free_blocks", "pool_state"};
    const OperandSpec& status = in[static_cast<size_t>(own_)];
    for (int i = 0; i < kStateBuffers; ++i) {
      const OperandSpec& operand = in[static_cast<size_t>(own_ + i)];
      for (int j = 0; j < own_ + i; ++j)
        if (operand.spec && operand.spec == in[static_cast<size_t>(j)].spec)
          return failure(ErrorCode::kBadInput, "input {} ({}) plays two parts", kRoles[i],
                         operand.spec->name);
      DUET_TRY(expect_tensor(operand, kRoles[i], DType::kI32, i == 5 || i == 6 ? 2 : 1));
      if (i < 7) DUET_TRY(expect_dim(operand, kRoles[i], 0, status.spec->shape[0]));
      if (i == 8) DUET_TRY(expect_dim(operand, kRoles[i], 0, Dim(2)));
    }
    std::vector<TensorSpec> outputs;
    if (has_output()) outputs.push_back({"", DType::kI32, in[0].spec->shape});
    return outputs;
  }

 protected:
  virtual bool optional_input(int) const { return false; }
  virtual bool has_output() const { return false; }
  SlotState state(const Step& s) const { return SlotState(s.inputs.subspan(static_cast<size_t>(own_))); }
  static Status check_slot(const Step& s, const SlotState& state, int64_t slot) {
    if (slot < 0 || slot >= state.slots)
      return failure(ErrorCode::kUsage, "{}: slot {}, expected 0 to {}", s.name, slot, state.slots - 1);
    return {};
  }
  // Each slot of input 0 exists, stands there once, is sound and, if asked for, has been started.
  static Status check_slots(const Step& s, const SlotState& state, bool started) {
    std::span<const int32_t> slots(s.inputs[0].as<int32_t>(), static_cast<size_t>(s.inputs[0].dims[0]));
    Status status;
    size_t seen = 0;
    for (; seen < slots.size(); ++seen) {
      status = check_one(s, state, slots[seen], started);
      if (!status) break;
      state.status[slots[seen]] |= kSeen;
    }
    while (seen > 0) state.status[slots[--seen]] &= ~kSeen;
    return status;
  }
  static Status check_pool(const Step& s, const SlotState& state, int64_t given_back) {
    if (state.pool_is_sound(given_back)) return {};
    return failure(ErrorCode::kUsage,
                   "{}: the state of the cache pool was overwritten: {} blocks to give back", s.name,
                   given_back);
  }

 private:
  static constexpr int32_t kSeen = 1 << 30;  // in status, during check_slots()
  static Status check_one(const Step& s, const SlotState& state, int64_t slot, bool started) {
    DUET_TRY(check_slot(s, state, slot));
    if (state.status[slot] & kSeen && state.status[slot] > 0)
      return failure(ErrorCode::kUsage, "{}: slot {} stands there twice", s.name, slot);
    if (!state.slot_is_sound(slot))
      return failure(ErrorCode::kUsage, "{}: the state of slot {} was overwritten", s.name, slot);
    if (started && state.status[slot] != 1)
      return failure(ErrorCode::kUsage,
                     "{}: slot {} is not decoding: it was never started, or it has finished", s.name, slot);
    return {};
  }
  int own_;
};

// open_slots(slots, source_lengths, target_limits, prompt_lengths; state): gives up what the slots held,
// takes blocks for their sources and prompts, and starts them at position 0.
class OpenSlots : public StateOperator {
 public:
  explicit OpenSlots(AttributeReader&) : StateOperator(4) {}
  std::string_view kind() const override { return "open_slots"; }

  Status run(const Step& s, Worker) const override {
    SlotState state = this->state(s);
    auto own = [&](int i) { return s.inputs[static_cast<size_t>(i)].as<int32_t>(); };
    int64_t needed = 0, given_back = 0, rows = s.inputs[0].dims[0];
    DUET_TRY(check_slots(s, state, false));
    for (int64_t r = 0; r < rows; ++r) {
      if (own(1)[r] < 1 || own(1)[r] > state.cross_capacity)
        return failure(ErrorCode::kUsage, "{}: row {} has {} source tokens, expected 1 to {}", s.name, r,
                       own(1)[r], state.cross_capacity);
      if (own(2)[r] < 1 || own(2)[r] > state.self_capacity || own(3)[r] < 1 || own(3)[r] > own(2)[r])
        return failure(ErrorCode::kUsage,
                       "{}: row {} has {} prompt tokens and a limit of {} target tokens, expected 1 <= "
                       "prompt <= limit, and a limit that the table has room for, {}",
                       s.name, r, own(3)[r], own(2)[r], state.self_capacity);
      needed += blocks_of(own(1)[r]) + blocks_of(own(3)[r]);
      given_back += state.held_blocks(own(0)[r]);
    }
    DUET_TRY(check_pool(s, state, given_back));
    if (needed > state.free_blocks() + given_back)
      return failure(ErrorCode::kExhausted, "{}: {} cache blocks of {} tokens are needed, {} of {} are free",
                     s.name, needed, kBlockTokens, state.free_blocks() + given_back, state.pool_blocks());
    for (int64_t r = 0; r < rows; ++r) state.release(own(0)[r]);
    for (int64_t r = 0; r < rows; ++r) {
      int32_t slot = own(0)[r];
      state.status[slot] = 1;
      state.positions[slot] = 0;
      state.limits[slot] = own(2)[r];
      state.source_lengths[slot] = own(1)[r];
      state.tokens[slot] = 0;
      state.take_cross(slot, own(1)[r]);
      state.take_self(slot, 0, own(3)[r]);
    }
    return {};
  }
};

// extend_slots(slots; state): takes the blocks for one more token of each slot.
class ExtendSlots : public StateOperator {
 public:
  explicit ExtendSlots(AttributeReader&) : StateOperator(1) {}
  std::string_view kind() const override { return "extend_slots"; }

  Status run(const Step& s, Worker) const override {
    SlotState state = this->state(s);
    std::span<const int32_t> slots(s.inputs[0].as<int32_t>(), static_cast<size_t>(s.inputs[0].dims[0]));
    int64_t needed = 0;
    DUET_TRY(check_slots(s, state, true));
    DUET_TRY(check_pool(s, state, 0));
    for (int32_t slot : slots) {
      if (state.positions[slot] >= std::min<int64_t>(state.limits[slot], state.self_capacity))
        return failure(ErrorCode::kUsage, "{}: slot {} has reached its limit of {} target tokens", s.name,
                       slot, state.limits[slot]);
      needed += state.positions[slot] % kBlockTokens == 0;
    }
    if (needed > state.free_blocks())
      return failure(ErrorCode::kExhausted, "{}: {} cache blocks of {} tokens are needed, {} of {} are free",
                     s.name, needed, kBlockTokens, state.free_blocks(), state.pool_blocks());
    for (int32_t slot : slots) state.take_self(slot, state.positions[slot], state.positions[slot] + 1);
    return {};
  }
};

// release_slots(slots; state): ends slots at once and gives back their blocks.
class ReleaseSlots : public StateOperator {
 public:
  explicit ReleaseSlots(AttributeReader&) : StateOperator(1) {}
  std::string_view kind() const override { return "release_slots"; }

  Status run(const Step& s, Worker) const override {
    SlotState state = this->state(s);
    DUET_TRY(check_slots(s, state, false));
    int64_t given_back = 0;
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r)
      given_back += state.held_blocks(s.inputs[0].as<int32_t>()[r]);
    DUET_TRY(check_pool(s, state, given_back));
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r) state.release(s.inputs[0].as<int32_t>()[r]);
    return {};
  }
};

// forced_tokens(slots, added?; state; token) -> i32[rows]: `token` where the token to be chosen is the last
// one that the slot's limit allows, else -1. added: tokens cached in this call, 1 if left out.
class ForcedTokens : public StateOperator {
 public:
  explicit ForcedTokens(AttributeReader& a)
      : StateOperator(2), token_(static_cast<int32_t>(a.integer("token", -1, INT32_MAX))) {}
  std::string_view kind() const override { return "forced_tokens"; }
  std::vector<int> written_inputs() const override { return {}; }

  Status run(const Step& s, Worker) const override {
    SlotState state = this->state(s);
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r) {
      int32_t slot = s.inputs[0].as<int32_t>()[r];
      DUET_TRY(check_slot(s, state, slot));
      int64_t added = s.inputs[1] ? s.inputs[1].as<int32_t>()[r] : 1;
      s.outputs[0].as<int32_t>()[r] = state.positions[slot] + added >= state.limits[slot] ? token_ : -1;
    }
    return {};
  }

 protected:
  bool optional_input(int) const override { return true; }
  bool has_output() const override { return true; }

 private:
  int32_t token_;
};

// advance(slots, ids, added?; state; end) -> finished i32[rows]: the chosen ids become the next inputs; a
// slot whose id is `end`, or whose limit is reached, has finished and gives back its blocks.
class Advance : public StateOperator {
 public:
  explicit Advance(AttributeReader& a)
      : StateOperator(3), end_(static_cast<int32_t>(a.integer("end", 0, INT32_MAX))) {}
  std::string_view kind() const override { return "advance"; }

  Status run(const Step& s, Worker) const override {
    SlotState state = this->state(s);
    DUET_TRY(check_slots(s, state, true));
    auto added = [&](int64_t r) { return s.inputs[2] ? s.inputs[2].as<int32_t>()[r] : 1; };
    auto finishes = [&](int64_t slot, int32_t id, int64_t position) {
      return id == end_ || position >= state.limits[slot];
    };
    int64_t given_back = 0;
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r) {
      int32_t slot = s.inputs[0].as<int32_t>()[r];
      int64_t position = int64_t{state.positions[slot]} + added(r);
      if (added(r) < 1 || position > state.self_capacity)
        return failure(ErrorCode::kUsage, "{}: slot {} has {} tokens and gets {}, expected 1 to {} in all",
                       s.name, slot, state.positions[slot], added(r), state.self_capacity);
      if (finishes(slot, s.inputs[1].as<int32_t>()[r], position))
        given_back += blocks_of(position) + blocks_of(state.source_lengths[slot]);
    }
    DUET_TRY(check_pool(s, state, given_back));
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r) {
      int32_t slot = s.inputs[0].as<int32_t>()[r], id = s.inputs[1].as<int32_t>()[r];
      state.positions[slot] += added(r);
      state.tokens[slot] = id;
      bool finished = finishes(slot, id, state.positions[slot]);
      if (finished) state.release(slot);
      s.outputs[0].as<int32_t>()[r] = finished;
    }
    return {};
  }

 protected:
  bool optional_input(int i) const override { return i == 2; }
  bool has_output() const override { return true; }

 private:
  int32_t end_;
};

template <class T>
std::shared_ptr<const Operator> make(AttributeReader& a) {
  return std::make_shared<T>(a);
}

constexpr OperatorRow kTable[] = {{"open_slots", make<OpenSlots>},
                                  {"extend_slots", make<ExtendSlots>},
                                  {"release_slots", make<ReleaseSlots>},
                                  {"forced_tokens", make<ForcedTokens>},
                                  {"advance", make<Advance>}};

}  // namespace

std::span<const OperatorRow> state_operators() { return kTable; }

}  // namespace duet::model
