// Same text, same answer: tokens and score bits of a sentence do not depend on what is decoded beside it, in
// which order, in how many slots and threads, in how small a cache, or on which instruction set.
#include "tests/runner/decoding.h"

namespace duet::runner {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kSlowdown = 4;  // sanitizers look at the same code paths on fewer sentences
#else
constexpr size_t kSlowdown = 1;
#endif

struct Sources {
  std::vector<std::vector<int32_t>> ids, prefixes;
  std::vector<Hypothesis> alone;  // of each: one slot, one thread, one sentence at a time
  int32_t target_limit = 0;
  int64_t longest = 0;
};

const Sources& sources_of(const std::string& model) {
  static std::map<std::string, Sources> made;
  Sources& sources = made[model];
  if (!sources.ids.empty()) return sources;
  bool large = model == "tatoeba-en-fr";
  auto sentences = golden::sentences(model);
  for (size_t i = 0; i < sentences.size(); i += large ? 12 : 4 * kSlowdown)
    sources.ids.push_back(sentences[i].source_ids);
  sources.target_limit = large ? 64 : golden::target_limit(model);
  auto runner = make_runner(model, {{"slots", 1}});
  std::mt19937 random(1);
  sources.prefixes.resize(sources.ids.size());
  for (size_t i = 0; i < sources.ids.size(); ++i) {
    sources.longest = std::max(sources.longest, static_cast<int64_t>(sources.ids[i].size()));
    sources.alone.push_back(decode_alone(runner, sources.ids[i], sources.target_limit));
  }
  return sources;
}

Sources longer_than_foreseen(const std::string& model) {
  Sources sources;
  sources.target_limit = 48;
  auto runner = make_runner(model, {{"slots", 1}});
  for (Request& request : requests_longer_than_foreseen(runner)) {
    sources.alone.push_back(decode_alone(runner, request.source, request.target_limit, request.prefix));
    sources.ids.push_back(std::move(request.source));
    sources.prefixes.push_back(std::move(request.prefix));
  }
  return sources;
}

struct Setting {
  model::Limits limits;
  int threads = 1;
  uint32_t seed = 0;  // of the order of submission and of the moments; 0: all at once, as they stand
  size_t sentences = SIZE_MAX;
};

// Runs the sources under `setting` and compares; returns what the scheduler did.
SchedulerCounts expect_alone_answers(const std::string& model, const Sources& sources,
                                     const Setting& setting) {
  auto runner = make_runner(model, setting.limits, setting.threads);
  Scheduler scheduler(runner);
  std::vector<size_t> order;
  for (size_t i = 0; i < std::min(setting.sentences, sources.ids.size()); ++i) order.push_back(i);
  std::mt19937 random(setting.seed);
  if (setting.seed) std::shuffle(order.begin(), order.end(), random);
  size_t submitted = 0, finished = 0;
  while (submitted < order.size() || !scheduler.idle()) {
    size_t now = setting.seed ? random() % 4 : order.size();
    if (setting.seed && random() % 8 == 0) now = 20;
    for (; now > 0 && submitted < order.size(); --now, ++submitted) {
      size_t i = order[submitted];
      auto status = scheduler.submit({i, sources.ids[i], sources.prefixes[i], sources.target_limit});
      if (!status) ADD_FAILURE() << status.error().message;
    }
    if (scheduler.idle()) continue;
    auto status = scheduler.step([&](uint64_t id, Hypothesis hypothesis) -> Status {
      ++finished;
      EXPECT_TRUE(same_bits(hypothesis, sources.alone[id]))
          << model << " source " << id << " seed " << setting.seed;
      return {};
    });
    if (!status) {
      ADD_FAILURE() << status.error().message;
      break;
    }
  }
  EXPECT_EQ(finished, order.size());
  return scheduler.counts();
}

SchedulerCounts expect_alone_answers(const std::string& model, const Setting& setting) {
  return expect_alone_answers(model, sources_of(model), setting);
}

class InvarianceTest : public testing::TestWithParam<std::string> {};

TEST_P(InvarianceTest, SlotsAndThreadsDoNotMatter) {
  std::vector<std::pair<int64_t, int>> settings = {{1, 1}, {2, 1}, {3, 1},  {7, 1}, {16, 1}, {64, 1},
                                                   {1, 2}, {3, 2}, {64, 2}, {7, 4}, {16, 4}};
  for (auto [slots, threads] : settings) {
    SCOPED_TRACE(testing::Message() << slots << " slots, " << threads << " threads");
    expect_alone_answers(GetParam(), {{{"slots", slots}}, threads});
  }
}

TEST_P(InvarianceTest, OrderAndMomentOfSubmissionDoNotMatter) {
  for (uint32_t seed = 1; seed <= 20 / kSlowdown; ++seed)
    expect_alone_answers(GetParam(), {{{"slots", 1 + (seed * 7) % 24}}, seed % 5 == 0 ? 2 : 1, seed});
}

TEST_P(InvarianceTest, BatchTokensDoNotMatter) {
  int64_t least = std::max<int64_t>(sources_of(GetParam()).longest, sources_of(GetParam()).target_limit);
  auto small = expect_alone_answers(
      GetParam(),
      {{{"slots", 32}, {"max_source_tokens", least}, {"max_target_tokens", least}, {"batch_tokens", least}}});
  auto large = expect_alone_answers(GetParam(), {{{"slots", 32}, {"batch_tokens", 4096}}, 2});
  EXPECT_GT(small.prefill_calls, large.prefill_calls) << "the small batches were no smaller";
}

TEST_P(InvarianceTest, RestartsInATinyCacheDoNotMatter) {
  const Sources& sources = sources_of(GetParam());
  model::Limits tiny = {{"slots", 16},
                        {"max_source_tokens", sources.longest},
                        {"max_target_tokens", sources.target_limit},
                        {"cache_blocks", (sources.longest + 15) / 16 + (sources.target_limit + 15) / 16}};
  for (uint32_t seed = 0; seed < 4; ++seed)
    expect_alone_answers(GetParam(), sources, {tiny, seed == 3 ? 2 : 1, seed});

  Sources hard = longer_than_foreseen(GetParam());
  for (int64_t cache_blocks : {4, 7, 10, 13}) {
    model::Limits limits = {{"slots", 8},
                            {"max_source_tokens", 4},
                            {"max_target_tokens", 48},
                            {"batch_tokens", 400},
                            {"cache_blocks", cache_blocks}};
    uint64_t restarts = 0;
    for (uint32_t seed = 0; seed < 3; ++seed)
      restarts += expect_alone_answers(GetParam(), hard, {limits, seed == 2 ? 2 : 1, seed}).restarts;
    EXPECT_EQ(restarts > 0, cache_blocks > 4) << cache_blocks << " blocks, " << restarts << " restarts";
  }
}

TEST_P(InvarianceTest, InstructionSetsDoNotMatter) {
  sources_of(GetParam());  // with the kernels in use
  KernelsInUse before;
  for (auto* table = model::kernels::available_kernels(); *table; ++table) {
    SCOPED_TRACE((*table)->name);
    model::kernels::force_kernels(**table);
    Setting setting{{{"slots", 5}}, 2, 3};
    // Without fused instructions the portable kernels are some forty times slower.
    if (table == model::kernels::available_kernels())
      setting.sentences = GetParam() == "tatoeba-en-fr" ? 2 : 10;
    expect_alone_answers(GetParam(), setting);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InvarianceTest, testing::ValuesIn(golden::kModels), test_name);

}  // namespace
}  // namespace duet::runner
