// Sessions: inputs that do not fit are errors that say which, where, what and what was expected, and change
// nothing; so do limits and threads out of range; what the workspace held before never shows.
#include "model/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "memory/log.h"
#include "tests/model/support.h"

namespace duet::model {
namespace {

using Ints = std::vector<int32_t>;

std::vector<std::byte> shared_bytes(Session& session) {
  const auto& shared = session.program().definition().shared;
  if (shared.empty()) return {};
  std::byte* base = session.shared(shared[0].name).data;  // offset 0
  return {base, base + session.plan().shared_bytes};
}

class Sessions : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    memory::set_log_level(memory::LogLevel::kError);
    TemporaryDirectory directory;
    MultiEntryPointExporter exporter;
    build_small_marian(exporter);
    program_ = save_and_open(exporter, directory);
  }
  static void TearDownTestSuite() { program_.reset(); }
  void SetUp() override { ASSERT_TRUE(program_); }

  static std::shared_ptr<const Program> program_;
};
std::shared_ptr<const Program> Sessions::program_;

// The inputs of reset_encode_prefill: two rows, right as they stand.
struct Prefill {
  Ints source = {1, 2, 0, 3, 0}, lengths = {3, 2}, slots = {1, 3}, prompt = {11, 11, 4}, prompts = {1, 2},
       limits = {5, 4};
  std::vector<TensorView> views() {
    return {view_of(source), view_of(lengths), view_of(slots),
            view_of(prompt), view_of(prompts), view_of(limits)};
  }
};

struct BadCall {
  std::function<void(Prefill&, std::vector<TensorView>&)> spoil;
  bool before_views;  // numbers are changed before the views are taken
  std::vector<std::string> parts;
};

TEST_F(Sessions, RefuseInputsThatDoNotFitAndChangeNothing) {
  auto session = open_session(program_, {{"slots", 4}, {"batch_tokens", 6}}, 2);
  ASSERT_TRUE(session);
  int prefill = session->find_method("reset_encode_prefill"), decode = session->find_method("decode");
  {
    Prefill good;
    auto outputs = session->execute(prefill, good.views());
    ASSERT_TRUE(outputs) << outputs.error().message;
  }
  const auto before = shared_bytes(*session);
  ASSERT_GT(before.size(), 1000u);
  const BadCall cases[] = {
      {[](auto&, auto& v) { v.pop_back(); },
       false,
       {"5 inputs, expected 6", "source_tokens, source_lengths, slots"}},
      {[](auto&, auto& v) { v.push_back(v[0]); }, false, {"7 inputs, expected 6"}},
      {[](auto&, auto& v) { v.clear(); }, false, {"0 inputs, expected 6"}},
      {[](auto&, auto& v) { v[0].dtype = DType::kF32; }, false, {"input source_tokens is f32, expected i32"}},
      {[](auto&, auto& v) { v[2].dtype = DType::kI64; }, false, {"input slots is i64, expected i32"}},
      {[](auto&, auto& v) { v[0].rank = 2, v[0].dims[1] = 1; },
       false,
       {"input source_tokens has shape [5, 1], expected [source_batch]"}},
      {[](auto&, auto& v) { v[3].rank = 0; },
       false,
       {"input prompt_tokens has shape [], expected [prompt_batch]"}},
      {[](auto&, auto& v) { v[0].dims[0] = 0; },
       false,
       {"input source_tokens", "source_batch is 0, expected 1 to 6"}},
      {[](auto&, auto& v) { v[0].dims[0] = -1; }, false, {"source_batch is -1, expected 1 to 6"}},
      {[](auto&, auto& v) { v[0].dims[0] = INT64_MAX; },
       false,
       {"source_batch is 9223372036854775807, expected 1 to 6"}},
      {[](auto& p, auto&) { p.source.resize(7); }, true, {"source_batch is 7, expected 1 to 6"}},
      {[](auto& p, auto&) {
         p.lengths = {1, 1, 1, 1, 1};
       },
       true,
       {"input source_lengths", "rows is 5, expected 1 to 4"}},
      {[](auto& p, auto&) {
         p.slots = {1, 2, 3};
       },
       true,
       {"input slots has shape [3]: rows is 2 here"}},
      {[](auto& p, auto&) { p.limits = {1}; }, true, {"input target_limits has shape [1]: rows is 2 here"}},
      {[](auto& p, auto&) { p.source[3] = 12; }, true, {"input source_tokens[3] is 12, expected 0 to 11"}},
      {[](auto& p, auto&) { p.source[0] = -1; }, true, {"input source_tokens[0] is -1, expected 0 to 11"}},
      {[](auto& p, auto&) { p.source[4] = INT32_MIN; }, true, {"input source_tokens[4] is -2147483648"}},
      {[](auto& p, auto&) { p.lengths[1] = 0; }, true, {"input source_lengths[1] is 0, expected 1 to 5"}},
      {[](auto& p, auto&) { p.lengths[0] = 6; }, true, {"input source_lengths[0] is 6, expected 1 to 5"}},
      {[](auto& p, auto&) { p.lengths[0] = 2; },
       true,
       {"input source_lengths adds up to 4, expected source_batch = 5"}},
      {[](auto& p, auto&) { p.prompts[0] = 2; },
       true,
       {"input prompt_lengths adds up to 4, expected prompt_batch = 3"}},
      {[](auto& p, auto&) { p.slots[1] = 4; }, true, {"input slots[1] is 4, expected 0 to 3"}},
      {[](auto& p, auto&) { p.slots[0] = -1; }, true, {"input slots[0] is -1, expected 0 to 3"}},
      {[](auto& p, auto&) {
         p.slots = {3, 3};
       },
       true,
       {"input slots[1] is 3, which stands there twice"}},
      {[](auto& p, auto&) { p.prompt[2] = 12; }, true, {"input prompt_tokens[2] is 12, expected 0 to 11"}},
      {[](auto& p, auto&) { p.limits[1] = 0; }, true, {"input target_limits[1] is 0, expected 1 to 5"}},
      {[](auto& p, auto&) { p.limits[1] = 6; }, true, {"input target_limits[1] is 6, expected 1 to 5"}},
      {[](auto& p, auto&) { p.limits[1] = 1; },
       true,
       {"row 1 has 2 prompt tokens and a limit of 1", "prompt <= limit"}},
  };
  for (const BadCall& bad : cases) {
    SCOPED_TRACE(bad.parts[0]);
    Prefill call;
    std::vector<TensorView> views;
    if (bad.before_views) bad.spoil(call, views);
    views = call.views();
    if (!bad.before_views) bad.spoil(call, views);
    auto expected = bad.parts;
    expected.push_back("method reset_encode_prefill: ");
    expect_error(session->execute(prefill, views), ErrorCode::kUsage, expected);
    EXPECT_EQ(before, shared_bytes(*session)) << "shared memory was changed";
  }
  Ints slots = {1, 0};
  TensorView view = view_of(slots);
  expect_error(session->execute(decode, {&view, 1}), ErrorCode::kUsage,
               {"method decode", "slot 0 is not decoding"});
  EXPECT_EQ(before, shared_bytes(*session));
  expect_error(session->execute(-1, {}), ErrorCode::kUsage, {"no method -1"});
  expect_error(session->execute(4, {}), ErrorCode::kUsage, {"no method 4", "has 4"});
  EXPECT_EQ(session->find_method("nobody"), -1);
  EXPECT_EQ(before, shared_bytes(*session));
  Prefill good;
  EXPECT_TRUE(session->execute(prefill, good.views())) << "and the session still works";
}

