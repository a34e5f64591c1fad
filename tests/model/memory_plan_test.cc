// Where the tensors of real programs lie: no two live ones overlap, state is at one place for all methods,
// and the workspace is close to the proven lower bound.
#include "model/memory_plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "model/importers/huggingface_marian.h"
#include "model/marian_builder.h"
#include "tests/model/support.h"
#include "tests/runner/golden.h"

namespace duet::model {
namespace {

std::vector<BufferPlan> in_arena(const MethodPlan& method, memory::ArenaId arena) {
  std::vector<BufferPlan> buffers;
  for (const BufferPlan& b : method.buffers)
    if (b.arena == arena) buffers.push_back(b);
  return buffers;
}

// By the planner's own oracle, and by a comparison of all pairs that shares nothing with it.
void expect_no_overlap(const MethodPlan& method, memory::ArenaId arena, uint64_t arena_bytes) {
  auto buffers = in_arena(method, arena);
  std::vector<memory::BufferRequest> requests;
  memory::ArenaPlan plan;
  for (const BufferPlan& b : buffers) {
    requests.push_back({b.name, b.bytes, b.first, b.last});
    plan.offsets.push_back(b.offset);
    EXPECT_EQ(b.offset % 64, 0u) << b.name;
    EXPECT_LE(b.offset + b.bytes, arena_bytes) << b.name;
    EXPECT_TRUE(0 <= b.first && b.first <= b.last && b.last <= std::max(0, method.steps - 1)) << b.name;
  }
  auto overlap = memory::find_overlap(requests, plan);
  EXPECT_FALSE(overlap) << method.name << ": "
                        << (overlap ? requests[overlap->a].name + ", " + requests[overlap->b].name : "");
  for (size_t a = 0; a < buffers.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const BufferPlan &x = buffers[a], &y = buffers[b];
      if (x.bytes == 0 || y.bytes == 0) continue;
      bool apart_in_time = x.last < y.first || y.last < x.first;
      bool apart_in_space = x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset;
      EXPECT_TRUE(apart_in_time || apart_in_space) << method.name << ": " << x.name << " and " << y.name;
    }
  }
}

// Each value lies where a buffer of at least its size is planned, from the step that makes it to the last
// that reads it.
void expect_values_have_memory(const ProgramDefinition& definition, const Method& method,
                               const MethodPlan& plan, const MemoryPlan& memory) {
  auto covered = [&](const Place& place, uint64_t bytes, int step) {
    if (bytes == 0) return true;
    for (const BufferPlan& b : plan.buffers)
      if (b.arena == place.arena && b.offset == place.offset && b.bytes >= bytes && b.first <= step &&
          step <= b.last)
        return true;
    return false;
  };
  auto check = [&](ValueRef ref, int step, const std::string& where) {
    if (ref.space != ValueRef::Space::kValue) return;
    const TensorSpec& spec = method.values[ref.index];
    EXPECT_TRUE(covered(plan.values[ref.index], *tensor_bytes(definition, spec, memory.symbols), step))
        << method.name << ": " << spec.name << " in " << where;
  };
  for (size_t i = 0; i < method.operations.size(); ++i) {
    for (ValueRef ref : method.operations[i].inputs)
      check(ref, static_cast<int>(i), method.operations[i].name);
    for (ValueRef ref : method.operations[i].outputs)
      check(ref, static_cast<int>(i), method.operations[i].name);
  }
  for (const MethodOutput& output : method.outputs) {
    check(output.value, plan.steps - 1, "output " + output.name);
    if (output.value.space == ValueRef::Space::kValue) {
      EXPECT_EQ(static_cast<int>(plan.values[output.value.index].arena),
                static_cast<int>(memory::ArenaId::kIo));
    }
  }
}

double check_plan(const ProgramDefinition& definition, const Limits& limits, int threads) {
  auto plan = plan_memory(definition, limits, threads);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().message);
  if (!plan) return 0;
  uint64_t largest_workspace = 0, largest_io = 0;
  double worst = 1;
  std::map<std::string, uint64_t> shared_offsets;
  for (size_t m = 0; m < plan->methods.size(); ++m) {
    const MethodPlan& method = plan->methods[m];
    expect_no_overlap(method, memory::ArenaId::kWorkspace, method.arena_bytes);
    expect_no_overlap(method, memory::ArenaId::kIo, method.io_bytes);
    expect_no_overlap(method, memory::ArenaId::kShared, plan->shared_bytes);
    expect_values_have_memory(definition, definition.methods[m], method, *plan);
    for (const BufferPlan& b : in_arena(method, memory::ArenaId::kShared)) {
      auto [entry, fresh] = shared_offsets.emplace(b.name, b.offset);
      EXPECT_EQ(entry->second, b.offset) << b.name << " in " << method.name;
      EXPECT_EQ(b.first, 0);
      EXPECT_EQ(b.last, std::max(0, method.steps - 1));
    }
    EXPECT_GE(method.naive_bytes, method.arena_bytes);
    EXPECT_GE(method.arena_bytes, method.lower_bound_bytes);
    EXPECT_LE(static_cast<double>(method.arena_bytes), 1.05 * static_cast<double>(method.lower_bound_bytes))
        << method.name;
    if (method.lower_bound_bytes > 0)
      worst = std::max(
          worst, static_cast<double>(method.arena_bytes) / static_cast<double>(method.lower_bound_bytes));
    largest_workspace = std::max(largest_workspace, method.arena_bytes);
    largest_io = std::max(largest_io, method.io_bytes);
  }
  EXPECT_EQ(shared_offsets.size(), definition.shared.size()) << "et_module_init uses all";
  EXPECT_EQ(plan->methods[0].shared_bytes, plan->shared_bytes);
  EXPECT_EQ(plan->workspace_bytes, largest_workspace);
  EXPECT_EQ(plan->io_bytes, largest_io);
  EXPECT_EQ(plan->total_bytes(), plan->workspace_bytes + plan->shared_bytes + plan->io_bytes);
  return worst;
}

