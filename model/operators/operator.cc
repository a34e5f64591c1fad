#include "model/operators/operator.h"

#include <algorithm>
#include <cmath>

namespace duet::model {
namespace {

std::vector<std::span<const OperatorRow>> tables() {
  return {tensor_operators(), layer_operators(), attention_operators(), state_operators(),
          select_operators()};
}

}  // namespace

std::vector<std::string> operator_kinds() {
  std::vector<std::string> kinds;
  for (auto table : tables())
    for (const OperatorRow& row : table) kinds.emplace_back(row.kind);
  return kinds;
}

Result<std::shared_ptr<const Operator>> make_operator(const std::string& kind, const Attributes& attributes) {
  for (auto table : tables()) {
    for (const OperatorRow& row : table) {
      if (kind != row.kind) continue;
      AttributeReader reader(attributes);
      std::shared_ptr<const Operator> op = row.make(reader);
      DUET_TRY(reader.finish());
      return op;
    }
  }
  return failure(ErrorCode::kBadInput, "unknown operator kind \"{}\"; this version of Duet knows: {}", kind,
                 fmt::join(operator_kinds(), ", "));
}

template <class T>
const T* AttributeReader::find(const std::string& name, bool required) {
  known_.push_back(name);
  auto found = attributes_.find(name);
  if (found == attributes_.end()) {
    if (required && problem_.empty()) problem_ = fmt::format("attribute {} is missing", name);
    return nullptr;
  }
  const T* value = std::get_if<T>(&found->second);
  if (!value && problem_.empty()) problem_ = fmt::format("attribute {} has the wrong type", name);
  return value;
}

int64_t AttributeReader::integer(const std::string& name, int64_t min, int64_t max) {
  const int64_t* value = find<int64_t>(name, true);
  if (!value) return min;
  if ((*value < min || *value > max) && problem_.empty())
    problem_ = fmt::format("attribute {} is {}, expected {} to {}", name, *value, min, max);
  return std::clamp(*value, min, max);
}

int64_t AttributeReader::integer_or(const std::string& name, int64_t fallback, int64_t min, int64_t max) {
  if (attributes_.count(name)) return integer(name, min, max);
  known_.push_back(name);
  return fallback;
}

double AttributeReader::number(const std::string& name) {
  if (auto found = attributes_.find(name); found != attributes_.end())
    if (const int64_t* whole = std::get_if<int64_t>(&found->second)) {
      known_.push_back(name);
      return static_cast<double>(*whole);
    }
  const double* value = find<double>(name, true);
  if (value && !std::isfinite(*value) && problem_.empty())
    problem_ = fmt::format("attribute {} is {}, expected a finite number", name, *value);
  return value ? *value : 0;
}

double AttributeReader::number_or(const std::string& name, double fallback) {
  if (attributes_.count(name)) return number(name);
  known_.push_back(name);
  return fallback;
}

std::string AttributeReader::text_or(const std::string& name, const std::string& fallback) {
  const std::string* value = find<std::string>(name, false);
  return value ? *value : fallback;
}

std::vector<std::string> AttributeReader::texts_or_empty(const std::string& name) {
  // An empty list has no element type of its own.
  if (auto found = attributes_.find(name); found != attributes_.end())
    if (const auto* list = std::get_if<std::vector<int64_t>>(&found->second); list && list->empty()) {
      known_.push_back(name);
      return {};
    }
  const auto* value = find<std::vector<std::string>>(name, false);
  return value ? *value : std::vector<std::string>();
}

std::vector<int64_t> AttributeReader::integers_or_empty(const std::string& name) {
  const auto* value = find<std::vector<int64_t>>(name, false);
  return value ? *value : std::vector<int64_t>();
}

Status AttributeReader::finish() const {
  if (!problem_.empty()) return failure(ErrorCode::kBadInput, "{}", problem_);
  for (const auto& [name, value] : attributes_)
    if (std::find(known_.begin(), known_.end(), name) == known_.end())
      return failure(ErrorCode::kBadInput, "unknown attribute {}; expected only: {}", name,
                     fmt::join(known_, ", "));
  return {};
}

Status expect_count(std::span<const OperandSpec> inputs, size_t least, size_t most) {
  if (inputs.size() < least || inputs.size() > most)
    return failure(ErrorCode::kBadInput, "{} inputs, expected {}", inputs.size(),
                   least == most ? std::to_string(least) : fmt::format("{} to {}", least, most));
  return {};
}

namespace {
Status expect_type(const OperandSpec& operand, const char* role, DType dtype, int rank) {
  if (!operand.spec) return failure(ErrorCode::kBadInput, "input {} is missing", role);
  if (operand.spec->dtype != dtype)
    return failure(ErrorCode::kBadInput, "input {} ({}) is {}, expected {}", role, operand.spec->name,
                   dtype_name(operand.spec->dtype), dtype_name(dtype));
  if (rank >= 0 && operand.spec->shape.size() != static_cast<size_t>(rank))
    return failure(ErrorCode::kBadInput, "input {} ({}) has shape {}, expected {} dimensions", role,
                   operand.spec->name, shape_text(operand.spec->shape), rank);
  return {};
}
}  // namespace

Status expect_tensor(const OperandSpec& operand, const char* role, DType dtype, int rank) {
  DUET_TRY(expect_type(operand, role, dtype, rank));
  if (operand.constant && operand.constant->layout != Layout::kRows)
    return failure(ErrorCode::kBadInput, "input {} ({}) is stored in panels, expected rows", role,
                   operand.spec->name);
  return {};
}

Status expect_panels(const OperandSpec& operand, const char* role) {
  DUET_TRY(expect_type(operand, role, DType::kF32, 2));
  if (!operand.constant || operand.constant->layout != Layout::kPanels)
    return failure(ErrorCode::kBadInput, "input {} ({}) must be a constant in panels of {} outputs", role,
                   operand.spec->name, kPanelWidth);
  return {};
}

Status expect_dim(const OperandSpec& operand, const char* role, int axis, const Dim& expected) {
  if (operand.spec->shape[static_cast<size_t>(axis)] != expected)
    return failure(ErrorCode::kBadInput, "input {} ({}) has shape {}, expected {} in dimension {}", role,
                   operand.spec->name, shape_text(operand.spec->shape), expected.to_string(), axis);
  return {};
}

}  // namespace duet::model
