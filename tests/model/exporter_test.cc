// The exporter: a small program with a cache built, saved, opened and run; and every mistake that it must
// report.
#include "model/exporter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "tests/model/support.h"

namespace duet::model {
namespace {

std::vector<float> rows_of(int64_t rows, float first) {
  std::vector<float> values(static_cast<size_t>(rows * 20));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

TEST(Exporter, ACacheKeepsWhatOneMethodWroteForTheNext) {
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  build_cache(exporter);
  auto session = open_session(save_and_open(exporter, directory));
  ASSERT_TRUE(session);
  int set = session->find_method("set_cache"), get = session->find_method("get_cache");
  auto cache = [&](size_t i) {
    auto outputs = session->execute(get, {});
    EXPECT_TRUE(outputs);
    const float* data = (*outputs)[i].as<float>();
    EXPECT_EQ((*outputs)[i].dims[0], 10);
    EXPECT_EQ((*outputs)[i].dims[1], 20);
    return std::vector<float>(data, data + 200);
  };
  EXPECT_EQ(cache(0), std::vector<float>(200, 0.0f));
  EXPECT_EQ(cache(1), std::vector<float>(200, -1.5f));
  auto k = rows_of(10, 1000), v = rows_of(10, 5000);
  std::vector<TensorView> inputs = {view_of(k, {10, 20}), view_of(v, {10, 20})};
  ASSERT_TRUE(session->execute(set, inputs));
  EXPECT_EQ(cache(0), k);
  EXPECT_EQ(cache(1), v);
  auto k3 = rows_of(3, 1), v3 = rows_of(3, 2);
  inputs = {view_of(k3, {3, 20}), view_of(v3, {3, 20})};
  ASSERT_TRUE(session->execute(set, inputs));
  std::copy(k3.begin(), k3.end(), k.begin());
  std::copy(v3.begin(), v3.end(), v.begin());
  EXPECT_EQ(cache(0), k) << "rows 3 to 9 stay";
  EXPECT_EQ(cache(1), v);
  auto version = session->execute(session->find_method("version_of"), {});
  ASSERT_TRUE(version);
  EXPECT_EQ(std::vector<int32_t>((*version)[0].as<int32_t>(), (*version)[0].as<int32_t>() + 3),
            (std::vector<int32_t>{3, 1, 4}));
}

TEST(Exporter, TheInitMethodFillsInitialValuesOfEveryDtype) {
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  exporter.buffer("f32", DType::kF32, {3}, 0.1);
  exporter.buffer("f64", DType::kF64, {3}, 0.1);
  exporter.buffer("i32", DType::kI32, {3}, -7);
  exporter.buffer("i64", DType::kI64, {3}, -1e15);
  exporter.buffer("u8", DType::kU8, {3}, 255);
  exporter.buffer("bool", DType::kBool, {3}, 1);
  exporter.buffer("zeros", DType::kF32, {3});
  auto program = save_and_open(exporter, directory);
  ASSERT_TRUE(program);
  EXPECT_EQ(program->definition().methods[0].name, "et_module_init");
  auto session = open_session(program);
  ASSERT_TRUE(session);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(session->shared("f32").as<float>()[i], 0.1f);
    EXPECT_EQ(session->shared("f64").as<double>()[i], 0.1);
    EXPECT_EQ(session->shared("i32").as<int32_t>()[i], -7);
    EXPECT_EQ(session->shared("i64").as<int64_t>()[i], -1000000000000000);
    EXPECT_EQ(session->shared("u8").as<uint8_t>()[i], 255);
    EXPECT_EQ(session->shared("bool").as<uint8_t>()[i], 1);
    EXPECT_EQ(session->shared("zeros").as<float>()[i], 0);
  }
  EXPECT_FALSE(session->shared("nobody"));
}

TEST(Exporter, ConstantsInPanelsAreReadAsTheRowsTheyWereGivenAs) {
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  exporter.dynamic("rows", 1, 4);
  std::vector<float> w;
  for (int i = 0; i < 18 * 3; ++i) w.push_back(static_cast<float>(i));
  exporter.constant("W", w, {18, 3}, Layout::kPanels);
  auto& m = exporter.method("run");
  m.output("y", m.call("linear", "l", {m.input("x", DType::kF32, {"rows", 3}), "W"}));
  auto session = open_session(save_and_open(exporter, directory));
  ASSERT_TRUE(session);
  std::vector<float> x = {0, 1, 0};
  TensorView view = view_of(x, {1, 3});
  auto y = session->execute(session->find_method("run"), {&view, 1});
  ASSERT_TRUE(y);
  for (int i = 0; i < 18; ++i) EXPECT_EQ((*y)[0].as<float>()[i], static_cast<float>(3 * i + 1));
}

struct Mistake {
  const char* what;
  std::function<void(MultiEntryPointExporter&)> make;
  std::vector<std::string> parts;
};

// x f32 [rows, 8] of method "run".
std::string input_x(MultiEntryPointExporter& e, MethodBuilder*& m) {
  e.dynamic("rows", 1, 4);
  e.constant("W", std::vector<float>(16 * 8), {16, 8}, Layout::kPanels);
  e.constant("gamma", std::vector<float>(8), {8});
  m = &e.method("run");
  return m->input("x", DType::kF32, {"rows", 8});
}

TEST(Exporter, ReportsEachMistakeWithTheNamesInvolved) {
  MethodBuilder* m = nullptr;
  const Mistake mistakes[] = {
      {"unknown tensor",
       [&](auto& e) { input_x(e, m), m->output("y", "nobody"); },
       {"method run", "unknown tensor or buffer \"nobody\""}},
      {"unknown operand",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("add", "sum", {x, "z"});
       },
       {"method run", "\"z\""}},
      {"buffer of two methods, not registered",
       [&](auto& e) {
         e.buffer("cache", DType::kF32, {4});
         e.method("one").output("c", "cache");
         e.method("two").output("c", "cache");
       },
       {"\"cache\"", "2 methods", "one, two", "not registered as shared"}},
      {"register_shared of an unknown buffer",
       [](auto& e) { e.register_shared("cache"); },
       {"register_shared", "\"cache\""}},
      {"prefix of nothing",
       [](auto& e) { e.register_shared_prefix("cache."); },
       {"register_shared_prefix", "\"cache.\""}},
      {"two methods of one name",
       [](auto& e) { e.method("run"), e.method("run"); },
       {"method \"run\" is defined twice"}},
      {"own init method",
       [](auto& e) { e.method("et_module_init"); },
       {"method \"et_module_init\" is defined twice"}},
      {"two inputs of one name",
       [](auto& e) {
         auto& r = e.method("run");
         r.input("x", DType::kF32, {1}), r.input("x", DType::kF32, {1});
       },
       {"method run", "\"x\"", "twice"}},
      {"two constants of one name",
       [](auto& e) {
         e.constant("c", std::vector<float>{1}, {1}), e.constant("c", std::vector<float>{1}, {1});
       },
       {"\"c\" is defined twice"}},
      {"constant and buffer",
       [](auto& e) { e.constant("c", std::vector<float>{1}, {1}), e.buffer("c", DType::kF32, {1}); },
       {"\"c\"", "both"}},
      {"two buffers",
       [](auto& e) { e.buffer("c", DType::kF32, {1}), e.buffer("c", DType::kF32, {1}); },
       {"\"c\" is defined twice"}},
      {"result named like an input",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("norm", "x", {x, "gamma"}, {{"epsilon", 1e-5}});
       },
       {"\"x\"", "twice"}},
      {"dtype",
       [&](auto& e) {
         input_x(e, m),
             m->call("norm", "n", {m->input("i", DType::kI32, {"rows", 8}), "gamma"}, {{"epsilon", 1e-5}});
       },
       {"method run", "norm \"n\"", "(i) is i32, expected f32"}},
      {"too many operands",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("add", "sum", {x, x, x});
       },
       {"add \"sum\"", "3 inputs, expected 2"}},
      {"too few operands",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("linear", "l", {x});
       },
       {"linear \"l\"", "1 inputs, expected 2 to 4"}},
      {"missing operand",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("linear", "l", {x, ""});
       },
       {"linear \"l\"", "W is missing"}},
      {"shape",
       [&](auto& e) {
         input_x(e, m), m->call("linear", "l", {m->input("z", DType::kF32, {"rows", 9}), "W"});
       },
       {"linear \"l\"", "(z) has shape [rows, 9]", "expected 8 in dimension 1"}},
      {"rank",
       [&](auto& e) {
         input_x(e, m), m->call("linear", "l", {m->input("z", DType::kF32, {"rows"}), "W"});
       },
       {"(z) has shape [rows]", "2 dimensions"}},
      {"kind",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("relu", "r", {x});
       },
       {"unknown operator kind \"relu\""}},
      {"attribute",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("norm", "n", {x, "gamma"});
       },
       {"norm \"n\"", "epsilon is missing"}},
      {"attribute that is no number",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("norm", "n", {x, "gamma"}, {{"epsilon", std::nan("")}});
       },
       {"epsilon", "finite"}},
      {"written in place",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("write_block", "w", {x, m->input("z", DType::kF32, {"rows", 8})});
       },
       {"write_block \"w\"", "must be a shared buffer"}},
      {"input after an operator",
       [&](auto& e) {
         auto x = input_x(e, m);
         m->call("add", "s", {x, x}), m->input("late", DType::kF32, {1});
       },
       {"input \"late\"", "after the first operator"}},
      {"unknown symbol",
       [](auto& e) { e.method("run").input("x", DType::kF32, {"rows"}); },
       {"tensor x", "unknown symbol rows"}},
      {"values that do not fit",
       [](auto& e) {
         e.constant("c", std::vector<float>(5), {2, 3});
       },
       {"constant c", "5 values", "[2, 3]"}},
      {"integers that do not fit",
       [](auto& e) {
         e.constant("c", std::vector<int32_t>(5), {2, 3});
       },
       {"constant c", "[2, 3]"}},
      {"panels of one dimension",
       [](auto& e) { e.constant("c", std::vector<float>(16), {16}, Layout::kPanels); },
       {"constant c"}},
      {"panels as rows",
       [&](auto& e) {
         auto x = input_x(e, m);
         e.constant("P", std::vector<float>(32 * 8), {32, 8}, Layout::kPanels);
         m->call("embed", "emb", {m->input("i", DType::kI32, {"rows"}), "i", "W", "P"}, {{"scale", 1.0}});
       },
       {"embed \"emb\"", "(P)", "panels"}},
      {"a method that gives panels",
       [](auto& e) {
         e.constant("c", std::vector<float>(32), {16, 2}, Layout::kPanels), e.constant_method("give", "c");
       },
       {"give", "panels"}},
      {"initial value beyond i32",
       [](auto& e) { e.buffer("b", DType::kI32, {1}, 3e9); },
       {"\"b\"", "3000000000", "i32"}},
      {"initial value no integer",
       [](auto& e) { e.buffer("b", DType::kI32, {1}, 0.5); },
       {"\"b\"", "0.5", "i32"}},
      {"initial value below u8", [](auto& e) { e.buffer("b", DType::kU8, {1}, -1); }, {"\"b\"", "-1", "u8"}},
      {"initial value infinite", [](auto& e) { e.buffer("b", DType::kF32, {1}, INFINITY); }, {"b", "finite"}},
      {"initial value beyond f32",
       [](auto& e) { e.buffer("b", DType::kF32, {1}, 1e39); },
       {"b", "1e+39", "f32"}},
      {"two sections of one name",
       [](auto& e) { e.section("s", "1"), e.section("s", "2"); },
       {"section s", "twice"}},
      {"name left out",
       [](auto& e) { e.method("run").input("", DType::kF32, {1}); },
       {"method run", "no name"}},
      {"method without a name", [](auto& e) { e.method(""); }, {"method", "no name"}},
      {"buffer without a name", [](auto& e) { e.buffer("", DType::kF32, {1}); }, {"buffer", "no name"}},
  };
  TemporaryDirectory directory;
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.what);
    MultiEntryPointExporter exporter;
    mistake.make(exporter);
    expect_error(exporter.finish(), ErrorCode::kBadInput, mistake.parts);
    expect_error(exporter.save(directory.path() + "/x.duet"), ErrorCode::kBadInput, {mistake.parts[0]});
    EXPECT_NE(::access((directory.path() + "/x.duet").c_str(), F_OK), 0) << "nothing is saved";
  }
}

