#include "tokenizer/cutter.h"

#include <gtest/gtest.h>

#include <random>

#include "fixture.h"
#include "tokenizer/text.h"

namespace duet::tokenizer {
namespace {

using Parts = std::vector<std::string>;

class Cutting : public ::testing::Test {
 protected:
  // Cuts, and checks what must always hold.
  Parts cut(std::string_view text, size_t max_tokens) {
    auto encoder = [&](std::string_view part) {
      encoded_bytes_ += part.size();
      return loaded_.tokenizer->encode(part, "");
    };
    encoded_bytes_ = 0;
    auto views = cut_to_limit(Encoder(encoder), text, max_tokens);
    EXPECT_TRUE(views.has_value()) << views.error().message;
    Parts parts;
    std::string joined;
    for (std::string_view view : *views) {
      EXPECT_LE(loaded_.tokenizer->encode(view, "")->ids.size(), max_tokens);
      EXPECT_FALSE(view.empty());
      joined += view;
      parts.emplace_back(view);
    }
    EXPECT_EQ(joined, text);
    return parts;
  }

  LoadedTokenizer loaded_ = load_golden("small-a");
  size_t encoded_bytes_ = 0;
};

TEST_F(Cutting, ATextThatFitsIsOnePart) {
  EXPECT_EQ(cut("a b.", 10), Parts{"a b."});
  EXPECT_EQ(cut("", 10), Parts{});
}

TEST_F(Cutting, CutsAfterWhiteSpaceBeforeTheLimit) {
  EXPECT_EQ(cut("you you you you you", 4), (Parts{"you you you ", "you you"}));
  EXPECT_EQ(cut("you you you you you", 3), (Parts{"you you ", "you you ", "you"}));
  EXPECT_EQ(cut("you you yesterdayyesterday you", 6).at(0), "you you ") << "not inside the long word";
}

TEST_F(Cutting, CutsAfterPunctuationWhereThereIsNoWhiteSpace) {
  for (const std::string& part : cut("中中,文文。文中,文中。中文,文中。", 4)) {
    EXPECT_TRUE(part.ends_with(",") || part.ends_with("。")) << part;
  }
  EXPECT_EQ(cut("don't you", 5).at(0).find("don'"), 0u);
  EXPECT_EQ(cut("you don't", 4).at(0), "you ") << "an apostrophe inside a word is a worse place than a space";
}

TEST_F(Cutting, CutsBetweenCharactersWhereThereIsNothingBetter) {
  const Parts parts = cut("b中b中b中b中b中b中b中b中", 5);
  EXPECT_GT(parts.size(), 1u);
  for (const std::string& part : parts) EXPECT_TRUE(is_valid_utf8(part)) << part;
}

TEST_F(Cutting, ALimitOfTwoTakesAPieceAtATime) {
  EXPECT_EQ(cut("you a you", 2), (Parts{"you ", "a ", "you"}));
}

TEST_F(Cutting, ACharacterThatNeedsMoreThanTheLimitIsAnError) {
  auto parts = cut_to_limit(*loaded_.tokenizer, "a ☃", 2);  // "▁", "<unk>", "</s>"
  ASSERT_FALSE(parts.has_value());
  EXPECT_NE(parts.error().message.find("☃"), std::string::npos) << parts.error().message;
  EXPECT_FALSE(cut_to_limit(*loaded_.tokenizer, "a", 1).has_value());
  EXPECT_FALSE(cut_to_limit(*loaded_.tokenizer, "a", 0).has_value());
}

TEST_F(Cutting, TheLanguageTokenCountsInEveryPart) {
  const std::string text = "you you you you you";
  const auto parts = cut_to_limit(*loaded_.tokenizer, text, 4, ">>fra<<").value();
  EXPECT_EQ(parts, (std::vector<std::string_view>{"you you ", "you you ", "you"}));
  for (std::string_view part : parts) EXPECT_LE(loaded_.tokenizer->encode(part, ">>fra<<")->ids.size(), 4u);
}

TEST_F(Cutting, AMegabyteIsEncodedAFewTimesOver) {
  const size_t size = 1 << 20;
  std::string letters, words, unknown, spaces(size, ' '), mixed;
  std::mt19937 random(7);
  while (letters.size() < size) letters += static_cast<char>('a' + random() % 26);
  while (words.size() < size) words += "yesterday ";
  while (unknown.size() < size) unknown += "☃";
  while (mixed.size() < size)
    mixed += "a " + std::string(random() % 3000, 'x') + std::string(random() % 3000, ' ');
  for (const std::string* text : {&letters, &words, &unknown, &spaces, &mixed}) {
    cut(*text, 128);
    EXPECT_LT(encoded_bytes_, 12 * size) << text->substr(0, 20);
  }
}

TEST_F(Cutting, HugeLimitsDoNotOverflow) {
  for (size_t limit : {SIZE_MAX, SIZE_MAX / 8 + 1}) EXPECT_EQ(cut("you you", limit), Parts{"you you"});
  EXPECT_EQ(cut(std::string(600000, 'a'), SIZE_MAX).size(), 3u)
      << "parts stay within what is encoded at once";
}

TEST_F(Cutting, AnyTextIsCoveredAndFitsAndCutsTheSameAgain) {
  const std::string_view alphabet[] = {"a", "you",    " ",  "  ",   ".",    ", ",
                                       "☃", "ﷺ",      "中", "é",    "\xFF", "\xE2\x80",
                                       "'", ">>fr<<", "\n", "</s>", "3.14", "\xE2\x96\x81"};
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (size_t i = 0, n = random() % 200; i < n; ++i) text += alphabet[random() % std::size(alphabet)];
    // U+FDFA alone becomes 18 characters.
    const size_t limit = 40 + random() % 40;
    EXPECT_EQ(cut(text, limit), cut(text, limit)) << seed;
  }
}

}  // namespace
}  // namespace duet::tokenizer
