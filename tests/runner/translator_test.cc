// Translator: text in, text out, from a program that many may share.
#include "runner/translator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "memory/log.h"
#include "tests/runner/golden.h"

namespace duet::runner {
namespace {

const bool kQuiet = (memory::set_log_level(memory::LogLevel::kOff), true);

std::shared_ptr<const model::Program> shipped() { return golden::program("tatoeba-en-fr"); }

Translator make(Split split = Split::kLine, model::Limits limits = {}, int threads = 1) {
  auto translator = Translator::create(shipped(), {{std::move(limits), threads}, split});
  if (!translator) {
    ADD_FAILURE() << translator.error().message;
    std::abort();
  }
  return std::move(*translator);
}

std::vector<Line> run(Translator& translator, const std::vector<std::string>& lines) {
  std::vector<Line> done;
  for (const std::string& line : lines) EXPECT_TRUE(translator.submit(line));
  while (!translator.idle())
    if (Status status = translator.step([&](Line&& line) -> Status {
          done.push_back(std::move(line));
          return {};
        });
        !status) {
      ADD_FAILURE() << status.error().message;
      break;
    }
  return done;
}

TEST(Translator, TranslatesTextOfManyLinesAgainAndAgain) {
  Translator translator = make();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(*translator.translate("Hello.\n\nHow are you?\r\n"), "Bonjour.\n\nComment vas-tu ?\r\n");
    EXPECT_EQ(*translator.translate("Hello."), "Bonjour.");
    EXPECT_EQ(*translator.translate(""), "");
    EXPECT_EQ(*translator.translate("\n"), "\n");
  }
  EXPECT_TRUE(translator.idle());
}

TEST(Translator, SaysWhenTheModelGaveNoWords) {
  Translator translator = make();
  auto done = run(translator, {"last", "Hello."});
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].translation, "");
  ASSERT_EQ(done[0].warnings.size(), 1u);
  EXPECT_EQ(done[0].warnings[0].kind, Warning::Kind::kEmpty);
  EXPECT_TRUE(done[1].warnings.empty());
}

TEST(Translator, HandsLinesOverInTheOrderOfTheInput) {
  Translator translator = make(Split::kSentence, {{"slots", 2}});
  std::vector<std::string> lines = {"", "I do not know what to say about all of this. It rains.", "Hello.",
                                    " ", "Hello. Hello."};
  auto done = run(translator, lines);
  ASSERT_EQ(done.size(), lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(done[i].number, i + 1);
    EXPECT_EQ(done[i].source, lines[i]);
    std::string sources;
    for (const Segment& segment : done[i].segments) sources += segment.source;
    EXPECT_EQ(sources, lines[i]);
  }
  EXPECT_EQ(done[4].translation, "Bonjour. Bonjour.");
  EXPECT_EQ(translator.bytes_in_flight(), 0u);
  EXPECT_EQ(translator.segments_in_flight(), 0u);
}

TEST(Translator, GoesOnAfterALineThatFails) {
  Translator translator = make(Split::kLine, {{"max_source_tokens", 2}});
  ASSERT_TRUE(translator.submit(""));
  Status status = translator.submit(">>fra<< Hello");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUsage);
  EXPECT_TRUE(status.error().message.starts_with("line 2: ")) << status.error().message;
  auto done = run(translator, {" "});
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[1].number, 3u);
  EXPECT_FALSE(translator.translate("\n>>fra<< Hello"));
  EXPECT_TRUE(translator.idle());
  EXPECT_EQ(*translator.translate("\n "), "\n ");
  EXPECT_EQ(translator.bytes_in_flight(), 0u);
}

TEST(Translator, RefusesLimitsThatHoldNoText) {
  auto translator = Translator::create(shipped(), {{{{"max_source_tokens", 1}}, 1}, Split::kLine});
  ASSERT_FALSE(translator);
  EXPECT_EQ(translator.error().code, ErrorCode::kUsage);
  EXPECT_NE(translator.error().message.find("max_source_tokens is 1"), std::string::npos);
}

