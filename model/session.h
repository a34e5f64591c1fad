// One mutable instance of a program: its arenas, its threads, its methods compiled to flat lists of steps.
// Used by one caller at a time; any number of sessions, in any threads, share a program. A process may fork
// as long as it has no session with threads: a child inherits programs, but not the threads of sessions.
//
// Invariants:
//  1. A call either fails in its checks and changes nothing, or runs to its end.
//  2. Results do not depend on the number of threads, nor on what arenas held where nothing was written.
//  3. Nothing is allocated between create() and the destructor, except for error messages and hooks.
//  4. A call that comes while another thread's call runs is refused, and changes nothing.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/in_use.h"
#include "memory/shared_memory_manager.h"
#include "model/memory_plan.h"
#include "model/operators/operator.h"
#include "model/primitives.h"
#include "model/program.h"
#include "model/thread_team.h"

namespace duet::model {

// An operator that has just been executed, as a hook sees it: the views are valid during the hook only, and
// are not to be written to. What an operator changes in place is among its inputs (Operator::written_inputs).
struct OperatorEvent {
  const Method& method;
  const Operation& operation;           // name, kind, attributes, which tensors
  std::span<const TensorView> inputs;   // in the order of operation.inputs
  std::span<const TensorView> outputs;  // in the order of operation.outputs
  uint64_t nanoseconds;                 // wall time, the wait for the slowest thread included
};
using OperatorHook = std::function<void(const OperatorEvent&)>;

struct SessionOptions {
  Limits limits;
  int threads = 1;
};

class Session {
 public:
  // Plans, maps and logs the arenas, starts the threads and runs et_module_init.
  // Errors: kUsage (limits), kOutOfMemory, kBadInput.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Program> program,
                                                 const SessionOptions& options);

  const Program& program() const { return *program_; }
  const MemoryPlan& plan() const { return plan_; }
  int64_t symbol(std::string_view name) const;  // a limit's or derived symbol's value. REQUIRES: it exists.

  // The index of a method, -1 if there is none.
  int find_method(std::string_view name) const;

  // Runs a method. `inputs` are in the order of the method's inputs; they are copied. The outputs stay valid
  // until the next call of this session. Errors: kUsage for inputs of a wrong count, dtype, shape or value,
  // for state that does not allow the call, and for a call while another one runs; kExhausted when the cache
  // is full.
  Result<std::span<const TensorView>> execute(int method, std::span<const TensorView> inputs);

  // The outputs of the latest call of a method, by index; valid until the next call.
  std::span<const TensorView> outputs(int method) const {
    return methods_[static_cast<size_t>(method)].outputs;
  }

  // A shared buffer, for looking at and for tests; an empty view if there is none.
  TensorView shared(std::string_view name);
  // All shared buffers, as they lie: what a session's state is. Whoever writes to it may write anything; the
  // operators check what they find.
  std::span<std::byte> shared_arena() {
    return {memory_.arena(memory::ArenaId::kShared), memory_.arena_bytes(memory::ArenaId::kShared)};
  }

  // Instead of the fast kernels: the operators' decompositions, slow and canonical. `observer` is told every
  // named value ("model.encoder.layers.0.fc1").
  void use_reference(ReferencePrimitives::Observer observer);
  // From now on `hook` is told of every executed operator whose name matches the pattern (of a shell:
  // "model.decoder.*.fc1"; "*" is all), on the caller's thread, in the order of execution and of add_hook().
  // Operators wait for their hooks and go on with all threads. A hook must not throw, nor call the session.
  // Without hooks there is nothing to pay. Gives the number of operators that match; 0 is likely a mistake.
  size_t add_hook(const std::string& pattern, OperatorHook hook);
  void remove_hooks();
  void poison_workspace() { memory_.poison_workspace(); }

  // Adds up the time of each operator from now on; off, it costs nothing.
  void time_steps();
  // Nanoseconds per operator of a method, over all its calls. Empty unless time_steps() was called.
  std::span<const uint64_t> step_nanoseconds(int method) const {
    return methods_[static_cast<size_t>(method)].nanoseconds;
  }

 private:
  struct CompiledStep {
    const Operation* operation;
    std::vector<TensorView> inputs, outputs;
    Step step;
  };
  struct Patch {  // a dimension that changes from call to call
    int64_t* size;
    size_t symbol;
  };
  struct InputBounds {
    int64_t min = INT32_MIN, max = INT32_MAX;  // of the elements
    int sums_to = -1;                          // symbol
    bool distinct = false;
  };
  struct CompiledMethod {
    const Method* method;
    std::vector<InputBounds> bounds;  // per input
    std::vector<CompiledStep> steps;
    std::vector<TensorView> inputs, outputs;
    std::vector<Patch> patches;
    std::vector<uint64_t> nanoseconds;       // per step; empty unless timed
    std::vector<std::vector<size_t>> hooks;  // per step, indices of hooks_; empty when no step has any
  };

  Session(std::shared_ptr<const Program> program, MemoryPlan plan, memory::SharedMemoryManager memory,
          std::unique_ptr<ThreadTeam> team);
  void compile();
  TensorView view(const Method& method, const MethodPlan& plan, ValueRef ref);
  Status bind(const Method& method, CompiledMethod& compiled, std::span<const TensorView> inputs);
  Status bind_shape(const InputSpec& spec, const TensorView& given);
  Status check_values(const InputSpec& spec, const InputBounds& bounds, const TensorView& given);
  Status run_steps(CompiledMethod& method);
  void call_hooks(const CompiledMethod& method, size_t step, uint64_t nanoseconds) const;
  Status run_reference(CompiledMethod& method);
  void run_worker(Worker worker);
  void record_failure(int step, const Error& error);

  std::shared_ptr<const Program> program_;
  MemoryPlan plan_;
  memory::SharedMemoryManager memory_;
  std::unique_ptr<ThreadTeam> team_;
  std::vector<CompiledMethod> methods_;
  std::vector<int64_t> symbol_min_;  // of dynamic symbols
  std::vector<int64_t> symbols_;     // bound by the current call
  std::vector<bool> bound_;          // per symbol
  std::vector<uint8_t> seen_;        // for inputs whose elements must be distinct
  bool reference_ = false;
  ReferencePrimitives::Observer observer_;
  std::vector<OperatorHook> hooks_;
  memory::InUseFlag in_use_;

  // The call in progress, shared by the workers.
  CompiledMethod* running_ = nullptr;
  std::atomic<int> failed_step_{INT32_MAX};
  std::atomic_flag failure_lock_ = ATOMIC_FLAG_INIT;
  Error error_{ErrorCode::kUsage, ""};
};

}  // namespace duet::model
