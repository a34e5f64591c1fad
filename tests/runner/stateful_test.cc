// What a session keeps between calls: caches, block tables, positions. Prefill and decode agree, slots do not
// touch each other, memory that nobody owns is never read, and a call that fails has changed nothing.
#include <set>

#include "tests/runner/decoding.h"

namespace duet::runner {
namespace {

using Row = EncoderDecoderRunner::Row;
using model::kBlockTokens;
using model::TensorView;

// The state of a session as the tests see it: through the shared buffers.
class State {
 public:
  explicit State(EncoderDecoderRunner& runner) : runner_(runner) {
    for (const auto& buffer : runner.program().definition().shared)
      if (buffer.name.ends_with(".kv_cache")) pools_.push_back(runner.session().shared(buffer.name));
  }

  int32_t status(int64_t slot) const { return vector("slots.status")[slot]; }
  int32_t positions(int64_t slot) const { return vector("slots.positions")[slot]; }
  int32_t source_length(int64_t slot) const { return vector("slots.source_lengths")[slot]; }

  // Keys and values of the first tokens of a slot: [layer][token][2][d].
  std::vector<float> self_cache(int64_t slot) const {
    return cached("slots.self_table", slot, positions(slot));
  }
  std::vector<float> cross_cache(int64_t slot) const {
    return cached("slots.cross_table", slot, source_length(slot));
  }

  // Every byte that belongs to a slot: its blocks, used or not yet, and its entries of the tables.
  std::vector<std::byte> bytes_of(int64_t slot) const {
    std::vector<std::byte> bytes;
    auto append = [&](const void* data, size_t n) {
      bytes.insert(bytes.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + n);
    };
    for (const char* name :
         {"slots.status", "slots.positions", "slots.limits", "slots.source_lengths", "slots.tokens"})
      append(vector(name) + slot, 4);
    for (auto [block, used] : blocks_of(slot)) {
      append(&block, sizeof block);
      for (const TensorView& pool : pools_) append(block_data(pool, block), block_bytes(pool));
    }
    return bytes;
  }

  // All shared buffers.
  std::vector<std::byte> all_bytes() const {
    std::vector<std::byte> bytes;
    for (const auto& buffer : runner_.program().definition().shared) {
      TensorView view = runner_.session().shared(buffer.name);
      bytes.insert(bytes.end(), view.data, view.data + view.bytes());
    }
    return bytes;
  }

  // NaN wherever nothing that counts lies: the workspace, the outputs of earlier calls, blocks that no slot
  // holds, and the rest of blocks that are partly used.
  void poison() {
    runner_.session().poison_workspace();
    for (size_t m = 0; m < runner_.program().definition().methods.size(); ++m)
      for (const TensorView& output : runner_.session().outputs(static_cast<int>(m)))
        std::memset(output.data, 0xff, output.bytes());
    std::map<int32_t, int64_t> used;
    for (int64_t slot = 0; slot < runner_.slots(); ++slot)
      for (auto [block, tokens] : blocks_of(slot))
        EXPECT_TRUE(used.emplace(block, tokens).second) << "held twice: " << block;
    for (const TensorView& pool : pools_)
      for (int32_t block = 0; block < runner_.cache_blocks(); ++block) {
        auto found = used.find(block);
        float *keys = block_data(pool, block), *values = keys + pool.dims[2] * kBlockTokens;
        for (int64_t t = found == used.end() ? 0 : found->second; t < kBlockTokens; ++t)
          for (int64_t i = 0; i < pool.dims[2]; ++i)
            keys[i * kBlockTokens + t] = values[t * pool.dims[2] + i] = NAN;
      }
  }

 private:
  int32_t* vector(const char* name) const { return runner_.session().shared(name).as<int32_t>(); }
  static float* block_data(const TensorView& pool, int32_t block) {
    return pool.as<float>() + block * 2 * pool.dims[2] * kBlockTokens;
  }
  static size_t block_bytes(const TensorView& pool) {
    return static_cast<size_t>(2 * pool.dims[2] * kBlockTokens) * 4;
  }

