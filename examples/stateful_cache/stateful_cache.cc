// A program with several entry points over one cache: built, saved, loaded and run.
//   set_cache(k [n, m], v [n, m])   writes into the leading corner of the cache
//   get_cache() -> k, v             [10, 20] each, as large as the limits say
//   version() -> value              a constant
//
// usage: stateful_cache [FILE]      where the program is saved [stateful_cache.duet]
#include <cstdio>
#include <numeric>

#include "model/exporter.h"
#include "runner/multi_entry_point_runner.h"

using duet::Result;
using duet::Status;
using duet::model::DType;
using duet::runner::MultiEntryPointRunner;
using duet::runner::Tensor;

Status build(const std::string& path) {
  duet::model::MultiEntryPointExporter exporter;
  exporter.limit("max_rows", 1, 1000, 10, "rows of the cache");
  exporter.limit("max_columns", 1, 1000, 20, "columns of the cache");
  exporter.dynamic("n", 1, "max_rows", "rows of a call");
  exporter.dynamic("m", 1, "max_columns", "columns of a call");
  exporter.constant("version_number", std::vector<int32_t>{3}, {1});
  for (const char* name : {"cache.k", "cache.v"})
    exporter.buffer(name, DType::kF32, {"max_rows", "max_columns"});
  exporter.register_shared_prefix("cache.");  // two methods use them

  auto& set = exporter.method("set_cache");
  std::string k = set.input("k", DType::kF32, {"n", "m"}), v = set.input("v", DType::kF32, {"n", "m"});
  set.call("write_block", "write_k", {k, "cache.k"});
  set.call("write_block", "write_v", {v, "cache.v"});

  auto& get = exporter.method("get_cache");
  get.output("k", "cache.k");
  get.output("v", "cache.v");
  exporter.constant_method("version", "version_number");

  exporter.example("set_cache", {{"k", {DType::kF32, {3, 7}}}, {"v", {DType::kF32, {3, 7}}}});
  return exporter.save(path);
}

Tensor counting(int64_t rows, int64_t columns, float first) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  std::iota(values.begin(), values.end(), first);
  return Tensor::f32({rows, columns}, values);
}

// Writes a block into the cache, and into `expected`, which then must be what get_cache gives.
Result<bool> set_and_compare(MultiEntryPointRunner& runner, const Tensor& block,
                             std::vector<float>& expected) {
  DUET_TRY(runner.execute("set_cache", {{"k", block}, {"v", block}}));
  for (int64_t i = 0; i < block.dims[0]; ++i)
    for (int64_t j = 0; j < block.dims[1]; ++j)
      expected[static_cast<size_t>(i * 20 + j)] =
          block.values<float>()[static_cast<size_t>(i * block.dims[1] + j)];
  DUET_ASSIGN(auto cache, runner.execute("get_cache", {}));
  Tensor whole = Tensor::f32({10, 20}, expected);
  return cache["k"].data == whole.data && cache["v"].data == whole.data;
}

Result<bool> run(const std::string& path) {
  DUET_TRY(build(path));
  DUET_ASSIGN(auto runner, MultiEntryPointRunner::load(path, {}));  // logs the memory plan
  std::vector<float> expected(10 * 20);                             // the cache begins as zeros
  DUET_ASSIGN(bool full, set_and_compare(runner, counting(10, 20, 1), expected));
  DUET_ASSIGN(bool part, set_and_compare(runner, counting(3, 7, 1000), expected));  // the rest stays
  DUET_ASSIGN(auto version, runner.execute("version", {}));
  std::printf("version %d\n", version["value"].values<int32_t>()[0]);
  auto refused = runner.execute("set_cache", {{"k", counting(11, 20, 0)}, {"v", counting(11, 20, 0)}});
  if (!refused) std::printf("11 rows are refused: %s\n", refused.error().message.c_str());
  return full && part && !refused;
}

int main(int argc, char** argv) {
  auto passed = run(argc > 1 ? argv[1] : "stateful_cache.duet");
  if (!passed) std::fprintf(stderr, "stateful_cache: %s\n", passed.error().message.c_str());
  if (!passed) return duet::memory::exit_code(passed.error().code);
  std::puts(*passed ? "Test passed" : "Test failed");
  return *passed ? 0 : 1;
}
