// Files that shrink while they are mapped, and the ways to hold a file's bytes. What ends a process, or
// changes its rights, happens in children.
#include "memory/mapping_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "memory/mapped_file.h"

namespace duet::memory {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // with a SIGBUS handler of their own, and without mlock()
#else
constexpr bool kSanitized = false;
#endif

class ShrinkingFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "duet_guard_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "file";
    fill(kBytes);
    survive_shrinking_files();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void fill(size_t bytes) const { std::ofstream(path_, std::ios::binary) << std::string(bytes, 'x'); }
  void cut(off_t bytes) const { ASSERT_EQ(::truncate(path_.c_str(), bytes), 0); }

  static size_t count(const MappedFile& file, char byte) {
    return static_cast<size_t>(std::count(file.bytes().begin(), file.bytes().end(), std::byte(byte)));
  }
  static void expect_shrunk(const MappedFile& file, size_t from, size_t to) {
    Status whole = file.check_whole();
    ASSERT_FALSE(whole);
    EXPECT_EQ(whole.error().code, ErrorCode::kIo);
    std::string expected =
        fmt::format("{}: shrank from {} to {} bytes while it was in use", file.path(), from, to);
    EXPECT_TRUE(whole.error().message.starts_with(expected)) << whole.error().message;
  }

  static constexpr size_t kBytes = 5 * 4096 + 100;
  std::filesystem::path folder_, path_;
};

TEST_F(ShrinkingFiles, ReadAsZerosBehindTheirEndAndAreFound) {
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->check_whole());
  cut(4096);
  EXPECT_EQ(count(*file, 'x'), 4096u);
  EXPECT_EQ(count(*file, '\0'), kBytes - 4096);
  expect_shrunk(*file, kBytes, 4096);
  EXPECT_FALSE(check_mapped_files());
}

TEST_F(ShrinkingFiles, AreFoundWhereNothingFaults) {
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  cut(kBytes - 1);  // the rest of the last page reads as zeros, without a signal
  EXPECT_EQ(count(*file, '\0'), 1u);
  expect_shrunk(*file, kBytes, kBytes - 1);
}

TEST_F(ShrinkingFiles, AreFoundWhenTheyHaveGrownAgain) {
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  cut(0);
  EXPECT_EQ(count(*file, 'x'), 0u);
  fill(kBytes);
  Status whole = file->check_whole();
  ASSERT_FALSE(whole);
  EXPECT_NE(whole.error().message.find("could not be read"), std::string::npos) << whole.error().message;
}

TEST_F(ShrinkingFiles, MayBeReplacedByRenaming) {
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  std::ofstream(folder_ / "new") << "short";
  std::filesystem::rename(folder_ / "new", path_);
  EXPECT_EQ(count(*file, 'x'), kBytes);
  EXPECT_TRUE(file->check_whole());
}

TEST_F(ShrinkingFiles, AreForgottenWithTheirMapping) {
  {
    auto file = MappedFile::open(path_);
    ASSERT_TRUE(file);
    cut(0);
    EXPECT_EQ(count(*file, 'x'), 0u);
  }
  fill(kBytes);
  auto again = MappedFile::open(path_);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->check_whole());
  EXPECT_TRUE(check_mapped_files());
  EXPECT_EQ(count(*again, 'x'), kBytes);
}

TEST_F(ShrinkingFiles, AreSurvivedByAllThreadsThatReadThem) {
  auto file = MappedFile::open(path_);
  ASSERT_TRUE(file);
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  std::atomic<int> rounds = 0;
  for (int i = 0; i < 4; ++i)
    readers.emplace_back([&] {
      while (!stop) {
        for (std::byte byte : file->bytes()) EXPECT_TRUE(byte == std::byte('x') || byte == std::byte(0));
        ++rounds;
      }
    });
  while (rounds < 10) std::this_thread::yield();
  cut(4096);
  for (int before = rounds; rounds < before + 20;) std::this_thread::yield();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  expect_shrunk(*file, kBytes, 4096);
}

TEST_F(ShrinkingFiles, OfOtherMappingsEndTheProcessAsEver) {
  if (kSanitized) GTEST_SKIP() << "sanitizers replace what is looked at here";
  auto fault = [&] {
    int fd = ::open(path_.c_str(), O_RDONLY);
    auto* data = static_cast<const volatile char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE, fd, 0));
    cut(0);
    ::_exit(data[kBytes - 1]);
  };
  EXPECT_EXIT(fault(), testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(::raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}

TEST(BusErrors, OfOthersGoToTheHandlerThatWasThereBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process in which no handler is installed yet
  auto fault = [] {
    struct sigaction action {};
    action.sa_handler = [](int) { ::_exit(42); };
    ::sigaction(SIGBUS, &action, nullptr);
    survive_shrinking_files();
    int fd = ::memfd_create("empty", 0);
    auto* data = static_cast<const volatile char*>(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
    ::_exit(data[0]);
  };
  EXPECT_EXIT(fault(), testing::ExitedWithCode(42), "");
}

// ---- Ways to hold the bytes

TEST_F(ShrinkingFiles, HarmNoCopy) {
  auto file = MappedFile::open(path_, LoadMode::kRead);
  ASSERT_TRUE(file) << file.error().message;
  cut(0);
  EXPECT_EQ(count(*file, 'x'), kBytes);
  EXPECT_TRUE(file->check_whole());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file->bytes().data()) % 64, 0u);
}

TEST_F(ShrinkingFiles, AreNotCopiedWhenTheyAreLargerThanTheMachine) {
  constexpr uint64_t kHuge = uint64_t{1} << 43;
  if (::truncate(path_.c_str(), static_cast<off_t>(kHuge)) != 0) GTEST_SKIP() << "no such sparse files here";
  auto file = MappedFile::open(path_, LoadMode::kRead);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(file.error().message.find("a copy takes 8796093022208 bytes"), std::string::npos)
      << file.error().message;
}

uint64_t locked_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmLck:")) return std::strtoull(line.c_str() + 6, nullptr, 10);
  return 0;
}

TEST_F(ShrinkingFiles, StayInMemoryWhenTheyAreLocked) {
  if (kSanitized) GTEST_SKIP() << "sanitizers replace what is looked at here";
  uint64_t before = locked_kib();
  auto file = MappedFile::open(path_, LoadMode::kMlock);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(locked_kib() - before, 6 * 4u);
  EXPECT_EQ(count(*file, 'x'), kBytes);
  cut(4096);
  EXPECT_EQ(count(*file, 'x'), 4096u);
  expect_shrunk(*file, kBytes, 4096);
}

TEST_F(ShrinkingFiles, ThatMayNotBeLockedAreAnErrorThatSaysWhatToDo) {
  if (kSanitized) GTEST_SKIP() << "sanitizers replace what is looked at here";
  auto open_without_right = [&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[2] = {};
    ::syscall(SYS_capset, &header, none);
    rlimit limit{8192, 8192};
    ::setrlimit(RLIMIT_MEMLOCK, &limit);
    auto file = MappedFile::open(path_, LoadMode::kMlock);
    std::fprintf(stderr, "%s\n", file ? "opened" : file.error().message.c_str());
    ::_exit(file ? 0 : exit_code(file.error().code));
  };
  EXPECT_EXIT(
      open_without_right(), testing::ExitedWithCode(4),
      "file: cannot lock its 20580 bytes in memory.*limit of locked memory is 8192 bytes.*ulimit -l 21");
}

}  // namespace
}  // namespace duet::memory
