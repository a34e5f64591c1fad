// validate(): what it finds in sound programs, and in one that breaks a promise.
#include "runner/validate.h"

#include <gtest/gtest.h>

#include "memory/log.h"
#include "tests/model/support.h"

namespace duet::runner {
namespace {

const bool kQuiet = (memory::set_log_level(memory::LogLevel::kOff), true);

ValidationReport validated(std::shared_ptr<const model::Program> program, ValidateOptions options = {}) {
  auto report = validate(std::move(program), options);
  EXPECT_TRUE(report) << (report ? "" : report.error().message);
  return report ? *report : ValidationReport();
}

std::map<std::string, MethodValidation> by_name(const ValidationReport& report) {
  std::map<std::string, MethodValidation> rows;
  for (const MethodValidation& row : report.methods) rows[row.method] = row;
  return rows;
}

TEST(Validate, FindsNoProblemInACacheProgram) {
  model::TemporaryDirectory directory;
  model::MultiEntryPointExporter exporter;
  model::build_cache(exporter);
  auto report = validated(model::save_and_open(exporter, directory));
  EXPECT_EQ(report.problem_count, 0u) << report.problems[0];
  auto rows = by_name(report);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_GE(rows["set_cache"].accepted, 16u) << "two sizes, four fills, plain and odd floats";
  EXPECT_EQ(rows["set_cache"].refused, 0u);
  // One input too many; for each of two: none, dtype, rank, 0 and 11 rows, 19 and 21 columns.
  EXPECT_EQ(rows["set_cache"].forbidden, 15u);
  EXPECT_EQ(rows["get_cache"].forbidden, 1u);
  EXPECT_GT(rows["et_module_init"].accepted, 0u);
}

TEST(Validate, FindsNoProblemInATranslationProgram) {
  model::TemporaryDirectory directory;
  model::MultiEntryPointExporter exporter;
  model::build_small_marian(exporter);
  ValidateOptions options;
  options.session.threads = 3;
  options.random_calls = 300;
  auto report = validated(model::save_and_open(exporter, directory), options);
  EXPECT_EQ(report.problem_count, 0u) << report.problems[0];
  for (const MethodValidation& row : report.methods) EXPECT_GT(row.accepted, 0u) << row.method;
  auto rows = by_name(report);
  EXPECT_GT(rows["reset_encode_prefill"].forbidden, 30u);
  EXPECT_GT(rows["decode"].refused, 0u) << "slots that are not in use";
}

TEST(Validate, ReportsStateThatAFailingCallHasChanged) {
  model::TemporaryDirectory directory;
  model::MultiEntryPointExporter exporter;
  exporter.buffer("kept", model::DType::kI32, {4});
  auto& m = exporter.method("careless");
  std::string rows = m.input("rows", model::DType::kI32, {4});  // without bounds
  m.call("write_block", "keep", {rows, "kept"});
  m.output("gathered", m.call("gather_rows", "gather", {"kept", rows}));
  auto report = validated(model::save_and_open(exporter, directory));
  EXPECT_GT(report.problem_count, 0u);
  ASSERT_FALSE(report.problems.empty());
  EXPECT_NE(report.problems[0].find("method careless: was refused after it had changed the state"),
            std::string::npos)
      << report.problems[0];
}

TEST(Validate, StopsWhenItIsTold) {
  model::TemporaryDirectory directory;
  model::MultiEntryPointExporter exporter;
  model::build_cache(exporter);
  ValidateOptions options;
  options.progress = [](uint64_t calls) { return calls < 5; };
  auto report = validate(model::save_and_open(exporter, directory), options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInterrupted);
}

}  // namespace
}  // namespace duet::runner
