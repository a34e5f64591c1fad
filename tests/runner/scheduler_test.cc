// The scheduler's contract: what it refuses, when it hands over, what it says on the way, and that small
// pools only cost time. That results do not depend on scheduling is invariance_test's matter.
#include <set>

#include "tests/runner/decoding.h"

namespace duet::runner {
namespace {

constexpr char kModel[] = "small-b";
constexpr int32_t kLimit = 48;

// Everything that a scheduler hands over, by id.
std::map<uint64_t, Hypothesis> run_all(Scheduler& scheduler) {
  std::map<uint64_t, Hypothesis> results;
  while (!scheduler.idle()) {
    auto status = scheduler.step([&](uint64_t id, Hypothesis hypothesis) -> Status {
      EXPECT_TRUE(results.emplace(id, std::move(hypothesis)).second) << id << " came twice";
      return {};
    });
    if (!status) {
      ADD_FAILURE() << status.error().message;
      break;
    }
  }
  return results;
}

void expect_refused(Scheduler& scheduler, Request request, const std::string& part) {
  auto waiting = scheduler.waiting();
  auto status = scheduler.submit(std::move(request));
  ASSERT_FALSE(status) << part;
  EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  EXPECT_EQ(scheduler.waiting(), waiting);
}

std::vector<int32_t> source_of(size_t sentence) { return golden::sentences(kModel)[sentence].source_ids; }

TEST(SchedulerTest, RequestsBeyondTheLimitsAreRefusedByTheLimitsName) {
  auto runner = make_runner(kModel, {{"slots", 2}, {"max_source_tokens", 12}, {"max_target_tokens", 10}});
  Scheduler scheduler(runner);
  std::vector<int32_t> source = {20, 30, 0};
  expect_refused(scheduler, {1, std::vector<int32_t>(13, 20), {}, 0},
                 "13 source tokens, expected 1 to 12 (--max-source-tokens)");
  expect_refused(scheduler, {1, {}, {}, 0}, "0 source tokens, expected 1 to 12 (--max-source-tokens)");
  expect_refused(scheduler, {1, source, {}, 11}, "11 target tokens, expected 1 to 10 (--max-target-tokens)");
  expect_refused(scheduler, {1, source, {}, -1}, "-1 target tokens, expected 1 to 10 (--max-target-tokens)");
  expect_refused(scheduler, {1, source, {5, 6, 7}, 3},
                 "a prefix of 3 tokens leaves no room below the limit of 3");
  expect_refused(scheduler, {1, source, std::vector<int32_t>(10, 5), 0}, "a prefix of 10 tokens");
  ASSERT_TRUE(scheduler.submit({1, std::vector<int32_t>(12, 20), {}, 10}));
  ASSERT_TRUE(scheduler.submit({2, source, std::vector<int32_t>(9, 5), 0}));
  auto results = run_all(scheduler);
  EXPECT_EQ(results.size(), 2u);
  EXPECT_EQ(results[2].tokens.size(), 10u);
}

TEST(SchedulerTest, AnIdleSchedulerHasNothingAndAStepBringsItOn) {
  auto runner = make_runner(kModel, {{"slots", 2}});
  Scheduler scheduler(runner);
  EXPECT_TRUE(scheduler.idle());
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(scheduler.submit({i, source_of(i), {}, kLimit}));
  EXPECT_FALSE(scheduler.idle());
  EXPECT_EQ(scheduler.waiting(), 3u);
  EXPECT_EQ(scheduler.active(), 0u);
  ASSERT_TRUE(scheduler.step([](uint64_t, Hypothesis) -> Status { return {}; }));
  EXPECT_EQ(scheduler.waiting(), 1u);
  EXPECT_EQ(scheduler.active(), 2u);
  EXPECT_EQ(run_all(scheduler).size(), 3u);
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(scheduler.active(), 0u);
  EXPECT_EQ(runner.free_blocks(), runner.cache_blocks());
  // It can be used again.
  ASSERT_TRUE(scheduler.submit({9, source_of(9), {}, kLimit}));
  EXPECT_EQ(run_all(scheduler).size(), 1u);
}

TEST(SchedulerTest, RequestsOfOneTokenFinishInTheirPrefill) {
  auto runner = make_runner(kModel, {{"slots", 3}});
  Scheduler scheduler(runner);
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(scheduler.submit({i, source_of(i), {}, 1}));
  auto results = run_all(scheduler);
  ASSERT_EQ(results.size(), 10u);
  for (const auto& [id, hypothesis] : results)
    EXPECT_EQ(hypothesis.tokens, std::vector<int32_t>{runner.end_token()});
  EXPECT_EQ(scheduler.counts().decode_calls, 0u);
}

TEST(SchedulerTest, RequestsLeaveWhenTheyHaveFinishedWhateverTheirOrder) {
  auto runner = make_runner(kModel, {{"slots", 4}});
  Scheduler scheduler(runner);
  std::map<uint64_t, int32_t> limits = {{0, 40}, {1, 5}, {2, 20}, {3, 5}, {4, 1}, {5, 30}};
  std::vector<int32_t> source;  // one that goes on to any limit
  for (const auto& sentence : golden::sentences(kModel))
    if (sentence.cut_at_limit) source = sentence.source_ids;
  for (auto [id, limit] : limits) ASSERT_TRUE(scheduler.submit({id, source, {}, limit}));
  std::vector<uint64_t> order;
  while (!scheduler.idle())
    ASSERT_TRUE(scheduler.step([&](uint64_t id, Hypothesis hypothesis) -> Status {
      EXPECT_EQ(hypothesis.tokens.size(), static_cast<size_t>(limits[id]));
      EXPECT_EQ(hypothesis.scores.size(), hypothesis.tokens.size());
      EXPECT_TRUE(hypothesis.cut);
      order.push_back(id);
      return {};
    }));
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 3, 4, 2, 5, 0}));
}

