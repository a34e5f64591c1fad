// Run by ctest once per value of DUET_ISA (see CMakeLists.txt): the table that the variable names is the one
// that runs, and a name that this processor does not run is an error, not a surprise.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "model/exporter.h"
#include "model/kernels/kernels.h"
#include "model/session.h"
#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

std::string forced() {
  const char* name = std::getenv("DUET_ISA");
  return name ? name : "";
}

const kernels::KernelTable* table_named(const std::string& name) {
  for (auto* table = kernels::available_kernels(); *table; ++table)
    if (name == (*table)->name) return *table;
  return nullptr;
}

std::shared_ptr<const Program> small_program(const TemporaryDirectory& directory) {
  MultiEntryPointExporter exporter;
  exporter.dynamic("rows", 1, 4);
  exporter.constant("W", std::vector<float>(20 * 8, 0.5f), {20, 8}, Layout::kPanels);
  exporter.constant("gamma", std::vector<float>(8, 1.0f), {8});
  auto& m = exporter.method("run");
  auto x = m.call("norm", "norm", {m.input("x", DType::kF32, {"rows", 8}), "gamma"}, {{"epsilon", 1e-5}});
  m.output("y", m.call("linear", "linear", {x, "W"}));
  auto choice = m.call_all("select_argmax", "choice", {x, "W"});
  m.output("id", choice[0]);
  Status saved = exporter.save(directory.path() + "/small.duet");
  EXPECT_TRUE(saved) << (saved ? "" : saved.error().message);
  auto program = Program::open(directory.path() + "/small.duet");
  return program ? *program : nullptr;
}

int g_calls[4];  // linear, norm, max_sum_exp, exp
kernels::KernelTable counting(const kernels::KernelTable& real) {
  static const kernels::KernelTable* inner;
  inner = &real;
  kernels::KernelTable table = real;
  table.linear = [](const kernels::LinearArgs& args) { ++g_calls[0], inner->linear(args); };
  table.norm = [](const float* x, int64_t rows, int64_t columns, const float* gamma, const float* beta,
                  float epsilon,
                  float* out) { ++g_calls[1], inner->norm(x, rows, columns, gamma, beta, epsilon, out); };
  table.max_sum_exp = [](const float* x, int64_t n, float* max, float* sum) {
    ++g_calls[2], inner->max_sum_exp(x, n, max, sum);
  };
  return table;
}

TEST(KernelChoice, IsTheTableThatDuetIsaNames) {
  const kernels::KernelTable* expected = table_named(forced());
  if (forced() == "none-such" || forced().empty()) GTEST_SKIP() << "nothing forced";
  if (!expected) GTEST_SKIP() << "this processor does not run " << forced();
  EXPECT_EQ(kernels::forced_isa_problem(), nullptr);
  EXPECT_EQ(&kernels::kernels(), expected);
  // Its functions are its own: no table borrows another's.
  for (auto* table = kernels::available_kernels(); *table; ++table) {
    if (*table == expected) continue;
    EXPECT_NE((*table)->linear, expected->linear) << (*table)->name;
    EXPECT_NE((*table)->norm, expected->norm) << (*table)->name;
    EXPECT_NE((*table)->attend, expected->attend) << (*table)->name;
    EXPECT_NE((*table)->max_sum_exp, expected->max_sum_exp) << (*table)->name;
    EXPECT_NE((*table)->exp, expected->exp) << (*table)->name;
    EXPECT_NE((*table)->activate, expected->activate) << (*table)->name;
  }
}

TEST(KernelChoice, IsTheBestTableWhenNothingIsForced) {
  if (!forced().empty()) GTEST_SKIP();
  const kernels::KernelTable* best = nullptr;
  for (auto* table = kernels::available_kernels(); *table; ++table) best = *table;
  EXPECT_EQ(&kernels::kernels(), best);
  EXPECT_EQ(kernels::forced_isa_problem(), nullptr);
}

TEST(KernelChoice, RefusesAnUnknownName) {
  if (forced() != "none-such") GTEST_SKIP();
  ASSERT_NE(kernels::forced_isa_problem(), nullptr);
  std::string problem = kernels::forced_isa_problem();
  EXPECT_NE(problem.find("DUET_ISA is \"none-such\""), std::string::npos) << problem;
  for (auto* table = kernels::available_kernels(); *table; ++table)
    EXPECT_NE(problem.find((*table)->name), std::string::npos) << problem;
  TemporaryDirectory directory;
  auto program = small_program(directory);
  ASSERT_TRUE(program);
  expect_error(Session::create(program, {}), ErrorCode::kUsage, {"DUET_ISA", "none-such", "portable"});
}

TEST(KernelChoice, OperatorsCallTheTableThatWasChosen) {
  if (forced() == "none-such") GTEST_SKIP();
  TemporaryDirectory directory;
  auto program = small_program(directory);
  ASSERT_TRUE(program);
  auto session = Session::create(program, {});
  ASSERT_TRUE(session) << session.error().message;
  static const kernels::KernelTable table = counting(kernels::kernels());
  const kernels::KernelTable& chosen = kernels::kernels();
  kernels::force_kernels(table);
  std::vector<float> x(3 * 8, 1.0f);
  TensorView view{reinterpret_cast<std::byte*>(x.data()), DType::kF32, 2, {3, 8}};
  auto outputs = (*session)->execute((*session)->find_method("run"), {&view, 1});
  kernels::force_kernels(chosen);
  ASSERT_TRUE(outputs) << outputs.error().message;
  EXPECT_EQ(g_calls[0], 2);  // linear, and the logits of the choice
  EXPECT_EQ(g_calls[1], 1);
  EXPECT_EQ(g_calls[2], 3);  // a row each
}

}  // namespace
}  // namespace duet::model
