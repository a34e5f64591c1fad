#include "runner/validate.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "runner/call_values.h"

namespace duet::runner {
namespace {

using model::DType;
using model::InputSpec;
using model::Method;
using model::Session;
using model::Symbol;
using model::TensorView;
using Inputs = std::vector<Tensor>;

constexpr size_t kMostProblems = 20;
constexpr int64_t kMostElements = int64_t{1} << 24;       // of a forbidden input: larger ones are left out
constexpr uint64_t kMostInputBytes = uint64_t{64} << 20;  // of a call; larger ones are left out
constexpr int kPairRounds = 8;
constexpr Fill kFills[] = {Fill::kZeros, Fill::kOnes, Fill::kRange, Fill::kRand};

uint64_t state_hash(Session& session) {
  auto state = session.shared_arena();
  return XXH3_64bits(state.data(), state.size());
}

std::vector<TensorView> views_of(const Inputs& inputs) {
  std::vector<TensorView> views;
  for (const Tensor& tensor : inputs) views.push_back(tensor.view());
  return views;
}

// Zeros of a shape; what it holds does not matter where the shape is forbidden already.
Tensor blank(DType dtype, std::vector<int64_t> dims) {
  uint64_t elements = 1;
  for (int64_t dim : dims) elements *= static_cast<uint64_t>(dim);
  return {dtype, std::move(dims), std::vector<std::byte>(elements * model::element_bytes(dtype))};
}

bool same(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.rank == b.rank && std::equal(a.dims, a.dims + a.rank, b.dims) &&
         (a.bytes() == 0 || std::memcmp(a.data, b.data, a.bytes()) == 0);
}

class Validation {
 public:
  Validation(const ValidateOptions& options, std::unique_ptr<Session> one, std::unique_ptr<Session> many)
      : options_(options), one_(std::move(one)), many_(std::move(many)), state_(state_hash(*one_)) {}

  Result<ValidationReport> run() {
    const auto& methods = definition().methods;
    for (const Method& method : methods) report_.methods.push_back({method.name});
    for (size_t m = 0; m < methods.size(); ++m) DUET_TRY(boundary_calls(static_cast<int>(m)));
    for (size_t first = 0; first < methods.size(); ++first)
      for (size_t second = 0; second < methods.size(); ++second) DUET_TRY(pair_of_calls(first, second));
    for (int i = 0; i < options_.random_calls; ++i) DUET_TRY(random_call());
    return std::move(report_);
  }

 private:
  const model::ProgramDefinition& definition() const { return one_->program().definition(); }
  uint64_t next_random() { return random_bits(options_.seed, ++random_calls_); }

  void problem(int method, std::string text) {
    if (++report_.problem_count <= kMostProblems)
      report_.problems.push_back(
          fmt::format("method {}: {}", definition().methods[static_cast<size_t>(method)].name, text));
  }

  Status called() {
    if (options_.progress && !options_.progress(++calls_))
      return failure(ErrorCode::kInterrupted, "interrupted after {} calls", calls_);
    return {};
  }

  // The dynamic symbols that give a method's inputs their sizes.
  std::vector<size_t> sizes_of(const Method& method) const {
    std::set<size_t> found;
    for (const InputSpec& input : method.inputs)
      for (const model::Dim& dim : input.shape) {
        if (dim.kind() != model::Expression::Kind::kSymbol) continue;
        size_t symbol = definition().symbol_index(dim.symbol());
        if (definition().symbols[symbol].kind == Symbol::Kind::kDynamic) found.insert(symbol);
      }
    return {found.begin(), found.end()};
  }

  Result<int64_t> least(size_t symbol) const {
    return evaluate(definition(), definition().symbols[symbol].min, one_->plan().symbols);
  }

  // All sizes least, all largest, and each alone at the other end.
  Result<std::set<std::vector<int64_t>>> boundary_sizes(const Method& method) const {
    const std::vector<int64_t>& largest = one_->plan().symbols;
    std::vector<int64_t> smallest = largest;
    const auto sizes = sizes_of(method);
    for (size_t symbol : sizes) {
      DUET_ASSIGN(smallest[symbol], least(symbol));
    }
    std::set<std::vector<int64_t>> all = {smallest, largest};
    for (size_t symbol : sizes)
      for (auto [base, end] : {std::pair(smallest, largest[symbol]), std::pair(largest, smallest[symbol])}) {
        base[symbol] = end;
        all.insert(base);
      }
    return all;
  }

  Status boundary_calls(int m) {
    const Method& method = definition().methods[static_cast<size_t>(m)];
    DUET_ASSIGN(auto all, boundary_sizes(method));
    std::optional<Inputs> example;
    for (const auto& sizes : all)
      for (Fill fill : kFills) {
        auto inputs = make_inputs(method, sizes, fill, next_random());
        if (!inputs) {
          ++report_.methods[static_cast<size_t>(m)].impossible;
          continue;
        }
        DUET_TRY(allowed_call(m, *inputs));
        DUET_TRY(allowed_call(m, with_odd_floats(*inputs)));
        if (!example) example = std::move(*inputs);
      }
    return example ? forbidden_calls(m, *example) : Status();
  }