TEST(SchedulerTest, OnlyRequestsThatReachedTheirLimitAreCut) {
  auto sentences = golden::sentences(kModel);
  auto runner = make_runner(kModel, {{"slots", 8}});
  Scheduler scheduler(runner);
  for (uint64_t i = 0; i < sentences.size(); ++i) {
    auto shorter = static_cast<int32_t>(sentences[i].target_ids.size()) - 1;
    bool free = i % 2 == 0 || shorter < 1;
    ASSERT_TRUE(scheduler.submit({i, sentences[i].source_ids, {}, free ? 60 : shorter}));
  }
  size_t cut = 0;
  for (const auto& [id, hypothesis] : run_all(scheduler)) {
    bool free = id % 2 == 0 || sentences[id].target_ids.size() < 2;
    if (free && !sentences[id].cut_at_limit) {
      EXPECT_FALSE(hypothesis.cut) << id;
    } else if (!free) {
      EXPECT_TRUE(hypothesis.cut) << id;
      EXPECT_EQ(hypothesis.tokens.size(), sentences[id].target_ids.size() - 1);
    }
    EXPECT_EQ(hypothesis.tokens.back(), runner.end_token());
    cut += hypothesis.cut;
  }
  EXPECT_GT(cut, sentences.size() / 3);
}

TEST(SchedulerTest, ProgressTellsEveryTokenOnceAndInOrder) {
  auto runner = make_runner(kModel, {{"slots", 3}});
  Scheduler scheduler(runner);
  std::vector<int32_t> prefix = {7, 8};
  for (uint64_t i = 0; i < 12; ++i)
    ASSERT_TRUE(scheduler.submit({i, source_of(i), i % 3 == 0 ? prefix : std::vector<int32_t>{}, kLimit}));
  std::map<uint64_t, std::vector<int32_t>> told;
  std::map<uint64_t, Hypothesis> results;
  std::set<uint64_t> ended;
  while (!scheduler.idle()) {
    ASSERT_TRUE(scheduler.step(
        [&](uint64_t id, Hypothesis hypothesis) -> Status {
          results[id] = std::move(hypothesis);
          return {};
        },
        [&](std::span<const Scheduler::Progress> progress) -> Status {
          std::set<int32_t> slots;
          for (const auto& entry : progress) {
            EXPECT_TRUE(slots.insert(entry.slot).second) << "slot " << entry.slot << " twice in one step";
            EXPECT_FALSE(ended.count(entry.id)) << "told after the end";
            told[entry.id].push_back(entry.token);
            if (entry.finished) ended.insert(entry.id);
          }
          return {};
        }));
  }
  ASSERT_EQ(scheduler.counts().restarts, 0u);
  ASSERT_EQ(results.size(), 12u);
  EXPECT_EQ(ended.size(), 12u);
  uint64_t tokens = 0;
  for (auto& [id, hypothesis] : results) {
    size_t begun = id % 3 == 0 ? prefix.size() : 0;
    EXPECT_EQ(told[id], std::vector<int32_t>(hypothesis.tokens.begin() + static_cast<std::ptrdiff_t>(begun),
                                             hypothesis.tokens.end()));
    EXPECT_EQ(hypothesis.scores.size(), told[id].size());
    tokens += told[id].size();
  }
  EXPECT_EQ(scheduler.counts().target_tokens, tokens);
}

TEST(SchedulerTest, APrefixIsTheBeginningOfTheResult) {
  auto runner = make_runner(kModel, {{"slots", 4}});
  auto alone = decode_alone(runner, source_of(3), kLimit);
  ASSERT_GT(alone.tokens.size(), 4u);
  Scheduler scheduler(runner);
  for (size_t n = 0; n < alone.tokens.size(); ++n)
    ASSERT_TRUE(
        scheduler.submit({n,
                          source_of(3),
                          {alone.tokens.begin(), alone.tokens.begin() + static_cast<std::ptrdiff_t>(n)},
                          kLimit}));
  for (const auto& [n, hypothesis] : run_all(scheduler)) {
    EXPECT_EQ(hypothesis.tokens, alone.tokens) << "a prefix of " << n;
    EXPECT_TRUE(same_bits(hypothesis.scores, std::span(alone.scores).subspan(n))) << "a prefix of " << n;
  }
}

