// Inputs made up from what a program declares: sizes first (fill_inputs), then elements (make_input).
#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "runner/call_values.h"

namespace duet::runner {
namespace {

using model::DType;
using model::InputSpec;
using model::Symbol;

constexpr uint64_t kMostFilled = uint64_t{1} << 25;  // elements: 256 MiB while they are 64-bit numbers
constexpr int64_t kMostSum = int64_t{1} << 60;       // beyond what kMostFilled elements add up to
constexpr int64_t kUnboundedWidth = 256;             // random integers without bounds are 0 to 255

int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
}

// What an input's elements may be, in numbers.
struct Elements {
  int64_t min, max;  // inclusive
  int64_t width() const { return max - min + 1; }
};

Result<Elements> element_bounds(const CallTarget& target, const InputSpec& input) {
  if (input.dtype == DType::kBool) return Elements{0, 1};
  if (input.dtype == DType::kU8) return Elements{0, 255};
  int64_t min = INT32_MIN, max = INT32_MAX;  // bounds are for i32 alone (check_program)
  if (input.min_value) {
    DUET_ASSIGN(min, evaluate(target.definition, *input.min_value, target.symbols));
  }
  if (input.max_value) {
    DUET_ASSIGN(max, evaluate(target.definition, *input.max_value, target.symbols));
  }
  return Elements{std::clamp<int64_t>(min, INT32_MIN, INT32_MAX),
                  std::clamp<int64_t>(max, INT32_MIN, INT32_MAX)};
}

template <class... Args>
tl::unexpected<Error> cannot_fill(const CallTarget& target, const InputSpec& input,
                                  fmt::format_string<Args...> format, Args&&... args) {
  return failure(ErrorCode::kUsage, "method {}, input {}: cannot be filled: {}", target.method.name,
                 input.name, fmt::format(format, std::forward<Args>(args)...));
}

// --- Elements

// A random number 0 to width - 1; its bias is below width / 2^64.
int64_t random_below(uint64_t bits, int64_t width) {
  return static_cast<int64_t>(
      (static_cast<unsigned __int128>(bits) * static_cast<unsigned __int128>(width)) >> 64);
}

// n different numbers of `bounds`, by Fisher and Yates; only displaced numbers are kept.
// REQUIRES: n <= width.
std::vector<int64_t> random_distinct(Elements bounds, size_t n, uint64_t seed) {
  std::unordered_map<int64_t, int64_t> displaced;
  auto at = [&](int64_t i) {
    auto found = displaced.find(i);
    return found == displaced.end() ? i : found->second;
  };
  std::vector<int64_t> values(n);
  for (size_t i = 0; i < n; ++i) {
    auto from = static_cast<int64_t>(i);
    int64_t other = from + random_below(random_bits(seed, i), bounds.width() - from);
    values[i] = bounds.min + at(other);
    displaced[other] = at(from);
  }
  return values;
}

// n different numbers of `bounds` that add up to `sum`: the least ones, the last of which are raised.
// REQUIRES: n <= width.
bool distinct_with_sum(Elements bounds, int64_t sum, std::vector<int64_t>& values) {
  std::iota(values.begin(), values.end(), bounds.min);
  int64_t left = sum - std::accumulate(values.begin(), values.end(), int64_t{0});
  int64_t most = bounds.width() - static_cast<int64_t>(values.size());
  for (size_t i = values.size(); i-- > 0 && left > 0;) {
    int64_t raise = std::min(left, most);
    values[i] += raise;
    left -= raise;
  }
  return left == 0;
}

// Numbers of `bounds` that add up to `sum`. False when there are none.
bool with_sum(Elements bounds, int64_t sum, std::vector<int64_t>& values, bool random, uint64_t seed) {
  auto n = static_cast<int64_t>(values.size());
  int64_t left = sum - n * bounds.min;  // what is to be spread over elements that are all `min`
  int64_t cap = bounds.max - bounds.min;
  if (left < 0 || left > saturating_mul(n, cap)) return false;
  for (int64_t i = 0; i < n; ++i) {
    int64_t others = n - i - 1, share = (left + others) / (others + 1);
    if (random) {  // at most twice the mean, and not so little that the others could not take the rest
      int64_t least = std::max<int64_t>(0, left - saturating_mul(others, cap));
      int64_t most = std::max(least, std::min({cap, left, 2 * left / (others + 1)}));
      share = least + random_below(random_bits(seed, static_cast<uint64_t>(i)), most - least + 1);
      if (others == 0) share = left;
    }
    values[static_cast<size_t>(i)] = bounds.min + share;
    left -= share;
  }
  return true;
}

int64_t plain_element(const InputSpec& input, Elements bounds, Fill fill, uint64_t seed, uint64_t i) {
  bool bounded = input.min_value || input.max_value;
  switch (fill) {
    case Fill::kOnes:
      return std::clamp<int64_t>(1, bounds.min, bounds.max);
    case Fill::kZeros:
      return std::clamp<int64_t>(0, bounds.min, bounds.max);
    case Fill::kRange:
      if (bounds.min <= 0 && !input.min_value) bounds.min = 0;
      if (bounds.max < bounds.min) bounds.min = bounds.max;
      return bounds.min + static_cast<int64_t>(i % static_cast<uint64_t>(bounds.width()));
    case Fill::kRand:
      break;
  }
  // An open end is as far away as the other allows.
  if (!bounded) bounds = {std::max<int64_t>(bounds.min, 0), std::min(bounds.max, kUnboundedWidth - 1)};
  if (input.min_value && !input.max_value)
    bounds.max = std::min(bounds.max, bounds.min + kUnboundedWidth - 1);
  if (input.max_value && !input.min_value)
    bounds.min = std::max(bounds.min, bounds.max - kUnboundedWidth + 1);
  return bounds.min + random_below(random_bits(seed, i), bounds.width());
}

Status integer_elements(const CallTarget& target, const InputSpec& input, Fill fill, uint64_t seed,
                        std::vector<int64_t>& values) {
  DUET_ASSIGN(Elements bounds, element_bounds(target, input));
  auto n = static_cast<int64_t>(values.size());
  if (n > 0 && bounds.max < bounds.min)
    return cannot_fill(target, input, "no element is {} to {}", bounds.min, bounds.max);
  if (input.distinct && n > bounds.width())
    return cannot_fill(target, input, "{} different elements from {} to {} do not exist", n, bounds.min,
                       bounds.max);
  if (!input.sums_to.empty()) {
    int64_t sum = std::min(target.symbols[target.definition.symbol_index(input.sums_to)], kMostSum);
    bool done = input.distinct ? distinct_with_sum(bounds, sum, values)
                               : with_sum(bounds, sum, values, fill == Fill::kRand, seed);
    if (!done)
      return cannot_fill(target, input, "{} elements of {} to {} do not add up to {} = {}", n, bounds.min,
                         bounds.max, input.sums_to, sum);
  } else if (input.distinct) {
    if (fill == Fill::kRand)
      values = random_distinct(bounds, values.size(), seed);
    else
      std::iota(values.begin(), values.end(), bounds.min);
  } else {
    for (size_t i = 0; i < values.size(); ++i) values[i] = plain_element(input, bounds, fill, seed, i);
  }
  return {};
}

template <class T>
void store(const std::vector<int64_t>& values, Tensor& tensor) {
  auto* to = reinterpret_cast<T*>(tensor.data.data());
  for (size_t i = 0; i < values.size(); ++i) to[i] = static_cast<T>(values[i]);
}

template <class T>
void fill_floats(Tensor& tensor, Fill fill, uint64_t seed) {
  constexpr int kBits = std::numeric_limits<T>::digits;
  auto* to = reinterpret_cast<T*>(tensor.data.data());
  for (size_t i = 0; i < tensor.data.size() / sizeof(T); ++i) {
    T random =
        static_cast<T>(random_bits(seed, i) >> (64 - kBits)) / static_cast<T>(uint64_t{1} << (kBits - 1));
    to[i] = fill == Fill::kOnes    ? 1
            : fill == Fill::kZeros ? 0
            : fill == Fill::kRange ? static_cast<T>(i)
                                   : random - 1;
  }
}

// --- Sizes

class SizeChooser {
 public:
  SizeChooser(const CallTarget& target, const std::map<std::string, Tensor>& given)
      : target_(target),
        given_(given),
        sizes_(target.symbols.begin(), target.symbols.end()),
        bound_(sizes_.size()) {}

