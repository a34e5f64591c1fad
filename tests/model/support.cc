#include "tests/model/support.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "model/importers/huggingface_marian.h"
#include "model/marian_builder.h"
#include "model/program_header.h"

namespace duet::model {

void build_cache(MultiEntryPointExporter& exporter) {
  exporter.dynamic("n", 1, 10, "rows of a call");
  exporter.constant("version", std::vector<int32_t>{3, 1, 4}, {3});
  exporter.buffer("cache.keys", DType::kF32, {10, 20});
  exporter.buffer("cache.values", DType::kF32, {10, 20}, -1.5);
  exporter.register_shared_prefix("cache.");
  MethodBuilder& set = exporter.method("set_cache");
  std::string k = set.input("k", DType::kF32, {"n", 20}), v = set.input("v", DType::kF32, {"n", 20});
  set.call("write_block", "write_keys", {k, "cache.keys"});
  set.call("write_block", "write_values", {v, "cache.values"});
  MethodBuilder& get = exporter.method("get_cache");
  get.output("k", "cache.keys");
  get.output("v", "cache.values");
  exporter.constant_method("version_of", "version");
}

void build_small_marian(MultiEntryPointExporter& exporter) {
  TemporaryDirectory directory;
  SmallCheckpoint checkpoint;
  // Values of a few hundredths: attention and choices then depend on everything.
  for (auto& [name, tensor] : checkpoint.tensors) {
    auto* values = reinterpret_cast<float*>(tensor.data.data());
    for (size_t i = 0; i < tensor.data.size() / sizeof(float); ++i)
      values[i] =
          static_cast<float>(static_cast<int>((i * 2654435761u + name.size() * 40503u) % 2001) - 1000) / 1000;
  }
  checkpoint.write(directory);
  auto imported = import_huggingface_marian(directory.path());
  ASSERT_TRUE(imported) << imported.error().message;
  Status built = build_marian(*imported, {}, exporter);
  ASSERT_TRUE(built) << built.error().message;
}

std::shared_ptr<const Program> save_and_open(MultiEntryPointExporter& exporter,
                                             const TemporaryDirectory& directory, const std::string& name) {
  std::string path = directory.path() + "/" + name + ".duet";
  Status saved = exporter.save(path);
  EXPECT_TRUE(saved) << (saved ? "" : saved.error().message);
  auto program = Program::open(path);
  EXPECT_TRUE(program) << (program ? "" : program.error().message);
  return program ? *program : nullptr;
}

std::string resealed(std::string bytes) {
  FixedPart fixed{};
  if (bytes.size() < sizeof fixed) return bytes;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.header_bytes > bytes.size() - sizeof fixed) return bytes;
  uint64_t seal = fixed_part({bytes.data() + sizeof fixed, fixed.header_bytes}).seal;
  std::memcpy(bytes.data() + offsetof(FixedPart, seal), &seal, sizeof seal);
  return bytes;
}

std::unique_ptr<Session> open_session(std::shared_ptr<const Program> program, Limits limits, int threads) {
  SessionOptions options;
  options.limits = std::move(limits);
  options.threads = threads;
  auto session = Session::create(std::move(program), options);
  EXPECT_TRUE(session) << (session ? "" : session.error().message);
  return session ? std::move(*session) : nullptr;
}

}  // namespace duet::model
