#include "model/expression.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace duet::model {
namespace {

constexpr int kMaxDepth = 8;
constexpr std::string_view kNames[] = {"", "", "add", "mul", "min", "max", "ceil_div"};

Result<int64_t> combine(Expression::Kind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (kind) {
    case Expression::Kind::kAdd:
      if (__builtin_add_overflow(a, b, &result))
        return failure(ErrorCode::kBadInput, "size overflow: {} + {}", a, b);
      return result;
    case Expression::Kind::kMul:
      if (__builtin_mul_overflow(a, b, &result))
        return failure(ErrorCode::kBadInput, "size overflow: {} * {}", a, b);
      return result;
    case Expression::Kind::kMin:
      return std::min(a, b);
    case Expression::Kind::kMax:
      return std::max(a, b);
    case Expression::Kind::kCeilDiv:
      if (a < 0 || b < 1)
        return failure(ErrorCode::kBadInput, "ceil_div({}, {}): expected a >= 0 and b >= 1", a, b);
      return a / b + (a % b != 0);
    default:
      return failure(ErrorCode::kBadInput, "not an operation");
  }
}

}  // namespace

Result<Expression> Expression::parse(const nlohmann::ordered_json& json, int depth) {
  if (json.is_number_integer()) {
    if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{1} << 62)
      return failure(ErrorCode::kBadInput, "size {} is too large", json.get<uint64_t>());
    return Expression(json.get<int64_t>());
  }
  if (json.is_string()) return Expression(json.get<std::string>());
  if (!json.is_array() || json.size() < 3 || json.size() > 16 || !json[0].is_string() || depth >= kMaxDepth)
    return failure(ErrorCode::kBadInput,
                   "a size is an integer, a symbol or [operation, a, b, ...], nested at most {} deep",
                   kMaxDepth);
  auto name = json[0].get<std::string>();
  auto found = std::find(std::begin(kNames) + 2, std::end(kNames), name);
  if (found == std::end(kNames)) return failure(ErrorCode::kBadInput, "unknown size operation \"{}\"", name);
  auto kind = static_cast<Kind>(found - std::begin(kNames));
  std::vector<Expression> operands;
  for (size_t i = 1; i < json.size(); ++i) {
    DUET_ASSIGN(Expression operand, parse(json[i], depth + 1));
    operands.push_back(std::move(operand));
  }
  return Expression(kind, std::move(operands));
}

nlohmann::ordered_json Expression::to_json() const {
  if (kind_ == Kind::kInteger) return value_;
  if (kind_ == Kind::kSymbol) return symbol_;
  auto json = nlohmann::ordered_json::array({std::string(kNames[static_cast<size_t>(kind_)])});
  for (const Expression& operand : operands_) json.push_back(operand.to_json());
  return json;
}

Result<int64_t> Expression::evaluate(const Lookup& lookup) const {
  if (kind_ == Kind::kInteger) return value_;
  if (kind_ == Kind::kSymbol) return lookup(symbol_);
  DUET_ASSIGN(int64_t total, operands_[0].evaluate(lookup));
  for (size_t i = 1; i < operands_.size(); ++i) {
    DUET_ASSIGN(int64_t operand, operands_[i].evaluate(lookup));
    DUET_ASSIGN(total, combine(kind_, total, operand));
  }
  return total;
}

std::string Expression::to_string() const {
  if (kind_ == Kind::kInteger) return std::to_string(value_);
  if (kind_ == Kind::kSymbol) return symbol_;
  std::string text = std::string(kNames[static_cast<size_t>(kind_)]) + "(";
  for (size_t i = 0; i < operands_.size(); ++i) text += (i ? ", " : "") + operands_[i].to_string();
  return text + ")";
}

namespace {
Expression binary(Expression::Kind kind, Expression a, Expression b) {
  std::vector<Expression> operands;
  operands.push_back(std::move(a));
  operands.push_back(std::move(b));
  return Expression(kind, std::move(operands));
}
}  // namespace

Expression add(Expression a, Expression b) {
  return binary(Expression::Kind::kAdd, std::move(a), std::move(b));
}
Expression mul(Expression a, Expression b) {
  return binary(Expression::Kind::kMul, std::move(a), std::move(b));
}
Expression min(Expression a, Expression b) {
  return binary(Expression::Kind::kMin, std::move(a), std::move(b));
}
Expression max(Expression a, Expression b) {
  return binary(Expression::Kind::kMax, std::move(a), std::move(b));
}
Expression ceil_div(Expression a, Expression b) {
  return binary(Expression::Kind::kCeilDiv, std::move(a), std::move(b));
}

}  // namespace duet::model
