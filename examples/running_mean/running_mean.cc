// A stateful program that has nothing to do with translation: the running mean of four sensors, in which
// every new reading counts a quarter: mean = 3/4 mean + 1/4 reading.
//   update(reading [1, 4]) -> mean [1, 4]
//   mean() -> mean [1, 4]
//   reset()
//
// usage: running_mean [FILE]        where the program is saved [running_mean.duet]
#include <cmath>
#include <cstdio>

#include "model/exporter.h"
#include "runner/multi_entry_point_runner.h"

using duet::Result;
using duet::Status;
using duet::model::DType;
using duet::model::Layout;
using duet::runner::MultiEntryPointRunner;
using duet::runner::Tensor;

constexpr int64_t kSensors = 4;

std::vector<float> scaled_identity(float scale) {
  std::vector<float> matrix(kSensors * kSensors);
  for (size_t i = 0; i < kSensors; ++i) matrix[i * kSensors + i] = scale;
  return matrix;
}

Status build(const std::string& path) {
  duet::model::MultiEntryPointExporter exporter;
  exporter.constant("old", scaled_identity(0.75f), {kSensors, kSensors}, Layout::kPanels);
  exporter.constant("new", scaled_identity(0.25f), {kSensors, kSensors}, Layout::kPanels);
  exporter.buffer("running_mean", DType::kF32, {1, kSensors});
  exporter.register_shared("running_mean");

  auto& update = exporter.method("update");
  std::string reading = update.input("reading", DType::kF32, {1, kSensors});
  std::string part = update.call("linear", "weigh_reading", {reading, "new"});
  std::string mean = update.call("linear", "weigh_mean", {"running_mean", "old", "", part});
  update.call("write_block", "keep", {mean, "running_mean"});
  update.output("mean", mean);

  exporter.method("mean").output("mean", "running_mean");
  exporter.method("reset").call("fill", "clear", {"running_mean"}, {{"value", 0.0}});
  return exporter.save(path);
}

Result<bool> run(const std::string& path) {
  DUET_TRY(build(path));
  DUET_ASSIGN(auto runner, MultiEntryPointRunner::load(path, {}));
  bool passed = true;
  for (int round = 0; round < 2; ++round) {
    DUET_TRY(runner.execute("reset", {}));
    std::vector<float> expected(kSensors);
    for (float time = 0; time < 5; ++time) {
      const std::vector<float> reading = {20, 20 + time, 10 * std::sin(time), -time};
      DUET_ASSIGN(auto updated, runner.execute("update", {{"reading", Tensor::f32({1, kSensors}, reading)}}));
      DUET_ASSIGN(auto kept, runner.execute("mean", {}));
      auto mean = updated["mean"].values<float>();
      std::printf("after %g s: %8.4f %8.4f %8.4f %8.4f\n", time, mean[0], mean[1], mean[2], mean[3]);
      for (size_t i = 0; i < kSensors; ++i) {
        expected[i] = 0.75f * expected[i] + 0.25f * reading[i];
        passed = passed && std::abs(mean[i] - expected[i]) < 1e-5f;
      }
      passed = passed && kept["mean"].data == updated["mean"].data;
    }
  }
  return passed;
}

int main(int argc, char** argv) {
  auto passed = run(argc > 1 ? argv[1] : "running_mean.duet");
  if (!passed) std::fprintf(stderr, "running_mean: %s\n", passed.error().message.c_str());
  if (!passed) return duet::memory::exit_code(passed.error().code);
  std::puts(*passed ? "Test passed" : "Test failed");
  return *passed ? 0 : 1;
}