  // Blocks of a slot with the number of tokens in each.
  std::vector<std::pair<int32_t, int64_t>> blocks_of(int64_t slot) const {
    std::vector<std::pair<int32_t, int64_t>> blocks;
    if (status(slot) == 0) return blocks;
    for (auto [name, tokens] :
         {std::pair{"slots.self_table", positions(slot)}, {"slots.cross_table", source_length(slot)}}) {
      TensorView table = runner_.session().shared(name);
      for (int64_t t = 0; t < tokens; t += kBlockTokens)
        blocks.emplace_back(table.as<int32_t>()[slot * table.dims[1] + t / kBlockTokens],
                            std::min<int64_t>(kBlockTokens, tokens - t));
    }
    return blocks;
  }

  std::vector<float> cached(const char* table_name, int64_t slot, int64_t tokens) const {
    TensorView table = runner_.session().shared(table_name);
    std::vector<float> values;
    for (const TensorView& pool : pools_)
      for (int64_t t = 0; t < tokens; ++t) {
        int64_t d = pool.dims[2];
        const float* keys = block_data(pool, table.as<int32_t>()[slot * table.dims[1] + t / kBlockTokens]);
        for (int64_t i = 0; i < d; ++i) values.push_back(keys[i * kBlockTokens + t % kBlockTokens]);
        const float* value = keys + d * kBlockTokens + t % kBlockTokens * d;
        values.insert(values.end(), value, value + d);
      }
    return values;
  }