TEST(MemoryPlan, HoldsForTheGoldenModelsUnderManyLimits) {
  double worst = 1;
  for (const std::string& model : runner::golden::kModels) {
    const ProgramDefinition& definition = runner::golden::program(model)->definition();
    const Limits cases[] = {
        {},
        {{"slots", 1}, {"max_source_tokens", 1}, {"max_target_tokens", 1}, {"batch_tokens", 1}},
        {{"slots", 1}, {"batch_tokens", 512}},
        {{"slots", 3}, {"max_source_tokens", 17}, {"max_target_tokens", 33}},
        {{"slots", 64}, {"batch_tokens", 4096}},
        {{"slots", 1000}, {"cache_blocks", 5000}, {"batch_tokens", 1000}}};
    for (const Limits& limits : cases) {
      for (int threads : {1, 2, 7}) {
        SCOPED_TRACE(fmt::format("{} slots {} threads {}", model,
                                 limits.count("slots") ? limits.at("slots") : 0, threads));
        worst = std::max(worst, check_plan(definition, limits, threads));
      }
    }
  }
  std::cout << "largest workspace, in lower bounds: " << worst << std::endl;
}

TEST(MemoryPlan, HoldsForProgramsWithoutWorkspaceOrWithoutState) {
  MultiEntryPointExporter cache;
  build_cache(cache);
  check_plan(**cache.finish(), {}, 1);
  MultiEntryPointExporter empty;
  check_plan(**empty.finish(), {}, 1);
}

// y is normalised in place only where nobody needs it afterwards.
TEST(MemoryPlan, AResultTakesOverItsOperandsMemoryOnlyAtTheOperandsLastUse) {
  for (bool needed_later : {false, true}) {
    MultiEntryPointExporter exporter;
    exporter.dynamic("rows", 1, 4);
    exporter.constant("W", std::vector<float>(64, 0.5f), {8, 8}, Layout::kPanels);
    exporter.constant("gamma", std::vector<float>(8, 1.0f), {8});
    auto& m = exporter.method("run");
    std::string y = m.call("linear", "y", {m.input("x", DType::kF32, {"rows", 8}), "W"});
    std::string n = m.call("norm", "n", {y, "gamma"}, {{"epsilon", 1e-5}});
    std::string other = m.call("linear", "other", {n, "W"});
    std::string sum = m.call("add", "sum", {other, needed_later ? y : n});
    m.output("z", m.call("linear", "z", {sum, "W"}));
    const ProgramDefinition& definition = **exporter.finish();
    check_plan(definition, {}, 1);
    auto plan = plan_memory(definition, {}, 1);
    ASSERT_TRUE(plan);
    const auto& values = plan->methods[1].values;  // x, y, n, other, sum, z
    EXPECT_EQ(values[1].offset == values[2].offset, !needed_later) << "y and n";
    EXPECT_EQ(values[3].offset, values[4].offset) << "other and sum";
    EXPECT_EQ(plan->methods[1].arena_bytes, needed_later ? 3u * 128 : 2u * 128);
  }
}

