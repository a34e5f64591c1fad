// Sizes that follow from a session's limits, e.g. "ceil_div(source_tokens, 16)": an integer, a symbol, or one
// of add, mul, min, max, ceil_div over two or more of them. In a file: 42, "slots", ["ceil_div",
// "source_tokens", 16].
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "memory/error.h"

namespace duet::model {

class Expression {
 public:
  enum class Kind : uint8_t { kInteger, kSymbol, kAdd, kMul, kMin, kMax, kCeilDiv };

  Expression(int64_t value = 0) : value_(value) {}                           // NOLINT: reads as a number
  Expression(int value) : value_(value) {}                                   // NOLINT
  Expression(const char* symbol) : kind_(Kind::kSymbol), symbol_(symbol) {}  // NOLINT: reads as a name
  Expression(std::string symbol) : kind_(Kind::kSymbol), symbol_(std::move(symbol)) {}  // NOLINT
  Expression(Kind kind, std::vector<Expression> operands) : kind_(kind), operands_(std::move(operands)) {}

  // Errors: kBadInput for an unknown operation, wrong operand count, or more than 8 levels.
  static Result<Expression> parse(const nlohmann::ordered_json& json, int depth = 0);
  nlohmann::ordered_json to_json() const;

  using Lookup = std::function<Result<int64_t>(const std::string& symbol)>;
  // Errors: what `lookup` fails with; kBadInput for overflow or a division by a number below 1.
  Result<int64_t> evaluate(const Lookup& lookup) const;

  Kind kind() const { return kind_; }
  int64_t value() const { return value_; }
  const std::string& symbol() const { return symbol_; }
  const std::vector<Expression>& operands() const { return operands_; }
  std::string to_string() const;
  bool operator==(const Expression&) const = default;

 private:
  Kind kind_ = Kind::kInteger;
  int64_t value_ = 0;
  std::string symbol_;
  std::vector<Expression> operands_;
};

Expression add(Expression a, Expression b);
Expression mul(Expression a, Expression b);
Expression min(Expression a, Expression b);
Expression max(Expression a, Expression b);
Expression ceil_div(Expression a, Expression b);

}  // namespace duet::model