  EncoderDecoderRunner& runner_;
  std::vector<TensorView> pools_;
};

std::vector<int32_t> longest_target_source(const std::string& model, size_t* tokens = nullptr) {
  std::vector<int32_t> source;
  size_t most = 0;
  for (const auto& sentence : golden::sentences(model))
    if (sentence.target_ids.size() > most) most = sentence.target_ids.size(), source = sentence.source_ids;
  if (tokens) *tokens = most;
  return source;
}

class StatefulTest : public testing::TestWithParam<std::string> {};

TEST_P(StatefulTest, PrefillOfAPromptIsDecodingItStepByStep) {
  constexpr size_t kMost = 40;
  size_t target_tokens = 0;
  auto source = longest_target_source(GetParam(), &target_tokens);
  ASSERT_GT(target_tokens, kMost + 1) << "no golden sentence has a translation that long";
  auto stepwise = make_runner(GetParam(), {{"slots", 2}}),
       at_once = make_runner(GetParam(), {{"slots", 3}}, 2);
  State stepwise_state(stepwise), at_once_state(at_once);
  constexpr int32_t kLimit = 60;
  int32_t slot = 1;
  Row row{slot, source, {}, kLimit};
  auto choice = stepwise.prefill({&row, 1});
  std::vector<int32_t> prefix;
  for (size_t n = 1; n <= kMost; ++n) {  // n prompt tokens: the start token and n - 1 of the prefix
    ASSERT_TRUE(choice) << choice.error().message;
    ASSERT_FALSE((*choice)[0].finished) << n;
    Row prompt{2, source, prefix, kLimit};
    auto prefilled = at_once.prefill({&prompt, 1});
    ASSERT_TRUE(prefilled) << prefilled.error().message;
    EXPECT_EQ((*prefilled)[0].token, (*choice)[0].token) << n;
    EXPECT_TRUE(same_bits({&(*prefilled)[0].score, 1}, {&(*choice)[0].score, 1})) << n;
    EXPECT_EQ((*prefilled)[0].finished, (*choice)[0].finished) << n;
    ASSERT_EQ(stepwise_state.positions(slot), static_cast<int32_t>(n));
    EXPECT_TRUE(same_bits(stepwise_state.self_cache(slot), at_once_state.self_cache(2)))
        << n << " prompt tokens";
    EXPECT_TRUE(same_bits(stepwise_state.cross_cache(slot), at_once_state.cross_cache(2)))
        << n << " prompt tokens";
    prefix.push_back((*choice)[0].token);
    choice = stepwise.decode({&slot, 1});
  }
}

TEST_P(StatefulTest, TheSameSourceAgainGivesTheSameAgain) {
  auto sentences = golden::sentences(GetParam());
  auto runner = make_runner(GetParam(), {{"slots", 1}});
  const auto &a = sentences[3].source_ids, &b = sentences[40].source_ids;
  auto first = decode_alone(runner, a, 48), other = decode_alone(runner, b, 48),
       again = decode_alone(runner, a, 48);
  EXPECT_TRUE(same_bits(first, again));
  EXPECT_NE(first.tokens, other.tokens);
  EXPECT_EQ(runner.free_blocks(), runner.cache_blocks());
}

TEST_P(StatefulTest, ResettingOrReleasingOneSlotLeavesTheOthersAlone) {
  auto sentences = golden::sentences(GetParam());
  std::vector<std::vector<int32_t>> sources = {longest_target_source(GetParam())};
  for (size_t i : {5u, 17u, 60u}) sources.push_back(sentences[i].source_ids);
  auto alone_runner = make_runner(GetParam(), {{"slots", 1}});
  auto alone = decode_alone(alone_runner, sources[0], 48);
  auto runner = make_runner(GetParam(), {{"slots", 3}}, 2);
  State state(runner);
  Hypothesis kept;
  auto take = [&](const auto& choices) {
    ASSERT_TRUE(choices) << choices.error().message;
    kept.tokens.push_back((*choices)[0].token);
    kept.scores.push_back((*choices)[0].score);
  };
  Row rows[] = {{2, sources[0], {}, 48}, {1, sources[1], {}, 48}};
  take(runner.prefill(rows));
  int32_t two = 2, one = 1;
  for (int round = 0; round < 8; ++round) {
    for (int i = 0; i < 3; ++i) take(runner.decode({&two, 1}));
    auto before = state.bytes_of(two);
    Row reset{1, sources[static_cast<size_t>(1 + round % 3)], {}, 48};
    ASSERT_TRUE(runner.prefill({&reset, 1}));
    EXPECT_EQ(state.bytes_of(two), before) << "prefill of slot 1";
    for (int i = 0; i < 4 && state.status(one) != 0; ++i) ASSERT_TRUE(runner.decode({&one, 1}));
    EXPECT_EQ(state.bytes_of(two), before) << "decode of slot 1";
    if (round % 2) {
      ASSERT_TRUE(runner.release({&one, 1}));
    }
    EXPECT_EQ(state.bytes_of(two), before) << "release of slot 1";
  }
  while (state.status(two) != 0) take(runner.decode({&two, 1}));
  EXPECT_TRUE(same_bits(kept, alone));
}

TEST_P(StatefulTest, MemoryThatNothingWasWrittenToIsNeverRead) {
  auto sentences = golden::sentences(GetParam());
  auto alone_runner = make_runner(GetParam(), {{"slots", 1}});
  for (int threads : {1, 2}) {
    auto runner = make_runner(GetParam(), {{"slots", 5}}, threads);
    State state(runner);
    Scheduler scheduler(runner);
    for (size_t i = 0; i < 14; ++i)
      ASSERT_TRUE(scheduler.submit({i * 8, sentences[i * 8].source_ids, {}, 48}));
    size_t finished = 0;
    while (!scheduler.idle()) {
      state.poison();
      auto status = scheduler.step(
          [&](uint64_t id, Hypothesis hypothesis) -> Status {
            ++finished;
            EXPECT_TRUE(same_bits(hypothesis, decode_alone(alone_runner, sentences[id].source_ids, 48)))
                << id;
            return {};
          },
          [&](std::span<const Scheduler::Progress>) -> Status {  // between prefill and decode, too
            state.poison();
            return {};
          });
      ASSERT_TRUE(status) << status.error().message;
    }
    EXPECT_EQ(finished, 14u);
  }
}

TEST_P(StatefulTest, TheLastTokenTheLimitAllowsIsTheForcedEnd) {
  auto source = longest_target_source(GetParam());
  auto runner = make_runner(GetParam(), {{"slots", 2}});
  auto free = decode_alone(runner, source, 48);
  ASSERT_GT(free.tokens.size(), 40u);
  for (int32_t limit : {1, 2, 15, 16, 17, 18, 32, 33}) {
    auto cut = decode_alone(runner, source, limit, {}, 1);
    ASSERT_EQ(cut.tokens.size(), static_cast<size_t>(limit));
    EXPECT_EQ(cut.tokens.back(), runner.end_token()) << limit;
    cut.tokens.pop_back();
    cut.scores.pop_back();
    auto begun = free;
    begun.tokens.resize(cut.tokens.size());
    begun.scores.resize(cut.scores.size());
    EXPECT_TRUE(same_bits(cut, begun)) << "before the end at the limit of " << limit;
    EXPECT_EQ(runner.free_blocks(), runner.cache_blocks()) << limit;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StatefulTest, testing::ValuesIn(golden::kModels), test_name);

// From here on the smallest model, under limits that are small enough to try everything.
constexpr int64_t kSlots = 5, kSource = 20, kTarget = 18;
const model::Limits kSmallLimits = {
    {"slots", kSlots}, {"max_source_tokens", kSource}, {"max_target_tokens", kTarget}};

struct SmallRequest {
  std::vector<int32_t> source, prefix;
};

TEST(SmallSessionTest, EveryNumberOfRowsSourceLengthAndPromptLengthRuns) {
  auto runner = make_runner("small-b", kSmallLimits), roomy = make_runner("small-b", {{"slots", 1}});
  State state(runner);
  std::mt19937 random(7);
  std::vector<SmallRequest> requests;
  for (size_t source = 1; source <= kSource; ++source)
    for (size_t prompt = 1; prompt <= kTarget; ++prompt) {
      SmallRequest request{random_source(runner, source, random), random_source(runner, prompt, random)};
      request.prefix.pop_back();
      requests.push_back(std::move(request));
    }
  std::shuffle(requests.begin(), requests.end(), random);
  size_t next = 0;
  for (int round = 0; next < requests.size(); ++round) {
    auto count = std::min<size_t>(1 + static_cast<size_t>(round) % kSlots, requests.size() - next);
    std::vector<Row> rows;
    std::vector<int32_t> slots;
    for (size_t i = 0; i < count; ++i) {
      slots.push_back(static_cast<int32_t>((i + static_cast<size_t>(round)) % kSlots));
      rows.push_back({slots.back(), requests[next + i].source, requests[next + i].prefix, kTarget});
    }
    std::vector<Hypothesis> got(count);
    std::vector<size_t> running(count);
    for (size_t i = 0; i < count; ++i) running[i] = i, got[i].tokens = requests[next + i].prefix;
    state.poison();
    auto choices = runner.prefill(rows);
    while (!running.empty()) {
      ASSERT_TRUE(choices) << choices.error().message;
      std::vector<size_t> left;
      for (size_t i = 0; i < running.size(); ++i) {
        got[running[i]].tokens.push_back((*choices)[i].token);
        got[running[i]].scores.push_back((*choices)[i].score);
        if (!(*choices)[i].finished) left.push_back(running[i]);
      }
      running = left;
      if (running.empty()) break;
      std::vector<int32_t> now;
      for (size_t i : running) now.push_back(slots[i]);
      state.poison();
      choices = runner.decode(now);
    }
    for (size_t i = 0; i < count; ++i) {
      const auto& request = requests[next + i];
      EXPECT_TRUE(same_bits(got[i], decode_alone(roomy, request.source, kTarget, request.prefix)))
          << request.source.size() << " source tokens, prefix of " << request.prefix.size();
    }
    next += count;
  }
  EXPECT_EQ(runner.free_blocks(), runner.cache_blocks());
}

class RefusedCallTest : public testing::Test {
 protected:
  // Slot 0 decodes, slot 1 has finished, slot 2 was never started.
  void SetUp() override {
    Row rows[] = {{0, source_, {}, kTarget}, {1, source_, {}, 1}};
    auto choices = runner_.prefill(rows);
    ASSERT_TRUE(choices) << choices.error().message;
    ASSERT_FALSE((*choices)[0].finished);
    ASSERT_TRUE((*choices)[1].finished);
    before_ = state_.all_bytes();
  }

  template <class R>
  void expect_refused(const R& result, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(result) << part;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
    EXPECT_TRUE(state_.all_bytes() == before_) << "changed by a call that failed: " << result.error().message;
  }

  void expect_refused_decode(std::vector<int32_t> slots, const std::string& part) {
    expect_refused(runner_.decode(slots), ErrorCode::kUsage, part);
  }
  void expect_refused_prefill(std::vector<Row> rows, const std::string& part) {
    expect_refused(runner_.prefill(rows), ErrorCode::kUsage, part);
  }

  EncoderDecoderRunner runner_ = make_runner("small-b", kSmallLimits, 2);
  State state_{runner_};
  std::vector<int32_t> source_ = {20, 30, 40, 0};
  std::vector<std::byte> before_;
};

TEST_F(RefusedCallTest, DecodeOfSlotsThatAreNotDecoding) {
  expect_refused_decode({1}, "slot 1 is not decoding");
  expect_refused_decode({2}, "slot 2 is not decoding");
  expect_refused_decode({0, 2}, "slot 2 is not decoding");
  ASSERT_TRUE(runner_.release(std::vector<int32_t>{0}));
  before_ = state_.all_bytes();
  expect_refused_decode({0}, "slot 0 is not decoding");
}

TEST_F(RefusedCallTest, SlotsOutOfRangeOrTwice) {
  expect_refused_decode({5}, "slots[0] is 5, expected 0 to 4");
  expect_refused_decode({0, -1}, "slots[1] is -1");
  expect_refused_decode({0, 0}, "twice");
  expect_refused_decode({}, "rows is 0, expected 1 to 5");
  expect_refused_decode({0, 1, 2, 3, 4, 5}, "rows is 6, expected 1 to 5");
  expect_refused_prefill({{5, source_, {}, 5}}, "slots[0] is 5");
  expect_refused_prefill({{2, source_, {}, 5}, {2, source_, {}, 5}}, "twice");
  expect_refused_prefill({}, "");
  expect_refused(runner_.release(std::vector<int32_t>{5}), ErrorCode::kUsage, "slots[0] is 5");
  expect_refused(runner_.release(std::vector<int32_t>{1, 1}), ErrorCode::kUsage, "twice");
}

TEST_F(RefusedCallTest, SourcesPromptsAndLimitsBeyondTheSession) {
  std::vector<int32_t> long_source(kSource + 1, 20), long_prefix(kTarget, 20), prefix = {7, 8, 9};
  expect_refused_prefill({{2, long_source, {}, 5}}, "source_lengths[0] is 21, expected 1 to 20");
  expect_refused_prefill({{2, {}, {}, 5}}, "");
  expect_refused_prefill({{2, source_, {}, 5}, {3, {}, {}, 5}}, "source_lengths[1] is 0");
  expect_refused_prefill({{2, source_, long_prefix, kTarget}}, "prompt_lengths[0] is 19");
  expect_refused_prefill({{2, source_, prefix, 3}}, "4 prompt tokens and a limit of 3");
  expect_refused_prefill({{3, source_, {}, 5}, {2, source_, prefix, 3}}, "4 prompt tokens and a limit of 3");
  expect_refused_prefill({{2, source_, {}, 0}}, "target_limits[0] is 0");
  expect_refused_prefill({{2, source_, {}, kTarget + 1}}, "target_limits[0] is 19");
}

TEST_F(RefusedCallTest, TokensOutsideTheVocabulary) {
  std::vector<int32_t> beyond = {20, 401, 0}, below = {-1, 0};
  expect_refused_prefill({{2, beyond, {}, 5}}, "source_tokens[1] is 401");
  expect_refused_prefill({{2, below, {}, 5}}, "source_tokens[0] is -1");
  expect_refused_prefill({{2, source_, std::span(beyond).first(2), 5}}, "prompt_tokens[2] is 401");
}

TEST_F(RefusedCallTest, WhatIsDecodingGoesOnAsIfNothingHadBeenRefused) {
  auto other = make_runner("small-b", kSmallLimits);
  auto expected = decode_alone(other, source_, kTarget);
  std::vector<int32_t> got;
  for (int32_t slot = 0; state_.status(0) != 0;) {
    before_ = state_.all_bytes();
    expect_refused_decode({0, 1}, "slot 1");
    expect_refused_prefill({{0, source_, {}, kTarget + 1}}, "target_limits");
    auto choices = runner_.decode({&slot, 1});
    ASSERT_TRUE(choices) << choices.error().message;
    got.push_back((*choices)[0].token);
  }
  EXPECT_EQ(got, std::vector<int32_t>(expected.tokens.begin() + 1, expected.tokens.end()));
}

// Four blocks: two for the largest source, two for the longest target.
TEST(DryPoolTest, CallsThatFindTooFewBlocksChangeNothingAndSucceedLater) {
  auto source = longest_target_source("small-b");
  source.resize(15);
  source.push_back(0);
  auto runner = make_runner(
      "small-b", {{"slots", 4}, {"max_source_tokens", 32}, {"max_target_tokens", 32}, {"cache_blocks", 4}});
  auto roomy = make_runner("small-b", {{"slots", 1}});
  auto expected = decode_alone(roomy, source, 32);
  ASSERT_GT(expected.tokens.size(), 18u);
  State state(runner);
  Row rows[] = {{0, source, {}, 32}, {1, source, {}, 32}};
  ASSERT_TRUE(runner.prefill(rows));
  EXPECT_EQ(runner.free_blocks(), 0);
  auto expect_exhausted = [&](const auto& result, const std::vector<std::byte>& before) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kExhausted) << result.error().message;
    EXPECT_TRUE(state.all_bytes() == before) << "a call that failed changed the state";
  };
  Row third{2, source, {}, 32};
  auto before = state.all_bytes();
  expect_exhausted(runner.prefill({&third, 1}), before);
  std::vector<int32_t> both = {0, 1};
  for (int i = 1; i < 16; ++i) ASSERT_TRUE(runner.decode(both)) << i;
  before = state.all_bytes();
  expect_exhausted(runner.decode(both), before);
  expect_exhausted(runner.decode(std::vector<int32_t>{0}), before);
  ASSERT_TRUE(runner.release(std::vector<int32_t>{1}));
  EXPECT_EQ(runner.free_blocks(), 2);
  auto choices = runner.decode(std::vector<int32_t>{0});
  ASSERT_TRUE(choices) << choices.error().message;
  EXPECT_EQ((*choices)[0].token, expected.tokens[16]);
  // A slot that is reset gives its own blocks to the new source.
  EXPECT_EQ(runner.free_blocks(), 1);
  std::vector<int32_t> prefix(expected.tokens.begin(), expected.tokens.begin() + 17);
  Row again{0, source, prefix, 32};
  choices = runner.prefill({&again, 1});
  ASSERT_TRUE(choices) << choices.error().message;
  EXPECT_EQ((*choices)[0].token, expected.tokens[17]);
}

}  // namespace
}  // namespace duet::runner
