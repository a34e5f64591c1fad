#include "model/session.h"

#include <fnmatch.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cstring>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "model/kernels/kernels.h"

namespace duet::model {
namespace {

// Rounding to nearest, no flushing of subnormal numbers, whatever the caller's thread had set: for invariant
// 1 of results.
class FloatingPointMode {
 public:
#if defined(__x86_64__)
  FloatingPointMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~FloatingPointMode() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  FloatingPointMode() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatingPointMode() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

constexpr int64_t kMostDistinct = 1 << 24;  // values that an input of distinct elements may have: a byte each

std::string dims_text(const TensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.dims[i]);
  return text + "]";
}

uint64_t now_nanoseconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Program> program,
                                                 const SessionOptions& options) {
  try {
    if (const char* problem = kernels::forced_isa_problem()) return failure(ErrorCode::kUsage, "{}", problem);
    const ProgramDefinition& definition = program->definition();
    DUET_ASSIGN(MemoryPlan plan, plan_memory(definition, options.limits, options.threads));
    std::vector<memory::MethodMemory> methods;
    for (const MethodPlan& m : plan.methods) methods.push_back({m.name, m.arena_bytes, m.shared_bytes});
    DUET_ASSIGN(auto memory, memory::SharedMemoryManager::create(methods, plan.shared_bytes, plan.io_bytes));
    DUET_ASSIGN(auto team, ThreadTeam::create(options.threads));
    std::unique_ptr<Session> session(
        new Session(std::move(program), std::move(plan), std::move(memory), std::move(team)));
    session->compile();
    for (size_t i = 0; i < definition.symbols.size(); ++i) {
      DUET_ASSIGN(int64_t least, evaluate(definition, definition.symbols[i].min, session->plan_.symbols));
      session->symbol_min_.push_back(least);
    }
    // Element bounds are numbers from here on.
    size_t widest = 0;
    for (CompiledMethod& compiled : session->methods_) {
      const Method& method = *compiled.method;
      for (const InputSpec& spec : method.inputs) {
        InputBounds bounds;
        if (spec.min_value) {
          DUET_ASSIGN(bounds.min, evaluate(definition, *spec.min_value, session->plan_.symbols));
        }
        if (spec.max_value) {
          DUET_ASSIGN(bounds.max, evaluate(definition, *spec.max_value, session->plan_.symbols));
        }
        bounds.sums_to = spec.sums_to.empty() ? -1 : static_cast<int>(definition.symbol_index(spec.sums_to));
        bounds.min = std::max<int64_t>(bounds.min, INT32_MIN);  // so that their difference fits
        bounds.max = std::clamp<int64_t>(bounds.max, bounds.min - 1, INT32_MAX);
        bounds.distinct = spec.distinct;
        if (bounds.distinct && bounds.max - bounds.min >= kMostDistinct)
          return failure(options.limits.empty() ? ErrorCode::kBadInput : ErrorCode::kUsage,
                         "method {}, input {}: elements from {} to {} are too many to be told apart",
                         method.name, spec.name, bounds.min, bounds.max);
        if (bounds.distinct) widest = std::max(widest, static_cast<size_t>(bounds.max - bounds.min + 1));
        compiled.bounds.push_back(bounds);
      }
    }
    session->seen_.resize(widest);
    int init = session->find_method("et_module_init");
    if (init >= 0 && definition.methods[static_cast<size_t>(init)].inputs.empty())
      DUET_TRY(session->execute(init, {}));
    return session;
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "out of memory while making a session");
  }
}

Session::Session(std::shared_ptr<const Program> program, MemoryPlan plan, memory::SharedMemoryManager memory,
                 std::unique_ptr<ThreadTeam> team)
    : program_(std::move(program)),
      plan_(std::move(plan)),
      memory_(std::move(memory)),
      team_(std::move(team)),
      symbols_(plan_.symbols),
      bound_(plan_.symbols.size()) {}

int64_t Session::symbol(std::string_view name) const {
  return plan_.symbols[program_->definition().symbol_index(name)];
}

int Session::find_method(std::string_view name) const {
  const Method* method = program_->definition().find_method(name);
  return method ? static_cast<int>(method - program_->definition().methods.data()) : -1;
}

