#include "model/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "model/operators/operator.h"

namespace duet::model {
namespace {

// A tensor at its largest size, without memory.
TensorView largest_view(const ProgramDefinition& definition, const TensorSpec& spec,
                        std::span<const int64_t> symbols) {
  TensorView view;
  view.dtype = spec.dtype;
  view.rank = static_cast<int>(spec.shape.size());
  for (int i = 0; i < view.rank; ++i)
    view.dims[i] = definition.size(spec.shape[static_cast<size_t>(i)], symbols);
  return view;
}

class MethodPlanner {
 public:
  MethodPlanner(const ProgramDefinition& definition, const Method& method, const MemoryPlan& memory)
      : definition_(definition), method_(method), memory_(memory), group_(method.values.size()) {
    std::iota(group_.begin(), group_.end(), size_t{0});
  }

  Result<MethodPlan> plan() {
    plan_.name = method_.name;
    plan_.steps = static_cast<int>(method_.operations.size());
    plan_.values.resize(method_.values.size());
    DUET_TRY(find_lifetimes());
    share_in_place();
    DUET_TRY(place_workspace());
    DUET_TRY(place_io());
    place_shared();
    return std::move(plan_);
  }

 private:
  struct Life {
    uint64_t bytes = 0;
    int first = 0, last = 0;
    bool io = false;
  };

  Status find_lifetimes() {
    lives_.resize(method_.values.size());
    for (size_t i = 0; i < lives_.size(); ++i) {
      DUET_ASSIGN(lives_[i].bytes, tensor_bytes(definition_, method_.values[i], memory_.symbols));
      lives_[i].io = i < method_.inputs.size();
    }
    for (const MethodOutput& output : method_.outputs)
      if (output.value.space == ValueRef::Space::kValue) lives_[output.value.index].io = true;
    for (int step = 0; step < plan_.steps; ++step) {
      const Operation& operation = method_.operations[static_cast<size_t>(step)];
      for (ValueRef ref : operation.outputs) lives_[ref.index].first = lives_[ref.index].last = step;
      for (ValueRef ref : operation.inputs)
        if (ref.space == ValueRef::Space::kValue) lives_[ref.index].last = step;
    }
    return {};
  }

  // Output 0 joins the group of the operand it may replace, if nothing needs that operand any more.
  void share_in_place() {
    for (int step = 0; step < plan_.steps; ++step) {
      const Operation& operation = method_.operations[static_cast<size_t>(step)];
      int reusable = operation.op->reusable_input();
      if (reusable < 0 || reusable >= static_cast<int>(operation.inputs.size()) || operation.outputs.empty())
        continue;
      ValueRef operand = operation.inputs[static_cast<size_t>(reusable)];
      if (operand.space != ValueRef::Space::kValue) continue;
      if (std::count(operation.inputs.begin(), operation.inputs.end(), operand) != 1) continue;
      size_t from = group_[operand.index], to = operation.outputs[0].index;
      if (lives_[operand.index].io || lives_[from].io || lives_[to].io) continue;
      if (lives_[from].last != step || lives_[from].bytes != lives_[to].bytes) continue;
      group_[to] = from;
      lives_[from].last = lives_[to].last;
    }
  }

  Status place_workspace() {
    std::vector<memory::BufferRequest> requests;
    std::vector<size_t> request_of(method_.values.size(), SIZE_MAX), scratch_request;
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (lives_[i].io || group_[i] != i) continue;
      request_of[i] = requests.size();
      requests.push_back({method_.values[i].name, lives_[i].bytes, lives_[i].first, lives_[i].last});
    }
    for (int step = 0; step < plan_.steps; ++step) {
      scratch_request.push_back(requests.size());
      const Operation& operation = method_.operations[static_cast<size_t>(step)];
      requests.push_back({operation.name + ".scratch", scratch_bytes(operation), step, step});
    }
    DUET_ASSIGN(memory::ArenaPlan arena, memory::plan_arena(requests));
    plan_.arena_bytes = arena.arena_bytes;
    plan_.naive_bytes = arena.naive_bytes;
    plan_.lower_bound_bytes = arena.lower_bound_bytes;
    for (size_t i = 0; i < lives_.size(); ++i)
      if (!lives_[i].io)
        plan_.values[i] = {memory::ArenaId::kWorkspace, arena.offsets[request_of[group_[i]]]};
    for (size_t request : scratch_request) plan_.scratch.push_back(arena.offsets[request]);
    for (size_t i = 0; i < requests.size(); ++i)
      if (requests[i].bytes > 0)
        plan_.buffers.push_back({requests[i].name, memory::ArenaId::kWorkspace, arena.offsets[i],
                                 requests[i].bytes, requests[i].first, requests[i].last});
    return {};
  }