  Result<std::vector<int64_t>> choose() {
    for (const InputSpec& input : target_.method.inputs)
      if (auto found = given_.find(input.name); found != given_.end()) bind(input, found->second);
    for (const InputSpec& input : target_.method.inputs)
      if (auto found = given_.find(input.name); found != given_.end()) bind_sum(input, found->second);
    // A size made smaller for one input may be too large for another; each round makes some smaller.
    for (size_t round = 0; round <= target_.method.inputs.size(); ++round)
      for (const InputSpec& input : target_.method.inputs) DUET_TRY(shrink(input));
    return std::move(sizes_);
  }

 private:
  bool is_free(size_t symbol) const {
    return target_.definition.symbols[symbol].kind == Symbol::Kind::kDynamic && !bound_[symbol];
  }
  // What does not fit is for the session to refuse.
  void bind_symbol(size_t symbol, int64_t size) {
    if (!is_free(symbol) || size < 0 || size > target_.symbols[symbol]) return;
    sizes_[symbol] = size;
    bound_[symbol] = true;
  }
  void bind(const InputSpec& input, const Tensor& tensor) {
    for (size_t axis = 0; axis < std::min(input.shape.size(), tensor.dims.size()); ++axis)
      if (input.shape[axis].kind() == model::Expression::Kind::kSymbol)
        bind_symbol(target_.definition.symbol_index(input.shape[axis].symbol()), tensor.dims[axis]);
  }
  void bind_sum(const InputSpec& input, const Tensor& tensor) {
    if (input.sums_to.empty() || tensor.dtype != DType::kI32) return;
    auto values = tensor.values<int32_t>();
    bind_symbol(target_.definition.symbol_index(input.sums_to),
                std::accumulate(values.begin(), values.end(), int64_t{0}));
  }

