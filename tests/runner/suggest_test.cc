// The nearest word, as a person who mistyped would judge it.
#include "runner/suggest.h"

#include <gtest/gtest.h>

namespace duet::runner {
namespace {

const std::vector<std::string> kOptions = {"--slots",
                                           "--max-source-tokens",
                                           "--max-target-tokens",
                                           "--batch-tokens",
                                           "--threads",
                                           "--json",
                                           "--stream",
                                           "--stats",
                                           "--quiet",
                                           "--log-level",
                                           "--input",
                                           "--output"};

TEST(Nearest, FindsWordsWithFewEdits) {
  for (auto [typed, meant] :
       std::vector<std::pair<const char*, const char*>>{{"--slot", "--slots"},
                                                        {"--sltos", "--slots"},
                                                        {"-slots", "--slots"},
                                                        {"slots", "--slots"},
                                                        {"--jsn", "--json"},
                                                        {"--josn", "--json"},
                                                        {"--outptu", "--output"},
                                                        {"--max-source-token", "--max-source-tokens"},
                                                        {"--max_target_tokens", "--max-target-tokens"},
                                                        {"--quite", "--quiet"},
                                                        {"--thread", "--threads"}})
    EXPECT_EQ(nearest(typed, kOptions), meant) << typed;
}

TEST(Nearest, PrefersTheFewestEdits) {
  EXPECT_EQ(nearest("--state", {"--stats", "--slate"}), "--stats");
  EXPECT_EQ(nearest("--slate", {"--stats", "--slate"}), "--slate");
}

TEST(Nearest, FindsTheOnlyWordWithThatBeginningOrEnd) {
  EXPECT_EQ(nearest("--max-source", kOptions), "--max-source-tokens");
  EXPECT_EQ(nearest("--output-file", kOptions), "--output");
  EXPECT_EQ(nearest("--level", kOptions), "--log-level");
  EXPECT_EQ(nearest("--max", kOptions), "");  // two of them
}

TEST(Nearest, FindsNothingForOtherWords) {
  for (const char* typed : {"", "-", "--", "-x", "--version", "--beam", "--banana", "--a"})
    EXPECT_EQ(nearest(typed, kOptions), "") << typed;
  EXPECT_EQ(nearest(std::string(100000, 's'), kOptions), "");
}

}  // namespace
}  // namespace duet::runner
