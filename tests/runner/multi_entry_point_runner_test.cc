// Methods by name: programs with state of their own, and inputs that do not fit.
#include "runner/multi_entry_point_runner.h"

#include <gtest/gtest.h>

#include "model/exporter.h"
#include "tests/runner/decoding.h"

namespace duet::runner {
namespace {

using model::DType;

std::string file(const std::string& name) { return (golden::scratch_directory() / name).string(); }

std::vector<float> values_from(float first, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

// The program of exporter.h's first comment: a cache that one method writes and another reads.
std::string cache_program() {
  model::MultiEntryPointExporter exporter;
  exporter.limit("rows", 1, 10, 10);
  exporter.dynamic("n", 1, "rows");
  exporter.buffer("cache.keys", DType::kF32, {"rows", 20});
  exporter.register_shared_prefix("cache.");
  auto& set = exporter.method("set_cache");
  set.call("write_block", "set", {set.input("k", DType::kF32, {"n", 20}), "cache.keys"});
  exporter.method("get_cache").output("k", "cache.keys");
  std::string path = file("cache.duet");
  auto saved = exporter.save(path);
  EXPECT_TRUE(saved) << saved.error().message;
  return path;
}

MultiEntryPointRunner load(const std::string& path, model::Limits limits = {}) {
  model::SessionOptions options;
  options.limits = std::move(limits);
  auto runner = MultiEntryPointRunner::load(path, options);
  if (!runner) {
    std::fprintf(stderr, "%s\n", runner.error().message.c_str());
    std::abort();
  }
  return std::move(*runner);
}

TEST(MultiEntryPointRunnerTest, MethodsAreListedInOrder) {
  EXPECT_EQ(load(cache_program()).methods(),
            (std::vector<std::string>{"et_module_init", "set_cache", "get_cache"}));
  auto runner = MultiEntryPointRunner::load(golden::program("small-b"), {});
  ASSERT_TRUE(runner) << runner.error().message;
  EXPECT_EQ(runner->methods(),
            (std::vector<std::string>{"et_module_init", "reset_encode_prefill", "decode", "release"}));
}

TEST(MultiEntryPointRunnerTest, WhatOneMethodWritesAnotherReads) {
  auto runner = load(cache_program());
  auto cache = runner.execute("get_cache", {});
  ASSERT_TRUE(cache) << cache.error().message;
  EXPECT_EQ(cache->at("k").dims, (std::vector<int64_t>{10, 20}));
  EXPECT_EQ(cache->at("k").dtype, DType::kF32);
  std::vector<float> expected(200, 0.0f);
  EXPECT_TRUE(same_bits(cache->at("k").values<float>(), expected)) << "a new cache is not zero";

  auto write = [&](int64_t rows, float first) {
    auto values = values_from(first, static_cast<size_t>(rows) * 20);
    std::copy(values.begin(), values.end(), expected.begin());
    auto done = runner.execute("set_cache", {{"k", Tensor::f32({rows, 20}, values)}});
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_TRUE(done->empty());
    auto read = runner.execute("get_cache", {});
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(same_bits(read->at("k").values<float>(), expected)) << rows << " rows";
  };
  write(10, 1000);
  write(3, -7);
  write(1, 0.5f);
}

TEST(MultiEntryPointRunnerTest, SessionsOfOneProgramHaveTheirOwnState) {
  auto program = model::Program::open(cache_program());
  ASSERT_TRUE(program) << program.error().message;
  auto a = MultiEntryPointRunner::load(*program, {}), b = MultiEntryPointRunner::load(*program, {});
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(a->execute("set_cache", {{"k", Tensor::f32({2, 20}, values_from(1, 40))}}));
  EXPECT_EQ(a->execute("get_cache", {})->at("k").values<float>()[5], 6.0f);
  EXPECT_EQ(b->execute("get_cache", {})->at("k").values<float>()[5], 0.0f);
}

TEST(MultiEntryPointRunnerTest, LimitsAreChosenWhenLoading) {
  auto runner = load(cache_program(), {{"rows", 4}});
  EXPECT_EQ(runner.execute("get_cache", {})->at("k").dims, (std::vector<int64_t>{4, 20}));
  EXPECT_FALSE(runner.execute("set_cache", {{"k", Tensor::f32({5, 20}, values_from(0, 100))}}));
  for (model::Limits wrong : {model::Limits{{"rows", 11}}, {{"rows", 0}}, {{"row", 4}}}) {
    model::SessionOptions options;
    options.limits = wrong;
    auto refused = MultiEntryPointRunner::load(cache_program(), options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUsage) << refused.error().message;
    EXPECT_NE(refused.error().message.find(wrong.begin()->first), std::string::npos)
        << refused.error().message;
  }
}

TEST(MultiEntryPointRunnerTest, InputsThatDoNotFitAreRefusedAndChangeNothing) {
  auto runner = load(cache_program());
  auto good = Tensor::f32({1, 20}, values_from(1, 20));
  ASSERT_TRUE(runner.execute("set_cache", {{"k", good}}));
  auto before = runner.execute("get_cache", {})->at("k").data;
  auto expect_refused = [&](const std::string& method, const std::map<std::string, Tensor>& inputs,
                            const std::string& part) {
    auto result = runner.execute(method, inputs);
    ASSERT_FALSE(result) << part;
    EXPECT_EQ(result.error().code, ErrorCode::kUsage) << result.error().message;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    EXPECT_EQ(runner.execute("get_cache", {})->at("k").data, before) << result.error().message;
  };
  expect_refused("put_cache", {{"k", good}},
                 "no method \"put_cache\"; the program has: et_module_init, set_cache, get_cache");
  expect_refused("set_cache", {}, "inputs not given: k");
  expect_refused("set_cache", {{"k", good}, {"v", good}}, "no input \"v\"");
  expect_refused("set_cache", {{"v", good}}, "inputs not given: k");
  expect_refused("get_cache", {{"k", good}}, "no input \"k\"");
  auto other = values_from(9, 240);
  auto tensor = [&](std::vector<int64_t> dims, size_t count) {
    return Tensor::f32(std::move(dims), std::span(other).first(count));
  };
  expect_refused("set_cache", {{"k", tensor({2, 20}, 39)}}, "156 bytes, its shape says 160");
  expect_refused("set_cache", {{"k", tensor({2, 20}, 41)}}, "164 bytes, its shape says 160");
  expect_refused("set_cache", {{"k", tensor({2, 19}, 38)}}, "shape [2, 19], expected [n, 20]");
  expect_refused("set_cache", {{"k", tensor({40}, 40)}}, "shape [40], expected [n, 20]");
  expect_refused("set_cache", {{"k", tensor({1, 1, 20}, 20)}}, "shape [1, 1, 20]");
  expect_refused("set_cache", {{"k", tensor({1, 1, 1, 1, 20}, 20)}}, "5 dimensions");
  expect_refused("set_cache", {{"k", tensor({0, 20}, 0)}}, "n is 0, expected 1 to 10");
  expect_refused("set_cache", {{"k", tensor({12, 20}, 240)}}, "n is 12, expected 1 to 10");
  expect_refused("set_cache", {{"k", tensor({-1, 20}, 0)}}, "a dimension of -1");
  expect_refused("set_cache", {{"k", tensor({INT64_MAX, 20}, 20)}}, "a dimension of 9223372036854775807");
  std::vector<int32_t> integers(20, 1);
  expect_refused("set_cache", {{"k", Tensor::i32({1, 20}, integers)}}, "i32, expected f32");
}

TEST(MultiEntryPointRunnerTest, InitialValuesConstantsAndArithmetic) {
  model::MultiEntryPointExporter exporter;
  exporter.limit("n", 1, 8, 4);
  exporter.buffer("total", DType::kF32, {"n"}, 2.5);
  exporter.register_shared("total");
  exporter.constant("version", std::vector<float>{1, 2, 3}, {3});
  exporter.constant_method("version_of", "version");
  auto& add = exporter.method("accumulate");
  auto sum = add.call("add", "sum", {add.input("x", DType::kF32, {"n"}), "total"});
  add.call("write_block", "keep", {sum, "total"});
  add.output("sum", sum);
  exporter.method("total_of").output("total", "total");
  auto saved = exporter.save(file("total.duet"));
  ASSERT_TRUE(saved) << saved.error().message;
  auto runner = load(file("total.duet"));
  auto total = [&] {
    auto read = runner.execute("total_of", {});
    EXPECT_TRUE(read) << read.error().message;
    auto values = read->at("total").values<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  EXPECT_EQ(total(), (std::vector<float>{2.5, 2.5, 2.5, 2.5}));
  std::vector<float> x = {1, 2, 3, 4};
  ASSERT_TRUE(runner.execute("accumulate", {{"x", Tensor::f32({4}, x)}}));
  auto second = runner.execute("accumulate", {{"x", Tensor::f32({4}, x)}});
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->at("sum").values<float>()[3], 10.5f);
  EXPECT_EQ(total(), (std::vector<float>{4.5, 6.5, 8.5, 10.5}));
  EXPECT_EQ(runner.execute("version_of", {})->at("value").values<float>()[2], 3.0f);
  // The first method again: state as it was after loading.
  ASSERT_TRUE(runner.execute("et_module_init", {}));
  EXPECT_EQ(total(), (std::vector<float>{2.5, 2.5, 2.5, 2.5}));
}

TEST(MultiEntryPointRunnerTest, ATranslationByMethodNames) {
  auto sentence = golden::sentences("small-b")[3];
  auto loaded = MultiEntryPointRunner::load(golden::program("small-b"), {});
  ASSERT_TRUE(loaded) << loaded.error().message;
  auto& runner = *loaded;
  auto vector = [](std::vector<int32_t> values) {
    return Tensor::i32({static_cast<int64_t>(values.size())}, values);
  };
  auto start = runner.program().definition().metadata["decoder_start_id"].get<int32_t>();
  auto outputs = runner.execute(
      "reset_encode_prefill", {{"source_tokens", vector(sentence.source_ids)},
                               {"source_lengths", vector({static_cast<int32_t>(sentence.source_ids.size())})},
                               {"slots", vector({2})},
                               {"prompt_tokens", vector({start})},
                               {"prompt_lengths", vector({1})},
                               {"target_limits", vector({48})}});
  std::vector<int32_t> tokens;
  while (true) {
    ASSERT_TRUE(outputs) << outputs.error().message;
    tokens.push_back(outputs->at("tokens").values<int32_t>()[0]);
    if (outputs->at("finished").values<int32_t>()[0]) break;
    outputs = runner.execute("decode", {{"slots", vector({2})}});
  }
  EXPECT_EQ(tokens, sentence.target_ids);
}

TEST(MultiEntryPointRunnerTest, FilesThatAreNoPrograms) {
  auto missing = MultiEntryPointRunner::load(file("missing.duet"), {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kIo) << missing.error().message;
  // And a program that cannot translate, asked to.
  auto program = model::Program::open(cache_program());
  ASSERT_TRUE(program);
  auto runner = EncoderDecoderRunner::create(*program, {});
  ASSERT_FALSE(runner);
  EXPECT_EQ(runner.error().code, ErrorCode::kBadInput);
  EXPECT_NE(runner.error().message.find("not a translation program"), std::string::npos)
      << runner.error().message;
}

}  // namespace
}  // namespace duet::runner
