// Symbols and limits of a program, and what check_program() refuses in a definition that no exporter would
// make.
#include "model/program.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "model/exporter.h"
#include "tests/model/support.h"

namespace duet::model {
namespace {

// slots 1..8 (4), tokens slots..100 (2 slots), blocks = ceil(tokens / 16), rows 1..slots.
void define_limits(MultiEntryPointExporter& exporter) {
  exporter.limit("slots", 1, 8, 4, "sentences at once");
  exporter.limit("tokens", "slots", 100, mul("slots", 2));
  exporter.derived("blocks", ceil_div("tokens", 16));
  exporter.dynamic("rows", 1, "slots", "slots of a call");
}

std::vector<int64_t> resolved(const Limits& limits) {
  MultiEntryPointExporter exporter;
  define_limits(exporter);
  auto definition = exporter.finish();
  EXPECT_TRUE(definition);
  auto values = resolve_symbols(**definition, limits);
  EXPECT_TRUE(values) << values.error().message;
  return values ? *values : std::vector<int64_t>();
}

TEST(Symbols, TakeTheirDefaultsAndFollowTheLimitsBeforeThem) {
  EXPECT_EQ(resolved({}), (std::vector<int64_t>{4, 8, 1, 4}));
  EXPECT_EQ(resolved({{"slots", 8}}), (std::vector<int64_t>{8, 16, 1, 8}));
  EXPECT_EQ(resolved({{"slots", 8}, {"tokens", 17}}), (std::vector<int64_t>{8, 17, 2, 8}));
  EXPECT_EQ(resolved({{"slots", 1}, {"tokens", 100}}), (std::vector<int64_t>{1, 100, 7, 1}));
}

TEST(Symbols, ErrorsNameTheLimitItsValueItsRangeAndWhatItCounts) {
  MultiEntryPointExporter exporter;
  define_limits(exporter);
  const ProgramDefinition& definition = **exporter.finish();
  expect_error(resolve_symbols(definition, {{"slots", 9}}), ErrorCode::kUsage,
               {"slots is 9", "expected 1 to 8", "sentences at once"});
  expect_error(resolve_symbols(definition, {{"slots", 0}}), ErrorCode::kUsage,
               {"slots is 0", "expected 1 to 8"});
  expect_error(resolve_symbols(definition, {{"slots", 8}, {"tokens", 7}}), ErrorCode::kUsage,
               {"tokens is 7", "expected 8 to 100"});
  expect_error(resolve_symbols(definition, {{"beams", 2}}), ErrorCode::kUsage,
               {"unknown limit beams", "slots, tokens"});
  expect_error(resolve_symbols(definition, {{"rows", 2}}), ErrorCode::kUsage, {"unknown limit rows"});
  expect_error(resolve_symbols(definition, {{"blocks", 2}}), ErrorCode::kUsage, {"unknown limit blocks"});
}

TEST(Symbols, ADefaultOutsideTheRangeThatOtherLimitsLeaveIsMovedIntoIt) {
  MultiEntryPointExporter exporter;
  exporter.limit("a", 1, 100, 10);
  exporter.limit("b", "a", 200, 20);
  const ProgramDefinition& definition = **exporter.finish();
  EXPECT_EQ(resolve_symbols(definition, {{"a", 50}}).value(), (std::vector<int64_t>{50, 50}));
}

struct BadSymbols {
  std::function<void(MultiEntryPointExporter&)> define;
  std::vector<std::string> parts;
};

TEST(Symbols, ThatCannotHoldAreRefusedWhenAProgramIsChecked) {
  const BadSymbols cases[] = {
      {[](auto& e) { e.derived("a", "b"), e.derived("b", "a"); }, {"symbol b", "before it is defined"}},
      {[](auto& e) { e.derived("a", "a"); }, {"symbol a", "before it is defined"}},
      {[](auto& e) { e.limit("a", 1, "later", 1), e.limit("later", 1, 2, 1); },
       {"later", "before it is defined"}},
      {[](auto& e) { e.dynamic("a", 5, 4); }, {"a is 4", "expected 5 to 4"}},
      {[](auto& e) { e.limit("a", 5, 4, 5); }, {"a is", "5 to 4"}},
      {[](auto& e) { e.dynamic("a", -3, 4); }, {"a", "-3"}},
      {[](auto& e) { e.limit("a", -3, 4, 1); }, {"a", "-3"}},
      {[](auto& e) { e.derived("a", add(1, -5)), e.buffer("x", DType::kF32, {"a"}); }, {"x", "[a]"}},
      {[](auto& e) { e.derived("a", mul(std::numeric_limits<int64_t>::max(), 2)); }, {"overflow"}},
      {[](auto& e) { e.derived("a", ceil_div(5, 0)); }, {"ceil_div(5, 0)"}},
      {[](auto& e) { e.dynamic("a", 1, 2), e.limit("a", 1, 2, 1); }, {"symbol \"a\" is defined twice"}},
  };
  for (const BadSymbols& c : cases) {
    MultiEntryPointExporter exporter;
    c.define(exporter);
    expect_error(exporter.finish(), ErrorCode::kBadInput, c.parts);
  }
}

TEST(TensorBytes, OverflowIsAnErrorAlsoBesideADimensionOfZero) {
  MultiEntryPointExporter exporter;
  exporter.limit("n", 0, 10, 0);
  exporter.limit("huge", 1, int64_t{1} << 62, 1);
  const ProgramDefinition& definition = **exporter.finish();
  const int64_t sizes[] = {0, int64_t{1} << 62};
  auto bytes = [&](Shape shape) {
    return tensor_bytes(definition, {"x", DType::kF32, std::move(shape)}, sizes);
  };
  EXPECT_EQ(bytes({3, 5}).value(), 60u);
  EXPECT_EQ(bytes({}).value(), 4u);
  EXPECT_EQ(bytes({"n", 5}).value(), 0u);
  expect_error(bytes({"huge"}), ErrorCode::kBadInput, {"tensor x", "[huge]", "overflows"});
  expect_error(bytes({1 << 30, 1 << 30, 1 << 30}), ErrorCode::kBadInput, {"overflows"});
  expect_error(bytes({"n", "huge"}), ErrorCode::kBadInput, {"overflows"});
  expect_error(bytes({"huge", "n"}), ErrorCode::kBadInput, {"overflows"});
  expect_error(bytes({"nobody"}), ErrorCode::kBadInput, {"unknown symbol nobody"});
  EXPECT_FALSE(constant_bytes({"x", DType::kF32, {0, int64_t{1} << 62, 8}}, Layout::kRows));
  EXPECT_FALSE(constant_bytes({"x", DType::kF32, {int64_t{1} << 62, 0, 8}}, Layout::kRows));
  EXPECT_FALSE(constant_bytes({"x", DType::kF32, {"n"}}, Layout::kRows));
  EXPECT_FALSE(constant_bytes({"x", DType::kF32, {-1}}, Layout::kRows));
  EXPECT_EQ(constant_bytes({"x", DType::kF32, {17, 3}}, Layout::kPanels).value(), 32u * 3 * 4);
  EXPECT_EQ(constant_bytes({"x", DType::kI64, {17, 3}}, Layout::kRows).value(), 17u * 3 * 8);
}

// A definition that is right, to be spoilt in one place.
ProgramDefinition good_definition(MultiEntryPointExporter& exporter) {
  exporter.dynamic("rows", 1, 4);
  exporter.constant("W", std::vector<float>(20 * 8, 0.5f), {20, 8}, Layout::kPanels);
  exporter.constant("bias", std::vector<float>(20, 0.5f), {20});
  exporter.buffer("cache", DType::kF32, {4, 20});
  exporter.register_shared("cache");
  auto& m = exporter.method("run");
  InputSpec spec;
  spec.name = "ids";
  spec.dtype = DType::kI32;
  spec.shape = {"rows"};
  m.input(spec);
  auto x = m.input("x", DType::kF32, {"rows", 8});
  auto y = m.call("linear", "first", {x, "W", "bias"});
  auto z = m.call("add", "second", {y, y});
  m.call("write_block", "store", {z, "cache"});
  m.output("z", z);
  auto definition = exporter.finish();
  EXPECT_TRUE(definition) << (definition ? "" : definition.error().message);
  return **definition;
}

struct BadDefinition {
  std::function<void(ProgramDefinition&, Method&)> spoil;
  std::vector<std::string> parts;
};

TEST(CheckProgram, RefusesEveryBrokenInvariant) {
  using Space = ValueRef::Space;
  const BadDefinition cases[] = {
      {[](auto& d, auto&) { d.constants[1].name = "W"; }, {"constant \"W\" is defined twice"}},
      {[](auto& d, auto&) { d.shared[0].name = "W"; }, {"\"W\" is both a constant and a shared buffer"}},
      {[](auto& d, auto&) { d.methods[0].name = "run"; }, {"method \"run\" is defined twice"}},
      {[](auto& d, auto&) { d.shared.push_back(d.shared[0]); }, {"shared buffer \"cache\" is defined twice"}},
      {[](auto&, auto& m) { m.values[2].name = "x"; }, {"method run", "value \"x\" is defined twice"}},
      {[](auto&, auto& m) { m.values[2].name = "W"; }, {"method run", "\"W\"", "constant or shared buffer"}},
      {[](auto&, auto& m) { m.outputs.push_back(m.outputs[0]); }, {"output \"z\" is defined twice"}},
      {[](auto& d, auto&) { d.constants[1].shape = {21}; }, {"constant bias", "[21]"}},
      {[](auto& d, auto&) { d.constants[1].shape = {"rows"}; }, {"constant bias"}},
      {[](auto& d, auto&) { d.constants[1].layout = Layout::kPanels; }, {"constant bias", "two dimensions"}},
      {[](auto& d, auto&) {
         d.shared[0].shape = {"rows", 20};
       },
       {"cache", "rows", "differs from call to call"}},
      {[](auto& d, auto&) { d.shared[0].shape = {"nobody"}; }, {"cache", "unknown symbol nobody"}},
      {[](auto& d, auto&) {
         d.shared[0].shape = {1, 1, 1, 1, 1};
       },
       {"cache", "more than 4 dimensions"}},
      {[](auto& d, auto&) { d.shared[0].shape = {-1}; }, {"cache", "-1"}},
      {[](auto& d, auto&) { d.shared[0].shape = {add("rows", 1)}; }, {"cache", "add(rows, 1)"}},
      {[](auto&, auto& m) { m.values[2].dtype = DType::kI32; }, {"first", "declared i32", "gives f32"}},
      {[](auto&, auto& m) {
         m.values[2].shape = {"rows", 21};
       },
       {"first", "[rows, 21]", "[rows, 20]"}},
      {[](auto&, auto& m) {
         m.operations[0].inputs[1] = {Space::kConstant, 7};
       },
       {"first", "outside its table"}},
      {[](auto&, auto& m) {
         m.operations[0].inputs[0] = {Space::kValue, 70};
       },
       {"first", "outside its table"}},
      {[](auto&, auto& m) {
         m.operations[0].inputs[0] = {Space::kShared, 70};
       },
       {"first", "outside its table"}},
      {[](auto&, auto& m) {
         m.operations[0].inputs[0] = {Space::kValue, 3};
       },
       {"first", "used before it is computed"}},
      {[](auto&, auto& m) {
         m.operations[0].inputs[1] = {Space::kShared, 0};
       },
       {"first", "panels"}},
      {[](auto&, auto& m) { m.operations[1].outputs[0].index = 2; }, {"second", "computed twice"}},
      {[](auto&, auto& m) {
         m.operations[1].outputs[0] = {Space::kShared, 0};
       },
       {"second", "not a value"}},
      {[](auto&, auto& m) {
         m.operations[1].outputs[0] = {Space::kValue, 99};
       },
       {"second", "outside its table"}},
      {[](auto&, auto& m) { m.operations[1].outputs.clear(); }, {"second", "0 outputs, expected 1"}},
      {[](auto&, auto& m) {
         m.operations[2].inputs[1] = {Space::kConstant, 1};
       },
       {"store"}},
      {[](auto&, auto& m) {
         m.operations[2].inputs[1] = {Space::kValue, 3};
       },
       {"store", "must be a shared buffer"}},
      {[](auto&, auto& m) { m.operations[0].kind = "conv"; }, {"unknown operator kind \"conv\""}},
      {[](auto&, auto& m) { m.operations[0].attributes["x"] = 1.0; }, {"unknown attribute x"}},
      {[](auto&, auto& m) { m.operations.pop_back(), m.operations.pop_back(); },
       {"method run", "\"second\"", "used before it is computed"}},
      {[](auto&, auto& m) {
         m.values.push_back({"more", DType::kF32, {1}});
       },
       {"\"more\" is never computed"}},
      {[](auto&, auto& m) { m.values.resize(1); }, {"inputs are not among its values"}},
      {[](auto&, auto& m) { m.outputs[0].value = {}; }, {"output \"z\" names no tensor"}},
      {[](auto&, auto& m) {
         m.outputs[0].value = {Space::kConstant, 0};
       },
       {"output \"z\"", "panels"}},
      {[](auto&, auto& m) {
         m.inputs[0].dtype = m.values[0].dtype = DType::kF32, m.inputs[0].distinct = true;
       },
       {"\"ids\"", "i32"}},
      {[](auto&, auto& m) { m.inputs[0].sums_to = "nobody"; }, {"\"ids\"", "nobody"}},
      {[](auto&, auto& m) { m.inputs[0].max_value = "nobody"; }, {"\"ids\"", "nobody"}},
      {[](auto&, auto& m) { m.inputs[0].min_value = ceil_div(1, 0); }, {"\"ids\"", "ceil_div"}},
      {[](auto&, auto& m) { m.inputs[0].distinct = true; }, {"\"ids\"", "distinct"}},
      {[](auto& d, auto& m) {
         d.symbols.push_back({"free", Symbol::Kind::kDynamic, 1, 2, 1, ""}), m.values[2].shape = {"free", 20};
       },
       {"first"}},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    MultiEntryPointExporter exporter;
    ProgramDefinition definition = good_definition(exporter);
    ASSERT_TRUE(check_program(definition));
    cases[i].spoil(definition, definition.methods[1]);
    expect_error(check_program(definition), ErrorCode::kBadInput, cases[i].parts);
  }
}

TEST(CheckProgram, ADynamicSizeMustComeFromAnInputOfTheMethod) {
  MultiEntryPointExporter exporter;
  exporter.dynamic("tokens", 1, 4);
  exporter.dynamic("rows", 1, 4);
  auto& m = exporter.method("run");
  m.call_all("ragged_index", "index", {m.input("lengths", DType::kI32, {"rows"})},
             {{"tokens", std::string("tokens")}});
  expect_error(exporter.finish(), ErrorCode::kBadInput, {"method run", "size tokens", "no input gives"});
}

}  // namespace
}  // namespace duet::model