TensorView Session::view(const Method& method, const MethodPlan& plan, ValueRef ref) {
  TensorView view;
  if (ref.space == ValueRef::Space::kNone) return view;
  const ProgramDefinition& definition = program_->definition();
  const TensorSpec& spec = definition.spec(method, ref);
  view.dtype = spec.dtype;
  view.rank = static_cast<int>(spec.shape.size());
  for (int i = 0; i < view.rank; ++i)
    view.dims[i] = definition.size(spec.shape[static_cast<size_t>(i)], plan_.symbols);
  switch (ref.space) {
    case ValueRef::Space::kConstant:
      // Constants are never written: no operator may (check_program).
      view.data = const_cast<std::byte*>(definition.constants[ref.index].data.data());
      break;
    case ValueRef::Space::kShared:
      view.data = memory_.arena(memory::ArenaId::kShared) + plan_.shared_offsets[ref.index];
      break;
    default:
      view.data = memory_.arena(plan.values[ref.index].arena) + plan.values[ref.index].offset;
  }
  return view;
}

void Session::compile() {
  const ProgramDefinition& definition = program_->definition();
  methods_.resize(definition.methods.size());
  for (size_t m = 0; m < methods_.size(); ++m) {
    const Method& method = definition.methods[m];
    const MethodPlan& plan = plan_.methods[m];
    CompiledMethod& compiled = methods_[m];
    compiled.method = &method;
    auto views = [&](const auto& refs) {
      std::vector<TensorView> result;
      for (ValueRef ref : refs) result.push_back(view(method, plan, ref));
      return result;
    };
    auto patch = [&](std::vector<TensorView>& operands, const auto& refs) {
      for (size_t i = 0; i < operands.size(); ++i) {
        if (refs[i].space != ValueRef::Space::kValue) continue;
        const Shape& shape = method.values[refs[i].index].shape;
        for (size_t axis = 0; axis < shape.size(); ++axis) {
          if (shape[axis].kind() != Expression::Kind::kSymbol) continue;
          size_t symbol = definition.symbol_index(shape[axis].symbol());
          if (definition.symbols[symbol].kind == Symbol::Kind::kDynamic)
            compiled.patches.push_back({&operands[i].dims[axis], symbol});
        }
      }
    };
    std::vector<ValueRef> inputs, outputs;
    for (uint32_t i = 0; i < method.inputs.size(); ++i) inputs.push_back({ValueRef::Space::kValue, i});
    for (const MethodOutput& output : method.outputs) outputs.push_back(output.value);
    compiled.inputs = views(inputs);
    compiled.outputs = views(outputs);
    patch(compiled.inputs, inputs);
    patch(compiled.outputs, outputs);
    compiled.steps.reserve(method.operations.size());  // patches point into the steps
    for (size_t i = 0; i < method.operations.size(); ++i) {
      const Operation& operation = method.operations[i];
      compiled.steps.push_back({&operation, views(operation.inputs), views(operation.outputs), {}});
      CompiledStep& step = compiled.steps.back();
      step.step = {step.inputs, step.outputs, memory_.arena(memory::ArenaId::kWorkspace) + plan.scratch[i],
                   operation.name};
      patch(step.inputs, operation.inputs);
      patch(step.outputs, operation.outputs);
    }
  }
}

Status Session::bind_shape(const InputSpec& spec, const TensorView& given) {
  if (given.dtype != spec.dtype)
    return failure(ErrorCode::kUsage, "input {} is {}, expected {}", spec.name, dtype_name(given.dtype),
                   dtype_name(spec.dtype));
  if (given.rank != static_cast<int>(spec.shape.size()))
    return failure(ErrorCode::kUsage, "input {} has shape {}, expected {}", spec.name, dims_text(given),
                   shape_text(spec.shape));
  for (int axis = 0; axis < given.rank; ++axis) {
    const Dim& dim = spec.shape[static_cast<size_t>(axis)];
    int64_t size = given.dims[axis];
    if (dim.kind() == Expression::Kind::kInteger) {
      if (size == dim.value()) continue;
      return failure(ErrorCode::kUsage, "input {} has shape {}, expected {}", spec.name, dims_text(given),
                     shape_text(spec.shape));
    }
    size_t symbol = program_->definition().symbol_index(dim.symbol());
    bool dynamic = program_->definition().symbols[symbol].kind == Symbol::Kind::kDynamic;
    if (dynamic && !bound_[symbol]) {
      if (size < symbol_min_[symbol] || size > plan_.symbols[symbol])
        return failure(ErrorCode::kUsage, "input {} has shape {}: {} is {}, expected {} to {}", spec.name,
                       dims_text(given), dim.symbol(), size, symbol_min_[symbol], plan_.symbols[symbol]);
      symbols_[symbol] = size;
      bound_[symbol] = true;
    } else if (size != symbols_[symbol]) {
      return failure(ErrorCode::kUsage, "input {} has shape {}: {} is {} here", spec.name, dims_text(given),
                     dim.symbol(), symbols_[symbol]);
    }
  }
  return {};
}