  // Two methods in a row on the same slots: inputs of one name and size get the same elements.
  Status pair_of_calls(size_t first, size_t second) {
    for (int round = 0; round < kPairRounds; ++round) {
      const uint64_t seed = next_random();
      for (size_t m : {first, second}) {
        const Method& method = definition().methods[m];
        std::vector<int64_t> sizes = one_->plan().symbols;
        for (size_t symbol : sizes_of(method)) {
          if (round == 0) continue;  // once at the largest sizes
          DUET_ASSIGN(sizes[symbol], least(symbol));
        }
        auto inputs = make_inputs(method, sizes, Fill::kRand, seed);
        if (inputs) DUET_TRY(allowed_call(static_cast<int>(m), *inputs));
      }
    }
    return {};
  }

  Status random_call() {
    auto m = static_cast<size_t>(next_random() % definition().methods.size());
    const Method& method = definition().methods[m];
    std::vector<int64_t> sizes = one_->plan().symbols;
    for (size_t symbol : sizes_of(method)) {
      DUET_ASSIGN(int64_t from, least(symbol));
      // Small sizes more often: they leave the state in more interesting shapes, and take less time.
      int64_t span = std::max<int64_t>(sizes[symbol] - from, 0) >> (next_random() % 12);
      sizes[symbol] = from + static_cast<int64_t>(next_random() % static_cast<uint64_t>(span + 1));
    }
    auto inputs = make_inputs(method, sizes, kFills[next_random() % std::size(kFills)], next_random());
    if (inputs) return allowed_call(static_cast<int>(m), *inputs);
    ++report_.methods[m].impossible;
    return {};
  }

  // Inputs of one name and size are the same for all methods, as long as fill and seed are.
  Result<Inputs> make_inputs(const Method& method, std::span<const int64_t> sizes, Fill fill,
                             uint64_t seed) const {
    Inputs inputs;
    uint64_t bytes = 0;
    for (const InputSpec& spec : method.inputs) {
      DUET_ASSIGN(uint64_t more, tensor_bytes(definition(), spec, sizes));
      if (more > kMostInputBytes || (bytes += more) > kMostInputBytes)
        return failure(ErrorCode::kUsage, "method {}: inputs of more than {} bytes", method.name,
                       kMostInputBytes);
    }
    for (const InputSpec& spec : method.inputs) {
      DUET_ASSIGN(Tensor tensor,
                  make_input({definition(), method, sizes}, spec, fill,
                             random_bits(seed, XXH3_64bits(spec.name.data(), spec.name.size()))));
      inputs.push_back(std::move(tensor));
    }
    return inputs;
  }

  // Any bits at all are floats: NaNs, infinities, subnormal numbers among them.
  Inputs with_odd_floats(Inputs inputs) {
    for (Tensor& tensor : inputs) {
      if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF64) continue;
      uint64_t seed = next_random();
      for (size_t at = 0; at < tensor.data.size(); at += 8) {
        uint64_t bits = random_bits(seed, at);
        std::memcpy(tensor.data.data() + at, &bits, std::min<size_t>(8, tensor.data.size() - at));
      }
    }
    return inputs;
  }

  Status allowed_call(int m, const Inputs& inputs) {
    auto views = views_of(inputs);
    many_->poison_workspace();
    auto a = one_->execute(m, views), b = many_->execute(m, views);
    MethodValidation& counts = report_.methods[static_cast<size_t>(m)];
    const uint64_t before = state_, other = state_hash(*many_);
    state_ = state_hash(*one_);
    if (a.has_value() != b.has_value() || state_ != other) {
      problem(m, fmt::format("1 thread and {} threads do not do the same", many_->plan().threads));
    } else if (!a) {
      ++counts.refused;
      if (a.error().code == ErrorCode::kIo || a.error().code == ErrorCode::kInterrupted)
        return tl::make_unexpected(a.error());
      if (state_ != before) problem(m, "was refused after it had changed the state: " + a.error().message);
    } else {
      ++counts.accepted;
      if (!std::equal(a->begin(), a->end(), b->begin(), b->end(), same))
        problem(m, fmt::format("outputs differ between 1 thread and {} threads", many_->plan().threads));
    }
    return called();
  }

  Status forbidden_call(int m, const Inputs& inputs, const std::string& what) {
    ++report_.methods[static_cast<size_t>(m)].forbidden;
    auto views = views_of(inputs);
    auto result = one_->execute(m, views);
    uint64_t before = state_;
    state_ = state_hash(*one_);
    if (result) {
      problem(m, fmt::format("took {}", what));
      (void)many_->execute(m, views);  // both stay alike
    } else if (state_ != before) {
      problem(m, fmt::format("changed the state for {}, which it refused", what));
    }
    return called();
  }