TEST(Exporter, ReportsExamplesThatDoNotFitTheirMethod) {
  using Example = MultiEntryPointExporter::Example;
  const MultiEntryPointExporter::ExampleInput fits{DType::kF32, {3, 20}};
  struct Case {
    const char* what;
    const char* method;
    Example inputs;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {"unknown method", "put_cache", {{"k", fits}}, {"method \"put_cache\"", "no such method"}},
      {"missing", "set_cache", {{"k", fits}}, {"method set_cache", "missing argument \"v\"", "k, v"}},
      {"surplus", "set_cache", {{"k", fits}, {"v", fits}, {"w", fits}}, {"surplus argument \"w\"", "k, v"}},
      {"surplus of a method without inputs", "get_cache", {{"k", fits}}, {"surplus argument \"k\"", "none"}},
      {"dtype", "set_cache", {{"k", fits}, {"v", {DType::kI32, {3, 20}}}}, {"input v is i32, expected f32"}},
      {"rank",
       "set_cache",
       {{"k", {DType::kF32, {60}}}, {"v", fits}},
       {"input k", "[60]", "expected [n, 20]"}},
      {"above its bounds",
       "set_cache",
       {{"k", {DType::kF32, {11, 20}}}, {"v", {DType::kF32, {11, 20}}}},
       {"input k", "[11, 20]", "n is outside its bounds, expected 1 to 10"}},
      {"below its bounds",
       "set_cache",
       {{"k", {DType::kF32, {0, 20}}}, {"v", {DType::kF32, {0, 20}}}},
       {"n is outside its bounds, expected 1 to 10"}},
      {"fixed size",
       "set_cache",
       {{"k", {DType::kF32, {3, 21}}}, {"v", fits}},
       {"where 21 (20): expected 20"}},
      {"one symbol, two sizes",
       "set_cache",
       {{"k", fits}, {"v", {DType::kF32, {4, 20}}}},
       {"input v", "n is 3 in an earlier input"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    MultiEntryPointExporter exporter;
    build_cache(exporter);
    exporter.example("set_cache", {{"k", fits}, {"v", fits}});
    exporter.example("get_cache", {});
    ASSERT_TRUE(exporter.finish());
    exporter.example(c.method, c.inputs);
    expect_error(exporter.finish(), ErrorCode::kBadInput, c.parts);
  }
}

TEST(Exporter, ABufferOfOneMethodNeedsNoRegistrationAndOneOfTwoNeedsIt) {
  MultiEntryPointExporter alone;
  alone.buffer("scratch", DType::kF32, {4});
  alone.method("one").output("s", "scratch");
  EXPECT_TRUE(alone.finish());
  for (bool by_prefix : {false, true}) {
    MultiEntryPointExporter shared;
    shared.buffer("module.cache", DType::kF32, {4});
    by_prefix ? shared.register_shared_prefix("module.") : shared.register_shared("module.cache");
    shared.method("one").output("c", "module.cache");
    shared.method("two").output("c", "module.cache");
    EXPECT_TRUE(shared.finish());
  }
}

TEST(Exporter, KeepsTheFirstOfSeveralMistakes) {
  MultiEntryPointExporter exporter;
  auto& m = exporter.method("run");
  m.output("a", "first_problem");
  m.output("b", "second_problem");
  expect_error(exporter.finish(), ErrorCode::kBadInput, {"first_problem"});
}

}  // namespace
}  // namespace duet::model
