// Sizes as expressions: what they evaluate to, how they stand in a file, what is refused.
#include "model/expression.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

using Json = nlohmann::ordered_json;

Result<int64_t> lookup(const std::string& name) {
  if (name == "slots") return 7;
  if (name == "huge") return std::numeric_limits<int64_t>::max();
  return failure(ErrorCode::kBadInput, "no symbol {}", name);
}

Result<int64_t> value_of(const char* text) {
  auto e = Expression::parse(Json::parse(text));
  if (!e) return tl::make_unexpected(e.error());
  return e->evaluate(lookup);
}

TEST(Expression, EvaluatesEachOperationOverTwoAndMoreOperands) {
  EXPECT_EQ(value_of("42").value(), 42);
  EXPECT_EQ(value_of("-3").value(), -3);
  EXPECT_EQ(value_of("\"slots\"").value(), 7);
  EXPECT_EQ(value_of(R"(["add", "slots", 1, -10])").value(), -2);
  EXPECT_EQ(value_of(R"(["mul", "slots", 2, 3])").value(), 42);
  EXPECT_EQ(value_of(R"(["min", "slots", 2, 3])").value(), 2);
  EXPECT_EQ(value_of(R"(["max", "slots", 2, 30])").value(), 30);
  EXPECT_EQ(value_of(R"(["ceil_div", "slots", 2])").value(), 4);
  EXPECT_EQ(value_of(R"(["ceil_div", 100, 3, 10])").value(), 4);
  EXPECT_EQ(value_of(R"(["ceil_div", 0, 5])").value(), 0);
  EXPECT_EQ(value_of(R"(["ceil_div", "huge", 2])").value(), (int64_t{1} << 62));
  EXPECT_EQ(value_of(R"(["add", ["mul", "slots", 3], ["ceil_div", 5, 2]])").value(), 24);
}

TEST(Expression, RefusesOverflowDivisionAndUnknownSymbols) {
  expect_error(value_of(R"(["add", "huge", 1])"), ErrorCode::kBadInput,
               {"overflow", "9223372036854775807 + 1"});
  expect_error(value_of(R"(["mul", "huge", 2])"), ErrorCode::kBadInput, {"overflow"});
  expect_error(value_of(R"(["mul", "huge", -2])"), ErrorCode::kBadInput, {"overflow"});
  expect_error(value_of(R"(["ceil_div", 5, 0])"), ErrorCode::kBadInput, {"ceil_div(5, 0)"});
  expect_error(value_of(R"(["ceil_div", -5, 2])"), ErrorCode::kBadInput, {"ceil_div(-5, 2)"});
  expect_error(value_of(R"(["add", 1, "nobody"])"), ErrorCode::kBadInput, {"nobody"});
}

TEST(Expression, RefusesWhatIsNoExpression) {
  for (const char* text :
       {"null", "true", "1.5", "{}", "[]", R"(["add"])", R"(["add", 1])", R"(["pow", 1, 2])", R"([1, 2, 3])",
        R"(["add", 1, null])", R"(["add", 1, 1.5])", R"(["", 1, 2])",
        R"(["add",1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16])", "18446744073709551615", "9223372036854775807"}) {
    auto e = Expression::parse(Json::parse(text));
    ASSERT_FALSE(e) << text;
    EXPECT_EQ(static_cast<int>(e.error().code), static_cast<int>(ErrorCode::kBadInput)) << text;
  }
}

TEST(Expression, IsNestedEightDeepAndNoDeeper) {
  auto nested = [](int depth) {
    std::string text = "1";
    for (int i = 0; i < depth; ++i) text = "[\"add\", " + text + ", 1]";
    return text;
  };
  EXPECT_EQ(value_of(nested(8).c_str()).value(), 9);
  expect_error(value_of(nested(9).c_str()), ErrorCode::kBadInput, {"at most 8 deep"});
}

TEST(Expression, StandsInAFileAsItWasBuilt) {
  Expression e = max(add("slots", 1), min(mul("slots", 3), ceil_div("source", 16)));
  EXPECT_EQ(e.to_json().dump(),
            R"(["max",["add","slots",1],["min",["mul","slots",3],["ceil_div","source",16]]])");
  EXPECT_EQ(e.to_string(), "max(add(slots, 1), min(mul(slots, 3), ceil_div(source, 16)))");
  EXPECT_EQ(*Expression::parse(e.to_json()), e);
  EXPECT_NE(add("slots", 1), add("slots", 2));
  EXPECT_NE(Expression("slots"), Expression(0));
}

}  // namespace
}  // namespace duet::model