Status Session::check_values(const InputSpec& spec, const InputBounds& bounds, const TensorView& given) {
  if (spec.dtype != DType::kI32) return {};
  std::span<const int32_t> values(given.as<const int32_t>(), static_cast<size_t>(given.elements()));
  int64_t sum = 0;
  if (bounds.distinct) std::fill(seen_.begin(), seen_.end(), uint8_t{0});
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < bounds.min || values[i] > bounds.max)
      return failure(ErrorCode::kUsage, "input {}[{}] is {}, expected {} to {}", spec.name, i, values[i],
                     bounds.min, bounds.max);
    sum += values[i];
    if (bounds.distinct && seen_[static_cast<size_t>(values[i] - bounds.min)]++)
      return failure(ErrorCode::kUsage, "input {}[{}] is {}, which stands there twice", spec.name, i,
                     values[i]);
  }
  if (bounds.sums_to >= 0 && sum != symbols_[static_cast<size_t>(bounds.sums_to)])
    return failure(ErrorCode::kUsage, "input {} adds up to {}, expected {} = {}", spec.name, sum,
                   spec.sums_to, symbols_[static_cast<size_t>(bounds.sums_to)]);
  return {};
}

Status Session::bind(const Method& method, CompiledMethod& compiled, std::span<const TensorView> inputs) {
  if (inputs.size() != method.inputs.size()) {
    std::string expected;
    for (const InputSpec& spec : method.inputs) expected += (expected.empty() ? "" : ", ") + spec.name;
    return failure(ErrorCode::kUsage, "{} inputs, expected {}: {}", inputs.size(), method.inputs.size(),
                   expected);
  }
  std::fill(bound_.begin(), bound_.end(), false);
  for (size_t i = 0; i < inputs.size(); ++i) DUET_TRY(bind_shape(method.inputs[i], inputs[i]));
  for (size_t i = 0; i < inputs.size(); ++i)
    DUET_TRY(check_values(method.inputs[i], compiled.bounds[i], inputs[i]));
  for (const Patch& patch : compiled.patches) *patch.size = symbols_[patch.symbol];
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].bytes() > 0) std::memmove(compiled.inputs[i].data, inputs[i].data, inputs[i].bytes());
  return {};
}

Result<std::span<const TensorView>> Session::execute(int method, std::span<const TensorView> inputs) {
  if (method < 0 || method >= static_cast<int>(methods_.size()))
    return failure(ErrorCode::kUsage, "no method {}; the program has {}", method, methods_.size());
  CompiledMethod& compiled = methods_[static_cast<size_t>(method)];
  const Method& spec = *compiled.method;
  memory::InUse in_use(in_use_);
  if (!in_use)
    return failure(ErrorCode::kUsage,
                   "method {}: the session is in use by another call; a session serves one caller at a time, "
                   "make one for each thread",
                   spec.name);
  Status status = bind(spec, compiled, inputs);
  if (status) status = reference_ ? run_reference(compiled) : run_steps(compiled);
  DUET_TRY(program_->check_file());  // what was computed from lost pages is nothing to hand out
  if (!status) return failure(status.error().code, "method {}: {}", spec.name, status.error().message);
  return std::span<const TensorView>(compiled.outputs);
}