TEST(Translator, ShowsBeginningsOfTheTranslationEvenWhenRequestsAreRestarted) {
  // Hardly more blocks of cache than one request needs: the youngest are restarted.
  auto lines =
      std::vector<std::string>(6, "under_score and <tag> &amp; entity");  // its translation has no end
  Translator alone = make(Split::kLine, {{"max_target_tokens", 96}});
  const std::string expected = run(alone, lines).at(0).translation;
  Translator translator = make(Split::kLine, {{"slots", 6},
                                              {"max_source_tokens", 32},
                                              {"max_target_tokens", 96},
                                              {"batch_tokens", 192},
                                              {"cache_blocks", 12}});
  translator.stream();
  for (const auto& line : lines) ASSERT_TRUE(translator.submit(line));
  std::string shown;
  size_t done = 0, grown = 0;
  while (!translator.idle()) {
    ASSERT_TRUE(translator.step([&](Line&& line) -> Status {
      EXPECT_EQ(line.translation, expected);
      EXPECT_TRUE(line.translation.starts_with(shown)) << shown;
      shown.clear();
      ++done;
      return {};
    }));
    auto text = translator.text_so_far();
    ASSERT_TRUE(text);
    EXPECT_TRUE(expected.starts_with(*text)) << *text;
    // A restarted request says the same again: less than was shown, but nothing else.
    grown += text->size() > shown.size();
    if (text->size() > shown.size()) shown = *text;
  }
  EXPECT_EQ(done, lines.size());
  EXPECT_GT(grown, 10u);
  EXPECT_GT(translator.counts().restarts, 0u);
}

TEST(Translator, ManySessionsInManyThreadsShareAProgram) {
  const std::string text = "Hello.\nHow are you?\nI do not know what to say.\n";
  const std::string expected = *make().translate(text);
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i)
    threads.emplace_back([&, i] {
      Translator translator =
          make(Split::kLine, {{"slots", static_cast<int64_t>(i) + 1}}, static_cast<int>(i % 2) + 1);
      for (int turn = 0; turn < 3; ++turn) {
        auto result = translator.translate(text);
        results[i] = result ? *result : result.error().message;
        if (results[i] != expected) return;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) EXPECT_EQ(result, expected);
}

TEST(Translator, CountsItsTimes) {
  Translator translator = make();
  translator.measure();
  ASSERT_TRUE(translator.translate("Hello.\nHow are you?"));
  auto times = translator.times();
  for (double seconds : {times.load_seconds, times.tokenize_seconds, times.encode_seconds,
                         times.prefill_seconds, times.decode_seconds})
    EXPECT_GT(seconds, 0);
}

TEST(Translator, RefusesAProgramThatDoesNotTranslate) {
  auto missing = Translator::open((golden::scratch_directory() / "none.duet").string(), {});
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("none.duet"), std::string::npos);
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "I do not know what to say about all of this. It rains.\n";
  return text;
}

TEST(Translator, IsCancelledFromAnotherThreadAndThenTranslatesAgain) {
  Translator translator = make(Split::kSentence, {}, 2);
  std::atomic<bool> started = false;
  translator.observe_tokens([&](std::span<const Scheduler::Progress>) -> Status {
    started = true;
    started.notify_all();
    return {};
  });
  std::thread other([&] {
    started.wait(false);
    translator.cancel();
  });
  auto cancelled = translator.translate(long_text());
  other.join();
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kInterrupted);
  EXPECT_TRUE(translator.idle());
  EXPECT_EQ(translator.bytes_in_flight(), 0u);
  EXPECT_EQ(*translator.translate("Hello. Hello."), "Bonjour. Bonjour.");
}

TEST(Translator, HandsOverWholeLinesBeforeItIsCancelled) {
  Translator translator = make(Split::kLine, {{"slots", 2}});
  std::vector<std::string> done;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(translator.submit("Hello."));
  Status status;
  while (status && !translator.idle())
    status = translator.step([&](Line&& line) -> Status {
      done.push_back(line.translation);
      if (done.size() == 3) translator.cancel();
      return {};
    });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInterrupted);
  EXPECT_LT(done.size(), 6u);
  for (const std::string& line : done) EXPECT_EQ(line, "Bonjour.");
  auto again = run(translator, {"Hello."});
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].translation, "Bonjour.");
}

TEST(Translator, RefusesASecondThreadInsteadOfRacingWithIt) {
  Translator translator = make();
  std::vector<Error> errors;
  translator.observe_tokens([&](std::span<const Scheduler::Progress>) -> Status {
    std::thread([&] {
      auto refused = translator.translate("Hello.");
      if (!refused) errors.push_back(refused.error());
      Status submitted = translator.submit("Hello.");
      if (!submitted) errors.push_back(submitted.error());
    }).join();
    return {};
  });
  EXPECT_EQ(*translator.translate("Hello."), "Bonjour.");
  ASSERT_GE(errors.size(), 2u);
  EXPECT_EQ(errors.size() % 2, 0u) << "every attempt was refused";
  EXPECT_EQ(errors[0].code, ErrorCode::kUsage);
  EXPECT_NE(errors[0].message.find("another thread"), std::string::npos) << errors[0].message;
}

}  // namespace
}  // namespace duet::runner
