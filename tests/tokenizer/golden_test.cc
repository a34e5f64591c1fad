// Against the reference's own ids and texts (tests/golden/README.md says how they were made).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "fixture.h"

namespace duet::tokenizer {
namespace {

struct Sentence {
  std::string source;
  std::vector<int32_t> source_ids;
  std::vector<int32_t> target_ids;
  std::string translation;
};

std::vector<Sentence> sentences_of(const GoldenModel& model) {
  std::vector<Sentence> sentences;
  for (const std::string& line : lines_of(model.greedy_file)) {
    auto json = nlohmann::json::parse(line);
    sentences.push_back(
        {json.at("source"), json.at("source_ids"), json.at("target_ids"), json.at("translation")});
  }
  return sentences;
}

TEST(Golden, EverySentenceHasTheReferencesIdsAndText) {
  size_t checked = 0;
  for (const GoldenModel& model : golden_models()) {
    SCOPED_TRACE(model.name);
    LoadedTokenizer loaded = load_golden(model.name);
    for (const Sentence& sentence : sentences_of(model)) {
      auto encoding = loaded.tokenizer->encode(sentence.source);
      ASSERT_TRUE(encoding.has_value()) << encoding.error().message;
      EXPECT_EQ(encoding->ids, sentence.source_ids) << sentence.source;
      EXPECT_EQ(loaded.tokenizer->decode(sentence.target_ids).value(), sentence.translation);
      ++checked;
    }
  }
  EXPECT_GE(checked, 100u) << "no golden model in tests/golden or assets";
}

TEST(Golden, FourThreadsOnOneTokenizerGiveTheSameAnswers) {
  const GoldenModel model = golden_models().at(0);
  const LoadedTokenizer loaded = load_golden(model.name);
  const std::vector<Sentence> sentences = sentences_of(model);
  std::vector<size_t> wrong(4, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < sentences.size(); ++i) {
        const Sentence& sentence = sentences[(i + 29 * t) % sentences.size()];
        wrong[t] += loaded.tokenizer->encode(sentence.source)->ids != sentence.source_ids;
        wrong[t] += loaded.tokenizer->decode(sentence.target_ids).value() != sentence.translation;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<size_t>(4, 0));
}

TEST(Golden, RangesFollowTheTextFromLeftToRight) {
  for (const GoldenModel& model : golden_models()) {
    LoadedTokenizer loaded = load_golden(model.name);
    for (const Sentence& sentence : sentences_of(model)) {
      const Encoding encoding = loaded.tokenizer->encode(sentence.source).value();
      ASSERT_EQ(encoding.ids.size(), encoding.ranges.size());
      uint32_t end = 0;
      for (const ByteRange& range : encoding.ranges) {
        EXPECT_LE(end, range.begin);
        EXPECT_LE(range.begin, range.end);
        end = range.end;
      }
      EXPECT_EQ(encoding.ranges.back().begin, sentence.source.size());
    }
  }
}

}  // namespace
}  // namespace duet::tokenizer