Status Session::run_steps(CompiledMethod& method) {
  running_ = &method;
  failed_step_ = INT32_MAX;
  team_->run([](void* session, Worker worker) { static_cast<Session*>(session)->run_worker(worker); }, this);
  if (failed_step_ != INT32_MAX) return tl::make_unexpected(error_);
  return {};
}

void Session::record_failure(int step, const Error& error) {
  while (failure_lock_.test_and_set(std::memory_order_acquire)) {
  }
  if (step < failed_step_.load()) {
    error_ = error;
    failed_step_ = step;
  }
  failure_lock_.clear(std::memory_order_release);
}

void Session::run_worker(Worker worker) {
  FloatingPointMode mode;
  auto meet = [&] {
    if (worker.count > 1) team_->barrier();
  };
  const auto& steps = running_->steps;
  const bool hooked = !running_->hooks.empty();
  const bool timed = worker.index == 0 && (hooked || !running_->nanoseconds.empty());
  uint64_t before = timed ? now_nanoseconds() : 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Operator& op = *steps[i].operation->op;
    int index = static_cast<int>(i);
    auto attempt = [&](Status status) {
      if (!status) record_failure(index, status.error());
    };
    bool failed = failed_step_.load(std::memory_order_acquire) < index;
    if (!failed && (op.parallel() || worker.index == 0)) attempt(op.run(steps[i].step, worker));
    if (op.finishes()) {
      meet();
      if (failed_step_.load(std::memory_order_acquire) > index && worker.index == 0)
        attempt(op.finish(steps[i].step));
    }
    // Steps that worker 0 runs alone need no meeting between them.
    const bool watched = hooked && !running_->hooks[i].empty();
    bool alone = !op.parallel() && i + 1 < steps.size() && !steps[i + 1].operation->op->parallel();
    if (!alone || watched) {
      meet();
      if (failed_step_.load(std::memory_order_acquire) <= index) return;
    }
    if (timed) {
      uint64_t now = now_nanoseconds();
      if (!running_->nanoseconds.empty()) running_->nanoseconds[i] += now - before;
      if (watched) {
        call_hooks(*running_, i, now - before);
        now = now_nanoseconds();
      }
      before = now;
    }
    if (watched) meet();  // the next step may work in the memory that the hook looks at
  }
}

Status Session::run_reference(CompiledMethod& method) {
  FloatingPointMode mode;
  for (size_t i = 0; i < method.steps.size(); ++i) {
    const CompiledStep& step = method.steps[i];
    uint64_t before = method.hooks.empty() ? 0 : now_nanoseconds();
    ReferencePrimitives primitives(observer_);
    DUET_TRY(step.operation->op->decompose(step.step, primitives));
    if (!method.hooks.empty()) call_hooks(method, i, now_nanoseconds() - before);
  }
  return {};
}

size_t Session::add_hook(const std::string& pattern, OperatorHook hook) {
  size_t matches = 0;
  for (CompiledMethod& method : methods_) {
    for (size_t i = 0; i < method.steps.size(); ++i) {
      if (::fnmatch(pattern.c_str(), method.steps[i].operation->name.c_str(), 0) != 0) continue;
      method.hooks.resize(method.steps.size());
      method.hooks[i].push_back(hooks_.size());
      ++matches;
    }
  }
  hooks_.push_back(std::move(hook));
  return matches;
}

void Session::remove_hooks() {
  for (CompiledMethod& method : methods_) method.hooks.clear();
  hooks_.clear();
}

void Session::call_hooks(const CompiledMethod& method, size_t step, uint64_t nanoseconds) const {
  const CompiledStep& compiled = method.steps[step];
  for (size_t hook : method.hooks[step])
    hooks_[hook]({*method.method, *compiled.operation, compiled.inputs, compiled.outputs, nanoseconds});
}

void Session::use_reference(ReferencePrimitives::Observer observer) {
  reference_ = true;
  observer_ = std::move(observer);
}

void Session::time_steps() {
  for (CompiledMethod& method : methods_) method.nanoseconds.assign(method.steps.size(), 0);
}

TensorView Session::shared(std::string_view name) {
  auto index = program_->definition().find_shared(name);
  if (!index) return {};
  return view({}, {}, {ValueRef::Space::kShared, *index});  // of no method in particular
}

}  // namespace duet::model
