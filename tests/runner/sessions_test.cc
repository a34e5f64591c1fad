// Many sessions over one program at once: each gives the answers of a session that has the machine for
// itself.
#include <atomic>
#include <thread>

#include "tests/runner/decoding.h"

namespace duet::runner {
namespace {

constexpr size_t kSentences = 12;
constexpr int32_t kLimit = 32;

std::vector<Hypothesis> decode_all(EncoderDecoderRunner& runner,
                                   const std::vector<golden::Sentence>& sentences) {
  std::vector<Hypothesis> results(kSentences);
  Scheduler scheduler(runner);
  for (size_t i = 0; i < kSentences; ++i)
    EXPECT_TRUE(scheduler.submit({i, sentences[i * 7].source_ids, {}, kLimit}));
  while (!scheduler.idle()) {
    auto status = scheduler.step([&](uint64_t id, Hypothesis hypothesis) -> Status {
      results[id] = std::move(hypothesis);
      return {};
    });
    if (!status) {
      ADD_FAILURE() << status.error().message;
      break;
    }
  }
  return results;
}

class SessionsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    program_ = golden::program(GetParam());  // golden::program is for one thread at a time
    sentences_ = golden::sentences(GetParam());
    expected_ = decode_all(*std::make_unique<EncoderDecoderRunner>(make_session(1, 1)), sentences_);
  }

  EncoderDecoderRunner make_session(int64_t slots, int threads) const {
    model::SessionOptions options;
    options.limits = {{"slots", slots}};
    options.threads = threads;
    auto runner = EncoderDecoderRunner::create(program_, options);
    EXPECT_TRUE(runner) << runner.error().message;
    return std::move(*runner);
  }

  void expect_same(const std::vector<Hypothesis>& results) const {
    for (size_t i = 0; i < kSentences; ++i)
      EXPECT_TRUE(same_bits(results[i], expected_[i])) << "sentence " << i;
  }

  std::shared_ptr<const model::Program> program_;
  std::vector<golden::Sentence> sentences_;
  std::vector<Hypothesis> expected_;
};

TEST_P(SessionsTest, SessionsOfOneThreadEach) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i)
    threads.emplace_back([this, i] {
      auto runner = make_session(1 + 3 * i, 1);
      for (int round = 0; round < 2; ++round) expect_same(decode_all(runner, sentences_));
    });
  for (auto& thread : threads) thread.join();
}

TEST_P(SessionsTest, SessionsOfTwoThreadsEach) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 3; ++i)
    threads.emplace_back([this, i] {
      auto runner = make_session(2 + 3 * i, 2);
      expect_same(decode_all(runner, sentences_));
    });
  for (auto& thread : threads) thread.join();
}

TEST_P(SessionsTest, SessionsMadeAndDestroyedWhileOthersRun) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      auto runner = make_session(4, 1 + i);
      for (int round = 0; round < 3; ++round) expect_same(decode_all(runner, sentences_));
      done = true;
    });
  threads.emplace_back([&] {
    for (int i = 0; !done || i < 4; ++i) {
      auto runner = make_session(3, 1 + i % 3);
      EncoderDecoderRunner::Row row{1, sentences_[0].source_ids, {}, kLimit};
      if (i % 4 == 0) continue;  // destroyed unused; the others in the middle of a sentence
      EXPECT_TRUE(runner.prefill({&row, 1}));
    }
  });
  for (auto& thread : threads) thread.join();
}

TEST_P(SessionsTest, TheLastSessionKeepsTheProgramAlive) {
  auto path = (golden::scratch_directory() / ("alive-" + GetParam() + ".duet")).string();
  std::filesystem::copy_file(program_->path(), path, std::filesystem::copy_options::overwrite_existing);
  auto own = model::Program::open(path);
  ASSERT_TRUE(own) << own.error().message;
  program_ = std::move(*own);
  std::filesystem::remove(path);
  auto first = std::make_unique<EncoderDecoderRunner>(make_session(2, 2));
  auto second = make_session(2, 1);
  program_.reset();
  expect_same(decode_all(*first, sentences_));
  first.reset();
  expect_same(decode_all(second, sentences_));
}

// Sessions may be handed from thread to thread, one caller at a time.
TEST_P(SessionsTest, ASessionMayMoveToAnotherThread) {
  auto runner = make_session(4, 2);
  for (int i = 0; i < 3; ++i) std::thread([&] { expect_same(decode_all(runner, sentences_)); }).join();
}

INSTANTIATE_TEST_SUITE_P(Models, SessionsTest, testing::Values("small-a", "small-b", "small-c"), test_name);

}  // namespace
}  // namespace duet::runner