  int64_t size(const model::Dim& dim) const { return target_.definition.size(dim, sizes_); }
  int64_t elements(const InputSpec& input) const {
    int64_t count = 1;
    for (const model::Dim& dim : input.shape) count = saturating_mul(count, size(dim));
    return count;
  }
  // Makes the first free dimension so small that at most `most` elements are left, if that is possible.
  Status limit_elements(const InputSpec& input, int64_t most) {
    int64_t count = elements(input);
    for (const model::Dim& dim : input.shape) {
      if (count <= most || dim.kind() != model::Expression::Kind::kSymbol) continue;
      size_t symbol = target_.definition.symbol_index(dim.symbol());
      if (!is_free(symbol)) continue;
      DUET_ASSIGN(int64_t least,
                  evaluate(target_.definition, target_.definition.symbols[symbol].min, target_.symbols));
      int64_t others = count / sizes_[symbol];
      sizes_[symbol] = std::clamp(most / others, std::min(least, sizes_[symbol]), sizes_[symbol]);
      count = elements(input);
    }
    return {};
  }
  Status shrink(const InputSpec& input) {
    if (given_.count(input.name)) return {};
    DUET_ASSIGN(Elements bounds, element_bounds(target_, input));
    if (input.distinct) DUET_TRY(limit_elements(input, std::max<int64_t>(bounds.width(), 0)));
    if (input.sums_to.empty()) return {};
    size_t sum = target_.definition.symbol_index(input.sums_to);
    if (bounds.min > 0) DUET_TRY(limit_elements(input, sizes_[sum] / bounds.min));
    if (!is_free(sum)) return {};
    DUET_ASSIGN(int64_t least,
                evaluate(target_.definition, target_.definition.symbols[sum].min, target_.symbols));
    int64_t most = saturating_mul(elements(input), std::max<int64_t>(bounds.max, 0));
    sizes_[sum] = std::clamp(most, std::min(least, sizes_[sum]), sizes_[sum]);
    return {};
  }

  const CallTarget& target_;
  const std::map<std::string, Tensor>& given_;
  std::vector<int64_t> sizes_;
  std::vector<bool> bound_;
};

}  // namespace

uint64_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::optional<Fill> parse_fill(std::string_view name) {
  if (name == "ones") return Fill::kOnes;
  if (name == "zeros") return Fill::kZeros;
  if (name == "range") return Fill::kRange;
  if (name == "rand") return Fill::kRand;
  return std::nullopt;
}

Result<Tensor> make_tensor(const CallTarget& target, const InputSpec& input, std::vector<int64_t> dims,
                           Fill fill, uint64_t seed) {
  uint64_t count = 1;
  for (int64_t dim : dims) {
    // So that no product of them overflows.
    if (dim < 0 || static_cast<uint64_t>(dim) > kMostFilled ||
        (count *= static_cast<uint64_t>(dim)) > kMostFilled)
      return cannot_fill(target, input, "[{}] has more than {} elements; choose smaller sizes or limits",
                         fmt::join(dims, ", "), kMostFilled);
  }
  Tensor tensor{input.dtype, std::move(dims),
                std::vector<std::byte>(count * model::element_bytes(input.dtype))};
  if (input.dtype == DType::kF32) return fill_floats<float>(tensor, fill, seed), tensor;
  if (input.dtype == DType::kF64) return fill_floats<double>(tensor, fill, seed), tensor;
  std::vector<int64_t> values(count);
  DUET_TRY(integer_elements(target, input, fill, seed, values));
  switch (model::element_bytes(input.dtype)) {
    case 1:
      store<uint8_t>(values, tensor);
      break;
    case 4:
      store<int32_t>(values, tensor);
      break;
    default:
      store<int64_t>(values, tensor);
  }
  return tensor;
}

Result<Tensor> make_input(const CallTarget& target, const InputSpec& input, Fill fill, uint64_t seed) {
  std::vector<int64_t> dims;
  for (const model::Dim& dim : input.shape) dims.push_back(target.definition.size(dim, target.symbols));
  return make_tensor(target, input, std::move(dims), fill, seed);
}

Result<std::map<std::string, Tensor>> fill_inputs(const CallTarget& target,
                                                  const std::map<std::string, Tensor>& given, Fill fill,
                                                  uint64_t seed) {
  DUET_ASSIGN(auto sizes, SizeChooser(target, given).choose());
  CallTarget sized{target.definition, target.method, sizes};
  std::map<std::string, Tensor> filled;
  uint64_t elements = 0;
  for (size_t i = 0; i < target.method.inputs.size(); ++i) {
    const InputSpec& input = target.method.inputs[i];
    if (given.count(input.name)) continue;
    DUET_ASSIGN(Tensor tensor, make_input(sized, input, fill, random_bits(seed, i)));
    elements += tensor.data.size() / model::element_bytes(tensor.dtype);
    if (elements > kMostFilled)
      return cannot_fill(target, input,
                         "with it the inputs have {} elements, more than {}; choose smaller limits", elements,
                         kMostFilled);
    filled.emplace(input.name, std::move(tensor));
  }
  return filled;
}

}  // namespace duet::runner
