#include "model/program.h"

#include <algorithm>

namespace duet::model {
namespace {

// Also the limit of what a tensor would take if its empty dimensions were 1: sums and products of sizes that
// kernels compute then fit 64 bits.
constexpr uint64_t kMostTensorBytes = uint64_t{1} << 56;

template <class T>
std::optional<uint32_t> find_named(const std::vector<T>& items, std::string_view name) {
  auto found = std::find_if(items.begin(), items.end(), [&](const T& item) { return item.name == name; });
  if (found == items.end()) return std::nullopt;
  return static_cast<uint32_t>(found - items.begin());
}

}  // namespace

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + shape[i].to_string();
  return text + "]";
}

std::optional<uint64_t> constant_bytes(const TensorSpec& spec, Layout layout) {
  uint64_t elements = 1;
  bool empty = false;
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i].kind() != Expression::Kind::kInteger || spec.shape[i].value() < 0) return std::nullopt;
    auto size = static_cast<uint64_t>(spec.shape[i].value());
    if (layout == Layout::kPanels && i == 0) {
      if (size > uint64_t{1} << 62) return std::nullopt;
      size = (size + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
    }
    empty = empty || size == 0;
    if (__builtin_mul_overflow(elements, std::max<uint64_t>(size, 1), &elements)) return std::nullopt;
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, uint64_t{element_bytes(spec.dtype)}, &bytes)) return std::nullopt;
  if (bytes > kMostTensorBytes) return std::nullopt;
  return empty ? 0 : bytes;
}

const TensorSpec& ProgramDefinition::spec(const Method& method, ValueRef ref) const {
  switch (ref.space) {
    case ValueRef::Space::kConstant:
      return constants[ref.index];
    case ValueRef::Space::kShared:
      return shared[ref.index];
    default:
      return method.values[ref.index];
  }
}

const Method* ProgramDefinition::find_method(std::string_view name) const {
  auto index = find_named(methods, name);
  return index ? &methods[*index] : nullptr;
}

const Symbol* ProgramDefinition::find_symbol(std::string_view name) const {
  auto index = find_named(symbols, name);
  return index ? &symbols[*index] : nullptr;
}

size_t ProgramDefinition::symbol_index(std::string_view name) const {
  auto index = find_named(symbols, name);
  DUET_CHECK(index.has_value());
  return *index;
}

int64_t ProgramDefinition::size(const Dim& dim, std::span<const int64_t> symbol_values) const {
  return dim.kind() == Expression::Kind::kSymbol ? symbol_values[symbol_index(dim.symbol())] : dim.value();
}

std::optional<uint32_t> ProgramDefinition::find_constant(std::string_view name) const {
  return find_named(constants, name);
}
std::optional<uint32_t> ProgramDefinition::find_shared(std::string_view name) const {
  return find_named(shared, name);
}

std::span<const std::byte> Program::section(const std::string& name) const {
  auto found = definition_.sections.find(name);
  return found == definition_.sections.end() ? std::span<const std::byte>() : found->second;
}

Result<std::vector<int64_t>> resolve_symbols(const ProgramDefinition& definition, const Limits& limits) {
  for (const auto& [name, value] : limits) {
    const Symbol* symbol = definition.find_symbol(name);
    if (!symbol || symbol->kind != Symbol::Kind::kLimit) {
      std::string known;
      for (const Symbol& s : definition.symbols)
        if (s.kind == Symbol::Kind::kLimit) known += (known.empty() ? "" : ", ") + s.name;
      return failure(ErrorCode::kUsage, "unknown limit {}; this program's limits are: {}", name,
                     known.empty() ? "none" : known);
    }
  }
  std::vector<int64_t> values;
  // Expressions see the symbols before them only, so there are no cycles.
  auto lookup = [&](const std::string& name) -> Result<int64_t> {
    auto index = find_named(definition.symbols, name);
    if (!index || *index >= values.size())
      return failure(ErrorCode::kBadInput, "symbol {} is used before it is defined", name);
    return values[*index];
  };
  for (const Symbol& symbol : definition.symbols) {
    if (symbol.kind == Symbol::Kind::kDerived) {
      DUET_ASSIGN(int64_t value, symbol.value.evaluate(lookup));
      values.push_back(value);
      continue;
    }
    DUET_ASSIGN(int64_t min, symbol.min.evaluate(lookup));
    DUET_ASSIGN(int64_t max, symbol.max.evaluate(lookup));
    if (min < 0)
      return failure(ErrorCode::kBadInput, "symbol {} may be as small as {}, expected 0 or more", symbol.name,
                     min);
    int64_t value = max;
    if (symbol.kind == Symbol::Kind::kLimit) {
      auto asked = limits.find(symbol.name);
      if (asked != limits.end()) {
        value = asked->second;
      } else {
        DUET_ASSIGN(value, symbol.value.evaluate(lookup));
        value = std::clamp(value, min, std::max(min, max));
      }
    }
    if (value < min || value > max)
      // With nothing asked for, it is the program that contradicts itself.
      return failure(limits.empty() ? ErrorCode::kBadInput : ErrorCode::kUsage,
                     "{} is {}, expected {} to {}{}{}", symbol.name, value, min, max,
                     symbol.help.empty() ? "" : ": ", symbol.help);
    values.push_back(value);
  }
  return values;
}

Result<int64_t> evaluate(const ProgramDefinition& definition, const Expression& expression,
                         std::span<const int64_t> symbol_values) {
  return expression.evaluate([&](const std::string& name) -> Result<int64_t> {
    auto index = find_named(definition.symbols, name);
    if (!index) return failure(ErrorCode::kBadInput, "unknown symbol {}", name);
    return symbol_values[*index];
  });
}

Result<uint64_t> tensor_bytes(const ProgramDefinition& definition, const TensorSpec& spec,
                              std::span<const int64_t> symbol_values) {
  uint64_t bytes = element_bytes(spec.dtype);
  bool empty = false;
  for (const Dim& dim : spec.shape) {
    int64_t size = dim.value();
    if (dim.kind() == Expression::Kind::kSymbol) {
      auto index = find_named(definition.symbols, dim.symbol());
      if (!index)
        return failure(ErrorCode::kBadInput, "tensor {}: unknown symbol {}", spec.name, dim.symbol());
      size = symbol_values[*index];
    }
    empty = empty || size == 0;
    if (size < 0 ||
        __builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(size, 1)), &bytes) ||
        bytes > kMostTensorBytes)
      return failure(ErrorCode::kBadInput, "tensor {}: the size of {} overflows", spec.name,
                     shape_text(spec.shape));
  }
  return empty ? 0 : bytes;
}

}  // namespace duet::model
