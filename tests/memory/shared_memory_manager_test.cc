#include "memory/shared_memory_manager.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <vector>

#include "memory/log.h"

namespace duet::memory {
namespace {

// What is written to descriptor 2 while it lives, at the given log level.
class CapturedStderr {
 public:
  explicit CapturedStderr(LogLevel level) : level_(log_level()), saved_(::dup(2)), file_(std::tmpfile()) {
    set_log_level(level);
    ::dup2(::fileno(file_), 2);
  }
  ~CapturedStderr() {
    restore();
    std::fclose(file_);
  }
  std::vector<std::string> lines() {
    restore();
    std::string text(static_cast<size_t>(::lseek(::fileno(file_), 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(::fileno(file_), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    std::vector<std::string> result;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) result.push_back(line);
    return result;
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    ::dup2(saved_, 2);
    ::close(saved_);
    saved_ = -1;
    set_log_level(level_);
  }
  LogLevel level_;
  int saved_;
  std::FILE* file_;
};

// What follows "I 00:00:SS.UUUUUU duet:shared_memory_manager.cc:LINE] ", which is checked on the way.
std::string message(const std::string& line) {
  std::string digits_as_zeros = line;
  for (char& c : digits_as_zeros)
    if (c >= '0' && c <= '9') c = '0';
  const std::string prefix = "I 00:00:00.000000 duet:shared_memory_manager.cc:";
  EXPECT_EQ(digits_as_zeros.substr(0, prefix.size()), prefix) << line;
  EXPECT_EQ(line.substr(0, 8), "I 00:00:") << "less than a minute since the process began";
  size_t bracket = digits_as_zeros.find_first_not_of('0', prefix.size());
  EXPECT_TRUE(bracket != std::string::npos && bracket > prefix.size() && line.substr(bracket, 2) == "] ")
      << line;
  return bracket == std::string::npos ? line : line.substr(std::min(bracket + 2, line.size()));
}

std::vector<std::string> messages(const std::vector<std::string>& lines) {
  std::vector<std::string> result;
  for (const auto& line : lines) result.push_back(message(line));
  return result;
}

const std::vector<MethodMemory> kMethods = {{"et_module_init", 0, 6170224},
                                            {"reset_encode_prefill", 1000, 6170224},
                                            {"decode", 3000, 5000},
                                            {"stateless", 10, 0}};

TEST(Log, HasTheFormOfTheReferenceRunner) {
  CapturedStderr captured(LogLevel::kInfo);
  auto manager = SharedMemoryManager::create(kMethods, 6170224, 100);
  auto lines = captured.lines();
  ASSERT_TRUE(manager) << manager.error().message;
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(message(lines[0]), "Allocated normal buffer for method et_module_init, memory id 0, size 3000");
}

TEST(Log, TellsWhichMethodAllocatesAndWhichReuse) {
  CapturedStderr captured(LogLevel::kInfo);
  auto manager = SharedMemoryManager::create(kMethods, 6170224, 100);
  std::vector<std::string> expected = {
      "Allocated normal buffer for method et_module_init, memory id 0, size 3000",
      "Allocated shared buffer for method et_module_init, memory id 1, size 6170224",
      "Reusing normal buffer for method reset_encode_prefill, memory id 0, size 1000",
      "Reusing shared buffer for method reset_encode_prefill, memory id 1, size 6170224",
      "Reusing normal buffer for method decode, memory id 0, size 3000",
      "Reusing shared buffer for method decode, memory id 1, size 5000",
      "Reusing normal buffer for method stateless, memory id 0, size 10",
  };
  EXPECT_EQ(messages(captured.lines()), expected);
}

TEST(Log, NamesTheIoArenaOnlyWhenAskedForDetails) {
  CapturedStderr captured(LogLevel::kDebug);
  auto manager = SharedMemoryManager::create({}, 0, 12345);
  std::vector<std::string> lines = captured.lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0][0], 'D');
  EXPECT_NE(lines[0].find("memory id 2, size 12345"), std::string::npos) << lines[0];
}

TEST(Log, SaysSizeZeroWhenNoMethodHasAWorkspace) {
  CapturedStderr captured(LogLevel::kInfo);
  auto manager = SharedMemoryManager::create(std::vector<MethodMemory>{{"a", 0, 0}, {"b", 0, 0}}, 0, 0);
  EXPECT_EQ(messages(captured.lines()),
            std::vector<std::string>{"Allocated normal buffer for method a, memory id 0, size 0"});
}

TEST(Log, IsSilentWhenNothingWasAllocated) {
  CapturedStderr captured(LogLevel::kInfo);
  auto manager = SharedMemoryManager::create(kMethods, UINT64_MAX / 2, 0);
  EXPECT_FALSE(manager);
  EXPECT_TRUE(captured.lines().empty());
}

class Quiet : public testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kOff); }
  void TearDown() override { set_log_level(LogLevel::kInfo); }
};