TEST_F(Sessions, RefuseACallThatTheCacheHasNoRoomForAndChangeNothing) {
  auto session = open_session(program_, {{"slots", 4}, {"cache_blocks", 5}});
  ASSERT_TRUE(session);
  int prefill = session->find_method("reset_encode_prefill");
  Prefill good;
  ASSERT_TRUE(session->execute(prefill, good.views()));
  const auto before = shared_bytes(*session);
  Prefill other;
  other.slots = {0, 2};
  expect_error(session->execute(prefill, other.views()), ErrorCode::kExhausted,
               {"reset_encode_prefill", "4 cache blocks", "of 5 are free"});
  EXPECT_EQ(before, shared_bytes(*session));
}

TEST_F(Sessions, RefuseThreadsAndLimitsOutOfRange) {
  auto create = [&](Limits limits, int threads) {
    SessionOptions options;
    options.limits = std::move(limits);
    options.threads = threads;
    return Session::create(program_, options);
  };
  for (int threads : {0, -1, 257, INT32_MAX})
    expect_error(create({}, threads), ErrorCode::kUsage,
                 {fmt::format("threads is {}, expected 1 to 256", threads)});
  expect_error(create({{"slots", 0}}, 1), ErrorCode::kUsage,
               {"slots is 0, expected 1 to 4096", "sentences decoded at once"});
  expect_error(create({{"slots", 4097}}, 1), ErrorCode::kUsage, {"slots is 4097"});
  expect_error(create({{"max_source_tokens", 6}}, 1), ErrorCode::kUsage,
               {"max_source_tokens is 6, expected 1 to 5"});
  expect_error(create({{"slots", 8}, {"batch_tokens", 7}}, 1), ErrorCode::kUsage,
               {"batch_tokens is 7, expected 8 to"});
  expect_error(create({{"cache_blocks", 1}}, 1), ErrorCode::kUsage, {"cache_blocks is 1, expected 2 to"});
  expect_error(
      create({{"slotz", 1}}, 1), ErrorCode::kUsage,
      {"unknown limit slotz", "slots, max_source_tokens, max_target_tokens, batch_tokens, cache_blocks"});
  EXPECT_TRUE(create({}, 16));
}