// A Marian model of the base size as a checkpoint of zeros, which takes no room on a disk.
void write_base_checkpoint(const TemporaryDirectory& directory) {
  constexpr uint64_t kWidth = 512, kInner = 2048, kVocabulary = 59514;
  SmallCheckpoint base;
  for (const char* side : {"encoder", "decoder"}) {
    base.config[fmt::format("{}_layers", side)] = 6;
    base.config[fmt::format("{}_attention_heads", side)] = 8;
    base.config[fmt::format("{}_ffn_dim", side)] = kInner;
  }
  base.config["d_model"] = kWidth;
  base.config["vocab_size"] = base.config["decoder_vocab_size"] = kVocabulary;
  base.config["max_position_embeddings"] = 512;
  nlohmann::json header;
  uint64_t end = 0;
  auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    uint64_t bytes = 2;
    for (uint64_t size : shape) bytes *= size;
    header[name] = {{"dtype", "F16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  auto linear = [&](const std::string& name, uint64_t outputs, uint64_t inputs) {
    add(name + ".weight", {outputs, inputs});
    add(name + ".bias", {outputs});
  };
  for (const char* side : {"encoder", "decoder"}) {
    for (int i = 0; i < 6; ++i) {
      std::string layer = fmt::format("model.{}.layers.{}.", side, i);
      for (std::string attention : {"self_attn", "encoder_attn"}) {
        if (attention == "encoder_attn" && side == std::string("encoder")) continue;
        for (const char* part : {"q_proj", "k_proj", "v_proj", "out_proj"})
          linear(layer + attention + "." + part, kWidth, kWidth);
        add(layer + attention + "_layer_norm.weight", {kWidth});
        add(layer + attention + "_layer_norm.bias", {kWidth});
      }
      linear(layer + "fc1", kInner, kWidth);
      linear(layer + "fc2", kWidth, kInner);
      add(layer + "final_layer_norm.weight", {kWidth});
      add(layer + "final_layer_norm.bias", {kWidth});
    }
  }
  add("model.shared.weight", {kVocabulary, kWidth});
  add("final_logits_bias", {1, kVocabulary});
  directory.write("config.json", base.config.dump());
  directory.write("generation_config.json", base.generation.dump());
  std::string path = directory.write("model.safetensors", safetensors_bytes(header.dump(), ""));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + end);
}

TEST(MemoryPlan, OfABaseModelForFourShortSentencesStaysBelowNineMillionBytes) {
  TemporaryDirectory directory;
  write_base_checkpoint(directory);
  auto checkpoint = import_huggingface_marian(directory.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  MultiEntryPointExporter exporter;
  ASSERT_TRUE(build_marian(*checkpoint, {}, exporter));
  auto definition = exporter.finish();
  ASSERT_TRUE(definition) << definition.error().message;
  Limits limits = {{"slots", 4}, {"max_source_tokens", 21}, {"max_target_tokens", 40}};
  for (int threads : {1, 2}) {
    check_plan(**definition, limits, threads);
    auto plan = plan_memory(**definition, limits, threads);
    ASSERT_TRUE(plan);
    std::cout << threads << " threads: " << plan->total_bytes() << " bytes = workspace "
              << plan->workspace_bytes << " + shared " << plan->shared_bytes << " + io " << plan->io_bytes
              << std::endl;
    EXPECT_LT(plan->total_bytes(), 9'000'000u);
  }
}

}  // namespace
}  // namespace duet::model
