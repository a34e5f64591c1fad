// What the process really takes while it translates, beside what was planned.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "runner/translator.h"

namespace duet::runner {
namespace {

// Anonymous memory of this process that is resident, in bytes.
uint64_t resident_anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  return 0;
}

TEST(MemoryUseTest, AnonymousMemoryStaysWithinThePlanAndSixteenMegabytes) {
  TranslatorOptions options;
  options.session.threads = 2;
  options.session.limits = {{"slots", 8}, {"max_target_tokens", 64}};
  auto translator = Translator::open(DUET_SHIPPED_PROGRAM, options);
  ASSERT_TRUE(translator) << translator.error().message;
  uint64_t planned = translator->runner().session().plan().total_bytes(), most = 0, lines = 0;
  for (int i = 0; i < 120; ++i) {
    std::string text = "When the night has come and the land is dark, I will not be afraid";
    for (int word = 0; word < i % 30; ++word) text += " of the moon";
    ASSERT_TRUE(translator->submit(text + "."));
    if (translator->lines_in_flight() < 32) continue;
    auto status = translator->step([&](Line&&) -> Status {
      ++lines;
      return {};
    });
    ASSERT_TRUE(status) << status.error().message;
    most = std::max(most, resident_anonymous_bytes());
  }
  while (!translator->idle())
    ASSERT_TRUE(translator->step([&](Line&&) -> Status { return ++lines, Status(); }));
  EXPECT_EQ(lines, 120u);
  ASSERT_GT(most, 0u);
  EXPECT_LE(most, planned + (16u << 20)) << "planned " << planned;
}

}  // namespace
}  // namespace duet::runner