TEST_F(Sessions, AreSizedByTheirLimits) {
  auto small = open_session(program_, {{"slots", 1}, {"max_source_tokens", 2}}),
       large = open_session(program_, {{"slots", 64}});
  ASSERT_TRUE(small && large);
  EXPECT_EQ(small->symbol("slots"), 1);
  EXPECT_EQ(small->symbol("source_blocks"), 1);
  EXPECT_LT(small->plan().total_bytes() * 10, large->plan().total_bytes());
}

// A few calls of random sizes; every output byte.
std::vector<std::byte> outputs_of_calls(Session& session, bool poison) {
  std::mt19937 random(3);
  std::vector<std::byte> bytes;
  auto call = [&](const char* method, std::vector<TensorView> inputs) {
    if (poison) session.poison_workspace();
    auto outputs = session.execute(session.find_method(method), inputs);
    ASSERT_TRUE(outputs) << outputs.error().message;
    for (const TensorView& output : *outputs)
      bytes.insert(bytes.end(), output.data, output.data + output.bytes());
  };
  for (int round = 0; round < 30; ++round) {
    Prefill p{{}, {}, {}, {}, {}, {}};
    for (int32_t slot = 0; slot < 4; ++slot) {
      if (random() % 2 && !(slot == 3 && p.slots.empty())) continue;
      p.slots.push_back(slot);
      p.lengths.push_back(1 + static_cast<int32_t>(random() % 5));
      p.limits.push_back(2 + static_cast<int32_t>(random() % 4));
      p.prompts.push_back(1 + static_cast<int32_t>(random() % 2));
      for (int32_t t = 0; t < p.lengths.back(); ++t) p.source.push_back(static_cast<int32_t>(random() % 12));
      for (int32_t t = 0; t < p.prompts.back(); ++t) p.prompt.push_back(static_cast<int32_t>(random() % 12));
    }
    call("reset_encode_prefill", p.views());
    for (int step = 0; step < 4; ++step) {
      Ints going;
      for (int32_t slot = 0; slot < 4; ++slot)
        if (session.shared("slots.status").as<int32_t>()[slot] == 1) going.push_back(slot);
      if (!going.empty()) call("decode", {view_of(going)});
    }
  }
  return bytes;
}

TEST_F(Sessions, DoNotReadWhatNobodyWroteInTheWorkspace) {
  for (int threads : {1, 2}) {
    auto plain = open_session(program_, {{"slots", 4}}, threads),
         poisoned = open_session(program_, {{"slots", 4}}, threads);
    ASSERT_TRUE(plain && poisoned);
    auto expected = outputs_of_calls(*plain, false);
    EXPECT_GT(expected.size(), 1000u);
    EXPECT_EQ(expected, outputs_of_calls(*poisoned, true));
  }
}

TEST_F(Sessions, OfOneProgramDoNotShareState) {
  auto a = open_session(program_, {{"slots", 4}}), b = open_session(program_, {{"slots", 4}});
  ASSERT_TRUE(a && b);
  auto untouched = shared_bytes(*b);
  outputs_of_calls(*a, false);
  EXPECT_EQ(untouched, shared_bytes(*b));
}

TEST_F(Sessions, GiveTheSameTokensOnTheReferencePath) {
  auto fast = open_session(program_, {{"slots", 4}}), slow = open_session(program_, {{"slots", 4}});
  ASSERT_TRUE(fast && slow);
  slow->use_reference(nullptr);
  Prefill p, q;
  auto a = fast->execute(fast->find_method("reset_encode_prefill"), p.views()),
       b = slow->execute(slow->find_method("reset_encode_prefill"), q.views());
  ASSERT_TRUE(a && b);
  for (int row = 0; row < 2; ++row) {
    EXPECT_EQ((*a)[0].as<int32_t>()[row], (*b)[0].as<int32_t>()[row]);
    EXPECT_NEAR((*a)[1].as<float>()[row], (*b)[1].as<float>()[row], 1e-4);
  }
}

TEST_F(Sessions, TellAHookOfEveryOperatorInOrderOnTheFastAndTheReferencePath) {
  std::vector<std::string> expected;
  for (const Operation& operation : program_->definition().find_method("reset_encode_prefill")->operations)
    expected.push_back(operation.name);
  for (bool reference : {false, true}) {
    auto session = open_session(program_, {{"slots", 4}}, 4);
    ASSERT_TRUE(session);
    if (reference) session->use_reference(nullptr);
    std::vector<std::string> seen;
    uint64_t nanoseconds = 0;
    session->add_hook("*", [&](const OperatorEvent& event) {
      EXPECT_EQ(event.method.name, "reset_encode_prefill");
      EXPECT_EQ(event.inputs.size(), event.operation.inputs.size());
      EXPECT_EQ(event.outputs.size(), event.operation.outputs.size());
      seen.push_back(event.operation.name);
      nanoseconds += event.nanoseconds;
    });
    Prefill p;
    ASSERT_TRUE(session->execute(session->find_method("reset_encode_prefill"), p.views()));
    EXPECT_EQ(seen, expected);
    EXPECT_GT(nanoseconds, 0u);
  }
}

