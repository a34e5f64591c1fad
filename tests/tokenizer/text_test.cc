#include "tokenizer/text.h"

#include <gtest/gtest.h>

namespace duet::tokenizer {
namespace {

constexpr const char* kFffd = "\xEF\xBF\xBD";

TEST(SanitizeUtf8, ValidTextIsUnchangedAndNotCopied) {
  std::string text = "Ünï©ode 中文 🏳️‍🌈 and enough of it to live on the heap";
  text += '\0';
  const std::string expected = text;
  const char* place = text.data();
  SanitizedText out = sanitize_utf8(std::move(text));
  EXPECT_EQ(out.text, expected);
  EXPECT_EQ(out.text.data(), place);
  EXPECT_EQ(out.replaced, 0u);
}

TEST(SanitizeUtf8, EachMaximalIllFormedSubsequenceIsOneReplacement) {
  auto f = [](int n) {
    std::string s;
    while (n-- > 0) s += kFffd;
    return s;
  };
  // The Unicode Standard 15.0, tables 3-8 to 3-11, and the usual suspects.
  struct Case {
    std::string in, out;
    size_t replaced;
  };
  const Case cases[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", f(8) + "A", 8},               // non-shortest forms
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", f(8) + "A", 8},               // surrogates
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", f(5) + "A" + f(2) + "B", 7},  // beyond U+10FFFF
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", f(4) + "A", 4},               // truncated
      {"caf\xE9", "caf" + f(1), 1},                                          // Latin-1
      {"\xF0\x9F\x98", f(1), 1},
      {"\x80", f(1), 1},
  };
  for (const Case& c : cases) {
    SanitizedText out = sanitize_utf8(c.in);
    EXPECT_EQ(out.text, c.out);
    EXPECT_EQ(out.replaced, c.replaced);
    EXPECT_TRUE(is_valid_utf8(out.text));
    EXPECT_FALSE(is_valid_utf8(c.in));
  }
}

TEST(Strip, RemovesWhatPythonCallsSpaceAtBothEnds) {
  EXPECT_EQ(strip("  a b \t\r\n"), "a b");
  EXPECT_EQ(strip("\xC2\xA0\xE3\x80\x80\x1F"
                  "a\xE2\x80\xA8\xC2\x85"),
            "a");
  EXPECT_EQ(strip("\xE2\x80\x8B"
                  "a"),
            "\xE2\x80\x8B"
            "a")
      << "U+200B is no space in Python";
  EXPECT_EQ(strip(" \xC2\xA0 "), "");
  EXPECT_EQ(strip("a\xA0"), "a\xA0") << "an ill-formed byte is not U+00A0";
}

TEST(CodePointBoundary, NeverFallsInsideACharacter) {
  const std::string text = "aé中🙂";
  const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t at = 0; at < 12; ++at) EXPECT_EQ(code_point_boundary(text, at), expected[at]) << at;
  EXPECT_EQ(code_point_boundary("\x80\x80\x80\x80\x80", 4), 4u) << "ill-formed bytes stand for themselves";
}

}  // namespace
}  // namespace duet::tokenizer
