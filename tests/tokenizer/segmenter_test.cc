#include "tokenizer/segmenter.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tokenizer/text.h"

namespace duet::tokenizer {
namespace {

using Sentences = std::vector<std::string>;

Sentences split(std::string_view text, const std::string& locale = "en") {
  Sentences out;
  for (std::string_view sentence : split_sentences(text, locale)) out.emplace_back(sentence);
  return out;
}

TEST(SplitSentences, EachSentenceKeepsItsTrailingWhiteSpace) {
  EXPECT_EQ(split("One is here.  Two?\tThree!\nFour"),
            (Sentences{"One is here.  ", "Two?\t", "Three!\n", "Four"}));
}

TEST(SplitSentences, QuotesStayWithTheirSentence) {
  EXPECT_EQ(split("He said \"Go away.\" She left."), (Sentences{"He said \"Go away.\" ", "She left."}));
  EXPECT_EQ(split("« Allez-vous-en. » Elle partit.", "fr"),
            (Sentences{"« Allez-vous-en. » ", "Elle partit."}));
  EXPECT_EQ(split("»Geh weg.« Sie ging.", "de"), (Sentences{"»Geh weg.« ", "Sie ging."}));
  EXPECT_EQ(split("« Oui. »", "fr"), Sentences{"« Oui. »"});
}

TEST(SplitSentences, ChineseAndJapaneseNeedNoSpaces) {
  EXPECT_EQ(split("你好。我是学生。你呢？", "zh"), (Sentences{"你好。", "我是学生。", "你呢？"}));
  EXPECT_EQ(split("「はい。」彼は言った。", "ja").size(), 2u);
}

TEST(SplitSentences, NumbersAndLowerCaseDoNotSplit) {
  EXPECT_EQ(split("It costs 3.50 euros, i.e. too much."), (Sentences{"It costs 3.50 euros, i.e. too much."}));
}

TEST(SplitSentences, KnownAbbreviationsDoNotSplitInTheirLanguage) {
  EXPECT_EQ(split("Mr. Smith came. He left."), (Sentences{"Mr. Smith came. ", "He left."}));
}

TEST(SplitSentences, UnknownLocalesUseTheRulesOfNoLanguage) {
  for (const char* locale : {"", "xx", "eng", "en@ss=none", "../../etc", "not a locale at all", "zz_ZZ_ZZ"}) {
    EXPECT_EQ(split("One is. Two is.", locale), (Sentences{"One is. ", "Two is."})) << locale;
  }
  EXPECT_EQ(split("One is. Two is.", std::string(100000, 'x')).size(), 2u);
}

TEST(SplitSentences, NoSegmentIsEmptyOrBlank) {
  EXPECT_EQ(split(""), Sentences{});
  EXPECT_EQ(split(" \n\n "), Sentences{" \n\n "});
  EXPECT_EQ(split("\n\nOne.\n\n\nTwo.\n \n"), (Sentences{"\n\nOne.\n\n\n", "Two.\n \n"}));
}

TEST(SplitSentences, CoversAnyBytesExactly) {
  const std::string_view alphabet[] = {"a",  "B", ". ",   ".",        "?",    "!\n",          " ", "\n", "\"",
                                       "。", "é", "\xFF", "\xE2\x80", "Mr. ", "\xE2\x80\xA8", "中"};
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (size_t i = 0, n = random() % 30; i < n; ++i) text += alphabet[random() % std::size(alphabet)];
    if (seed % 5 == 0) text += '\0';
    std::string joined;
    const Sentences sentences = split(text, seed % 2 ? "en" : "");
    for (const std::string& sentence : sentences) {
      joined += sentence;
      const bool blank = sentence.find_first_not_of(" \n") == std::string::npos;
      EXPECT_FALSE(blank && sentences.size() > 1) << seed;
    }
    EXPECT_EQ(joined, text) << seed;
  }
}

TEST(SplitSentences, ThreadsWithDifferentLocalesDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::vector<size_t> wrong(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i)
        wrong[t] +=
            split("Mr. Smith came. He left.", (t + i) % 2 ? "en" : "").size() != ((t + i) % 2 ? 2u : 3u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<size_t>(4, 0));
}

}  // namespace
}  // namespace duet::tokenizer