// What hooks see at "*.fc1" and "*norm" in one prefill, as bits.
std::vector<std::vector<std::byte>> hooked_values(std::shared_ptr<const Program> program, int threads) {
  auto session = open_session(std::move(program), {{"slots", 4}}, threads);
  std::vector<std::vector<std::byte>> seen;
  auto keep = [&](const OperatorEvent& event) {
    for (const auto& views : {event.inputs, event.outputs})
      for (const TensorView& view : views)
        if (view) seen.emplace_back(view.data, view.data + view.bytes());
  };
  EXPECT_GT(session->add_hook("*.fc1", keep), 0u);
  EXPECT_GT(session->add_hook("*norm", keep), 0u);
  EXPECT_EQ(session->add_hook("nobody", keep), 0u);
  Prefill p;
  EXPECT_TRUE(session->execute(session->find_method("reset_encode_prefill"), p.views()));
  return seen;
}

TEST_F(Sessions, ShowHooksTheSameBitsOnAnyNumberOfThreads) {
  auto one = hooked_values(program_, 1);
  EXPECT_GT(one.size(), 6u);
  for (int threads : {2, 4}) EXPECT_EQ(hooked_values(program_, threads), one) << threads;
}

TEST_F(Sessions, CallNoHookThatWasRemoved) {
  auto session = open_session(program_, {{"slots", 4}}, 2);
  int calls = 0;
  session->add_hook("*", [&](const OperatorEvent&) { ++calls; });
  session->remove_hooks();
  Prefill p;
  ASSERT_TRUE(session->execute(session->find_method("reset_encode_prefill"), p.views()));
  EXPECT_EQ(calls, 0);
}

TEST_F(Sessions, RefuseACallWhileAnotherOneRuns) {
  auto session = open_session(program_, {{"slots", 4}}, 2);
  int prefill = session->find_method("reset_encode_prefill");
  Prefill p;
  Error error{ErrorCode::kIo, "none"};
  session->add_hook("*", [&](const OperatorEvent&) {
    std::thread([&] {
      Prefill q;
      auto refused = session->execute(prefill, q.views());
      if (!refused) error = refused.error();
    }).join();
  });
  ASSERT_TRUE(session->execute(prefill, p.views()));
  EXPECT_EQ(error.code, ErrorCode::kUsage);
  EXPECT_NE(error.message.find("in use by another call"), std::string::npos) << error.message;
  session->remove_hooks();
  EXPECT_TRUE(session->execute(prefill, p.views())) << "and takes the next one when it is free";
}

TEST_F(Sessions, RefuseDistinctInputsWithTooManyValuesInsteadOfNotChecking) {
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  exporter.dynamic("rows", 1, 4);
  exporter.limit("ids", 1, int64_t{1} << 40, 100);
  InputSpec spec;
  spec.name = "x";
  spec.dtype = DType::kI32;
  spec.shape = {"rows"};
  spec.min_value = -50;
  spec.max_value = "ids";
  spec.distinct = true;
  exporter.method("run").input(spec);
  auto program = save_and_open(exporter, directory);
  ASSERT_TRUE(program);
  auto session = open_session(program);
  ASSERT_TRUE(session);
  Ints twice = {7, -50, 7};
  TensorView view = view_of(twice);
  expect_error(session->execute(1, {&view, 1}), ErrorCode::kUsage, {"x[2] is 7, which stands there twice"});
  SessionOptions wide;
  wide.limits = {{"ids", int64_t{1} << 40}};
  expect_error(Session::create(program, wide), ErrorCode::kUsage, {"method run, input x", "too many"});
}

TEST_F(Sessions, RefuseProgramsWhoseInputsDoNotFitInto64Bits) {
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  exporter.limit("huge", 1, int64_t{1} << 54, int64_t{1} << 54);
  exporter.dynamic("n", 1, "huge");
  auto& m = exporter.method("run");
  for (int i = 0; i < 256; ++i)
    m.input(fmt::format("x{}", i), DType::kF32, {"n"});  // 256 x 2^56 bytes = 2^64
  auto program = save_and_open(exporter, directory);
  ASSERT_TRUE(program);
  expect_error(Session::create(program, {}), ErrorCode::kBadInput, {"method run", "overflow"});
}

}  // namespace
}  // namespace duet::model