  uint64_t scratch_bytes(const Operation& operation) const {
    std::vector<TensorView> inputs, outputs;
    auto view = [&](ValueRef ref) {
      return ref.space == ValueRef::Space::kNone
                 ? TensorView()
                 : largest_view(definition_, definition_.spec(method_, ref), memory_.symbols);
    };
    for (ValueRef ref : operation.inputs) inputs.push_back(view(ref));
    for (ValueRef ref : operation.outputs) outputs.push_back(view(ref));
    return operation.op->scratch_bytes({inputs, outputs, nullptr, operation.name}, memory_.threads);
  }

  Status place_io() {
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!lives_[i].io) continue;
      plan_.values[i] = {memory::ArenaId::kIo, plan_.io_bytes};
      plan_.buffers.push_back({method_.values[i].name, memory::ArenaId::kIo, plan_.io_bytes, lives_[i].bytes,
                               0, std::max(0, plan_.steps - 1)});
      if (__builtin_add_overflow(plan_.io_bytes, memory::aligned(lives_[i].bytes), &plan_.io_bytes))
        return failure(ErrorCode::kBadInput, "method {}: the sizes of its inputs and outputs overflow",
                       method_.name);
    }
    return {};
  }

  void place_shared() {
    std::vector<bool> used(definition_.shared.size(), method_.name == "et_module_init");
    auto mark = [&](ValueRef ref) {
      if (ref.space == ValueRef::Space::kShared) used[ref.index] = true;
    };
    for (const Operation& operation : method_.operations)
      std::for_each(operation.inputs.begin(), operation.inputs.end(), mark);
    for (const MethodOutput& output : method_.outputs) mark(output.value);
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) continue;
      uint64_t end = i + 1 < used.size() ? memory_.shared_offsets[i + 1] : memory_.shared_bytes;
      uint64_t bytes = *tensor_bytes(definition_, definition_.shared[i], memory_.symbols);
      plan_.shared_bytes += end - memory_.shared_offsets[i];
      plan_.buffers.push_back({definition_.shared[i].name, memory::ArenaId::kShared,
                               memory_.shared_offsets[i], bytes, 0, std::max(0, plan_.steps - 1)});
    }
  }

  const ProgramDefinition& definition_;
  const Method& method_;
  const MemoryPlan& memory_;
  MethodPlan plan_;
  std::vector<Life> lives_;    // per value; of a group, its first value's entry counts
  std::vector<size_t> group_;  // per value: the value whose memory it uses
};

}  // namespace

Result<MemoryPlan> plan_memory(const ProgramDefinition& definition, const Limits& limits, int threads) {
  if (threads < 1 || threads > kMaxThreads)
    return failure(ErrorCode::kUsage, "threads is {}, expected 1 to {}", threads, kMaxThreads);
  MemoryPlan plan;
  plan.threads = threads;
  DUET_ASSIGN(plan.symbols, resolve_symbols(definition, limits));
  for (const SharedBuffer& buffer : definition.shared) {
    DUET_ASSIGN(uint64_t bytes, tensor_bytes(definition, buffer, plan.symbols));
    plan.shared_offsets.push_back(plan.shared_bytes);
    if (__builtin_add_overflow(plan.shared_bytes, memory::aligned(bytes), &plan.shared_bytes))
      return failure(ErrorCode::kBadInput, "the shared buffers' sizes overflow");
  }
  for (const Method& method : definition.methods) {
    DUET_ASSIGN(MethodPlan method_plan, MethodPlanner(definition, method, plan).plan());
    plan.workspace_bytes = std::max(plan.workspace_bytes, method_plan.arena_bytes);
    plan.io_bytes = std::max(plan.io_bytes, method_plan.io_bytes);
    plan.methods.push_back(std::move(method_plan));
  }
  return plan;
}

}  // namespace duet::model