TEST_F(Quiet, WorkspaceIsThatOfTheHungriestMethodAndArenasAreApart) {
  auto manager = SharedMemoryManager::create(kMethods, 6170224, 100);
  ASSERT_TRUE(manager) << manager.error().message;
  EXPECT_EQ(manager->arena_bytes(ArenaId::kWorkspace), 3000u);
  EXPECT_EQ(manager->arena_bytes(ArenaId::kShared), 6170224u);
  EXPECT_EQ(manager->arena_bytes(ArenaId::kIo), 100u);
  EXPECT_EQ(manager->total_bytes(), 3000u + 6170224 + 100);
  std::memset(manager->arena(ArenaId::kWorkspace), 1, 3000);
  std::memset(manager->arena(ArenaId::kIo), 2, 100);
  const std::byte* shared = manager->arena(ArenaId::kShared);
  for (size_t i = 0; i < 6170224; ++i) ASSERT_EQ(shared[i], std::byte{0}) << i;
}

TEST_F(Quiet, PoisonFillsTheWorkspaceWithNansAndNothingElse) {
  auto manager = SharedMemoryManager::create(std::vector<MethodMemory>{{"m", 4099, 64}}, 64, 64);
  ASSERT_TRUE(manager) << manager.error().message;
  manager->poison_workspace();
  const std::byte* workspace = manager->arena(ArenaId::kWorkspace);
  for (size_t i = 0; i < 1024; ++i) {
    uint32_t word;
    std::memcpy(&word, workspace + 4 * i, 4);
    ASSERT_EQ(word, 0x7fc00000u);
    float value;
    std::memcpy(&value, workspace + 4 * i, 4);
    ASSERT_TRUE(std::isnan(value));
  }
  EXPECT_EQ(manager->arena(ArenaId::kShared)[0], std::byte{0});
  EXPECT_EQ(manager->arena(ArenaId::kIo)[63], std::byte{0});
}

TEST_F(Quiet, ArenasThatFitOnlyAloneAreRefusedTogether) {
  uint64_t most = machine_memory().limit_bytes(), share = most / 2;
  auto manager = SharedMemoryManager::create(std::vector<MethodMemory>{{"m", share, 0}}, share, share);
  ASSERT_FALSE(manager);
  EXPECT_EQ(manager.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(manager.error().message.find(std::to_string(share)), std::string::npos)
      << manager.error().message;
  EXPECT_NE(manager.error().message.find(std::to_string(3 * share)), std::string::npos)
      << manager.error().message;
}

TEST_F(Quiet, SizesThatAddUpToMoreThan64BitsAreRefused) {
  auto manager = SharedMemoryManager::create({}, UINT64_MAX, UINT64_MAX);
  ASSERT_FALSE(manager);
  EXPECT_EQ(manager.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(manager.error().message.find("the session"), 0u) << manager.error().message;
}

TEST_F(Quiet, AMethodThatUsesMoreThanTheSharedArenaIsABug) {
  EXPECT_DEATH((void)SharedMemoryManager::create(std::vector<MethodMemory>{{"m", 0, 65}}, 64, 0),
               "internal error");
}

}  // namespace
}  // namespace duet::memory