  Status forbidden_calls(int m, const Inputs& example) {
    const Method& method = definition().methods[static_cast<size_t>(m)];
    Inputs inputs = example;
    inputs.push_back(blank(DType::kF32, {1}));
    DUET_TRY(forbidden_call(m, inputs, "an input too many"));
    for (size_t i = 0; i < example.size(); ++i) {
      inputs = example;
      inputs.erase(inputs.begin() + static_cast<ptrdiff_t>(i));
      DUET_TRY(forbidden_call(m, inputs, fmt::format("no input {}", method.inputs[i].name)));
      DUET_TRY(forbidden_shapes(m, example, i));
      if (example[i].dtype == DType::kI32 && !example[i].data.empty())
        DUET_TRY(forbidden_elements(m, example, i));
    }
    return {};
  }

  Status forbidden_shapes(int m, const Inputs& example, size_t i) {
    const InputSpec& spec = definition().methods[static_cast<size_t>(m)].inputs[i];
    Inputs inputs = example;
    inputs[i] = blank(spec.dtype == DType::kF32 ? DType::kI32 : DType::kF32, example[i].dims);
    DUET_TRY(forbidden_call(m, inputs, fmt::format("another dtype for {}", spec.name)));
    if (spec.shape.size() < model::kMaxRank) {
      auto dims = example[i].dims;
      dims.push_back(1);
      inputs[i] = blank(spec.dtype, std::move(dims));
      DUET_TRY(forbidden_call(m, inputs, fmt::format("a dimension too many of {}", spec.name)));
    }
    for (size_t axis = 0; axis < spec.shape.size(); ++axis) {
      const model::Dim& dim = spec.shape[axis];
      std::vector<int64_t> forbidden;
      if (dim.kind() == model::Expression::Kind::kInteger) {
        forbidden = {dim.value() - 1, dim.value() + 1};
      } else {
        size_t symbol = definition().symbol_index(dim.symbol());
        int64_t most = one_->plan().symbols[symbol], from = most;
        if (definition().symbols[symbol].kind == Symbol::Kind::kDynamic) {
          DUET_ASSIGN(from, least(symbol));
        }
        forbidden = {from - 1, most + 1};
      }
      for (int64_t size : forbidden) {
        auto dims = example[i].dims;
        dims[axis] = 1;
        const int64_t others = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
        if (size < 0 || size > kMostElements / std::max<int64_t>(others, 1)) continue;
        dims[axis] = size;
        inputs[i] = blank(spec.dtype, dims);
        DUET_TRY(
            forbidden_call(m, inputs, fmt::format("size {} in dimension {} of {}", size, axis, spec.name)));
      }
    }
    return {};
  }

  Status forbidden_elements(int m, const Inputs& example, size_t i) {
    const Method& method = definition().methods[static_cast<size_t>(m)];
    const InputSpec& spec = method.inputs[i];
    auto with_element = [&](size_t at, int64_t value) {
      Inputs inputs = example;
      auto element = static_cast<int32_t>(value);
      std::memcpy(inputs[i].data.data() + at * sizeof element, &element, sizeof element);
      return inputs;
    };
    auto values = example[i].values<int32_t>();
    for (const auto& [bound, step] : {std::pair(&spec.min_value, -1), std::pair(&spec.max_value, 1)}) {
      if (!*bound) continue;
      DUET_ASSIGN(int64_t end, evaluate(definition(), **bound, one_->plan().symbols));
      if (end + step < INT32_MIN || end + step > INT32_MAX) continue;
      for (size_t at : {size_t{0}, values.size() - 1})
        DUET_TRY(forbidden_call(m, with_element(at, end + step),
                                fmt::format("element {} of {} = {}", at, spec.name, end + step)));
    }
    if (spec.distinct && values.size() > 1)
      DUET_TRY(forbidden_call(m, with_element(0, values.back()),
                              fmt::format("an element of {} twice", spec.name)));
    if (!spec.sums_to.empty())
      DUET_TRY(forbidden_call(m, with_element(0, int64_t{values[0]} + 1),
                              fmt::format("a wrong sum of {}", spec.name)));
    return {};
  }

  const ValidateOptions& options_;
  std::unique_ptr<Session> one_, many_;
  uint64_t state_;  // hash of one_'s
  uint64_t calls_ = 0, random_calls_ = 0;
  ValidationReport report_;
};

}  // namespace

Result<ValidationReport> validate(std::shared_ptr<const model::Program> program,
                                  const ValidateOptions& options) {
  try {
    model::SessionOptions one = options.session, many = options.session;
    one.threads = 1;
    many.threads = std::max(2, many.threads);
    DUET_ASSIGN(auto first, Session::create(program, one));
    DUET_ASSIGN(auto second, Session::create(program, many));
    return Validation(options, std::move(first), std::move(second)).run();
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "{}: out of memory while validating", program->path());
  }
}

}  // namespace duet::runner