TEST(SchedulerTest, APoolOfOneLargestRequestFinishesEverything) {
  constexpr int64_t kSource = 40, kTarget = 48;
  auto runner = make_runner(kModel, {{"slots", 16},
                                     {"max_source_tokens", kSource},
                                     {"max_target_tokens", kTarget},
                                     {"cache_blocks", 3 + 3}});
  auto roomy = make_runner(kModel, {{"slots", 1}});
  Scheduler scheduler(runner);
  std::mt19937 random(3);
  std::map<uint64_t, Request> requests;
  for (uint64_t id = 0; id < 60; ++id) {
    Request request{id, random_source(runner, id % 4 == 0 ? kSource : 1 + random() % kSource, random), {}, 0};
    // Some of the largest size in every respect.
    if (id % 3 == 0) request.prefix.assign(id % 2 ? kTarget - 1 : 31, 9);
    requests[id] = request;
    ASSERT_TRUE(scheduler.submit(request));
  }
  auto results = run_all(scheduler);
  ASSERT_EQ(results.size(), requests.size());
  for (const auto& [id, request] : requests)
    EXPECT_TRUE(same_bits(results[id], decode_alone(roomy, request.source, kTarget, request.prefix))) << id;
  EXPECT_EQ(runner.free_blocks(), runner.cache_blocks());
}

const model::Limits kTwoAtOnce = {{"slots", 8},
                                  {"max_source_tokens", 4},
                                  {"max_target_tokens", 48},
                                  {"batch_tokens", 400},
                                  {"cache_blocks", 7}};

TEST(SchedulerTest, RestartedRequestsComeOnceAndWhole) {
  auto runner = make_runner(kModel, kTwoAtOnce), roomy = make_runner(kModel, {{"slots", 1}});
  Scheduler scheduler(runner);
  auto requests = requests_longer_than_foreseen(roomy);
  for (const Request& request : requests) ASSERT_TRUE(scheduler.submit(request));
  auto results = run_all(scheduler);
  ASSERT_EQ(results.size(), requests.size());
  for (const Request& request : requests)
    EXPECT_TRUE(same_bits(results[request.id], decode_alone(roomy, request.source, 48, request.prefix)))
        << request.id;
  EXPECT_GT(scheduler.counts().restarts, 0u);
}

TEST(SchedulerTest, AnErrorOfACallbackEndsTheStep) {
  auto runner = make_runner(kModel, {{"slots", 4}});
  for (bool in_finished : {true, false}) {
    Scheduler scheduler(runner);
    for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(scheduler.submit({i, source_of(i), {}, 3}));
    int calls = 0;
    auto fail = [&]() -> Status {
      return ++calls == 2 ? Status(failure(ErrorCode::kInterrupted, "enough")) : Status();
    };
    Status status;
    while (status && !scheduler.idle())
      status = scheduler.step(
          [&](uint64_t, Hypothesis) -> Status { return in_finished ? fail() : Status(); },
          [&](std::span<const Scheduler::Progress>) -> Status { return in_finished ? Status() : fail(); });
    ASSERT_FALSE(status) << in_finished;
    EXPECT_EQ(status.error().code, ErrorCode::kInterrupted);
    EXPECT_EQ(status.error().message, "enough");
    EXPECT_EQ(calls, 2);
  }
}

TEST(SchedulerTest, ANewSchedulerEndsWhatAnInterruptedOneLeft) {
  auto runner = make_runner(kModel, kTwoAtOnce), roomy = make_runner(kModel, {{"slots", 1}});
  auto requests = requests_longer_than_foreseen(roomy);
  {
    Scheduler interrupted(runner);
    for (const Request& request : requests) ASSERT_TRUE(interrupted.submit(request));
    auto status = interrupted.step([](uint64_t, Hypothesis) -> Status { return {}; },
                                   [](std::span<const Scheduler::Progress>) -> Status {
                                     return failure(ErrorCode::kInterrupted, "enough");
                                   });
    ASSERT_FALSE(status);
    ASSERT_LT(runner.free_blocks(), runner.cache_blocks());
  }
  Scheduler scheduler(runner);
  EXPECT_EQ(runner.free_blocks(), runner.cache_blocks());
  for (const Request& request : requests) ASSERT_TRUE(scheduler.submit(request));
  EXPECT_EQ(run_all(scheduler).size(), requests.size());
}

// A source that the program refuses (its tokenizer never makes one) is an error, not a crash.
TEST(SchedulerTest, AnErrorOfTheRunnerEndsTheStep) {
  auto runner = make_runner(kModel, {{"slots", 4}});
  Scheduler scheduler(runner);
  ASSERT_TRUE(scheduler.submit({1, {20, 100000, 0}, {}, 3}));
  auto status = scheduler.step([](uint64_t, Hypothesis) -> Status { return {}; });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  EXPECT_NE(status.error().message.find("source_tokens[1] is 100000"), std::string::npos)
      << status.error().message;
}

}  // namespace
}  // namespace duet::runner
