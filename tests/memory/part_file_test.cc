// A file is under its name whole or not at all, and nobody writes into another's unfinished file.
#include "memory/part_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

namespace duet::memory {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PartFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "duet_part_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    target_ = folder_ / "file";
    part_ = folder_ / "file.part";
  }
  void TearDown() override { fs::remove_all(folder_); }

  void expect_refused(const fs::path& target, const std::string& reason) {
    auto file = PartFile::create(target);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, ErrorCode::kIo);
    EXPECT_NE(file.error().message.find(target.string()), std::string::npos) << file.error().message;
    EXPECT_NE(file.error().message.find(reason), std::string::npos) << file.error().message;
  }

  fs::path folder_, target_, part_;
};

TEST_F(PartFiles, GetTheirNameWhenTheyAreFinished) {
  std::ofstream(target_) << "old";
  fs::permissions(target_, fs::perms::owner_read | fs::perms::owner_write);
  auto file = PartFile::create(target_);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->path(), part_.string());
  ASSERT_TRUE(file->write("new", 3));
  EXPECT_EQ(read(target_), "old");
  ASSERT_TRUE(file->finish());
  EXPECT_EQ(read(target_), "new");
  EXPECT_FALSE(fs::exists(part_));
  EXPECT_EQ(fs::status(target_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(PartFiles, AreRemovedUnlessTheyAreFinishedOrKept) {
  for (bool kept : {false, true}) {
    {
      auto file = PartFile::create(target_);
      ASSERT_TRUE(file);
      if (kept) file->keep();
      PartFile moved = std::move(*file);
      ASSERT_TRUE(moved.write("x", 1));
      EXPECT_TRUE(fs::exists(part_));
    }
    EXPECT_EQ(fs::exists(part_), kept);
    EXPECT_FALSE(fs::exists(target_));
  }
}

TEST_F(PartFiles, OfAnotherAreNotTouched) {
  {
    auto first = PartFile::create(target_);
    ASSERT_TRUE(first);
    ASSERT_TRUE(first->write("first", 5));
    expect_refused(target_, "another process is writing it");
    EXPECT_EQ(read(part_), "first");
    ASSERT_TRUE(first->finish());
  }
  EXPECT_EQ(read(target_), "first");
  auto second = PartFile::create(target_);
  ASSERT_TRUE(second);
  EXPECT_EQ(read(target_), "first");
}

TEST_F(PartFiles, OfAKilledProcessAreWrittenOver) {
  pid_t child = ::fork();
  if (child == 0) {
    auto file = PartFile::create(target_);
    if (!file || !file->write("a long unfinished text", 22)) ::_exit(1);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_EQ(read(part_), "a long unfinished text");
  auto file = PartFile::create(target_);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(file->write("whole", 5));
  ASSERT_TRUE(file->finish());
  EXPECT_EQ(read(target_), "whole");
}

// Many processes at once: each that succeeds leaves a whole file, and the last one's stays.
TEST_F(PartFiles, OfManyProcessesNeverMix) {
  std::vector<pid_t> children;
  for (char letter : {'a', 'b', 'c', 'd'}) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    int finished = 0;
    for (int i = 0; i < 20000 && finished < 30; ++i) {
      ::usleep(100);
      auto file = PartFile::create(target_);
      if (!file) continue;
      std::string text(1000, letter);
      bool fine = true;
      for (int n = 0; n < 4; ++n) fine = fine && file->write(text.data(), text.size());
      finished += fine && file->finish();
    }
    ::_exit(finished == 30 ? 0 : 1);
  }
  for (size_t running = children.size(); running > 0;) {
    std::string text = read(target_);
    if (!text.empty()) {
      EXPECT_EQ(text.size(), 4000u);
      EXPECT_EQ(text, std::string(text.size(), text[0]));
    }
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) <= 0) continue;
    EXPECT_EQ(WEXITSTATUS(status), 0);
    --running;
  }
  EXPECT_FALSE(fs::exists(part_));
}

TEST_F(PartFiles, FollowLinks) {
  std::ofstream(folder_ / "real") << "old";
  fs::create_symlink("real", target_);
  auto file = PartFile::create(target_);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->finish());
  EXPECT_TRUE(fs::is_symlink(target_));
  EXPECT_EQ(read(folder_ / "real"), "");
}

TEST_F(PartFiles, NameWhatStandsInTheirWay) {
  expect_refused(folder_, "is a directory");
  expect_refused(folder_ / "none" / "file", "none does not exist");
  expect_refused("/dev/null", "is no regular file");
  ASSERT_EQ(::mkfifo(part_.c_str(), 0600), 0);
  expect_refused(target_, "file.part: ");
  fs::remove(part_);
  fs::create_directory(part_);
  expect_refused(target_, "file.part: cannot create: Is a directory");
}

TEST_F(PartFiles, ThatMayNotGrowLeaveTheOldFile) {
  std::ofstream(target_) << "old";
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit all{};
  ::getrlimit(RLIMIT_FSIZE, &all);
  std::optional<Status> written;
  {
    auto file = PartFile::create(target_);
    ASSERT_TRUE(file);
    rlimit small = all;
    small.rlim_cur = 100;
    ::setrlimit(RLIMIT_FSIZE, &small);
    written = file->write(std::string(200, 'x').data(), 200);
    ::setrlimit(RLIMIT_FSIZE, &all);
  }
  ASSERT_FALSE(*written);
  EXPECT_NE(written->error().message.find("file.part: cannot write: File too large"), std::string::npos);
  EXPECT_EQ(read(target_), "old");
  EXPECT_FALSE(fs::exists(part_));
}

TEST_F(PartFiles, DoNotFollowALinkThatStandsInThePlaceOfThePart) {
  std::ofstream(folder_ / "victim") << "kept";
  fs::create_symlink(folder_ / "victim", part_);
  expect_refused(target_, "is a symbolic link");
  EXPECT_EQ(read(folder_ / "victim"), "kept");
}

}  // namespace
}  // namespace duet::memory
