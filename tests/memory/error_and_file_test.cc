// Exit codes, the error macros, and what mapped files answer to paths that hold no usable file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "memory/error.h"
#include "memory/mapped_file.h"

namespace duet::memory {
namespace {

TEST(ExitCode, FollowsTheTable) {
  EXPECT_EQ(exit_code(ErrorCode::kUsage), 2);
  EXPECT_EQ(exit_code(ErrorCode::kBadInput), 3);
  EXPECT_EQ(exit_code(ErrorCode::kUnsupported), 3);
  EXPECT_EQ(exit_code(ErrorCode::kIo), 4);
  EXPECT_EQ(exit_code(ErrorCode::kOutOfMemory), 4);
  EXPECT_EQ(exit_code(ErrorCode::kExhausted), 4);
  EXPECT_EQ(exit_code(ErrorCode::kInterrupted), 130);
}

Result<int> half(int x) {
  if (x % 2 != 0) return failure(ErrorCode::kBadInput, "{} is odd", x);
  return x / 2;
}
Result<int> quarter(int x) {
  DUET_ASSIGN(auto h, half(x));
  DUET_ASSIGN(auto q, half(h));
  return q;
}
Status check_quarter(int x) {
  DUET_TRY(quarter(x));
  return {};
}

TEST(Error, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(*quarter(12), 3);
  ASSERT_FALSE(quarter(6));
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_TRUE(check_quarter(8));
  EXPECT_EQ(check_quarter(7).error().code, ErrorCode::kBadInput);
}

TEST(Error, ABrokenInvariantNamesFileAndCondition) {
  EXPECT_DEATH(DUET_CHECK(1 + 1 == 3), "error_and_file_test.cc:[0-9]+: 1 \\+ 1 == 3");
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "duet_files_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return folder_ / name; }
  std::string write(const char* name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  std::filesystem::path folder_;
};

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, const std::string& path,
                  const std::string& reason) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(path), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find(reason), std::string::npos) << result.error().message;
}

TEST_F(Files, MappingShowsTheBytes) {
  auto file = MappedFile::open(write("f", std::string("a\0b", 3)));
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->bytes().size(), 3u);
  EXPECT_EQ(file->bytes()[2], std::byte{'b'});
  EXPECT_EQ(file->path(), path("f"));
}

TEST_F(Files, MappingOutlivesTheNameAndMoves) {
  auto file = MappedFile::open(write("f", "text"));
  ASSERT_TRUE(file);
  auto other = MappedFile::open(write("g", "more text"));
  ASSERT_TRUE(other);
  const std::byte* data = file->bytes().data();
  MappedFile moved = std::move(*file);
  EXPECT_EQ(moved.bytes().data(), data);
  EXPECT_TRUE(file->bytes().empty());
  moved = std::move(*other);
  std::filesystem::remove(path("g"));
  EXPECT_EQ(moved.bytes().size(), 9u);
  EXPECT_EQ(moved.path(), path("g"));
}

TEST_F(Files, MissingFileIsAnIoError) {
  expect_error(MappedFile::open(path("none")), ErrorCode::kIo, path("none"), "No such file");
  expect_error(read_file(path("none"), 10), ErrorCode::kIo, path("none"), "No such file");
}

TEST_F(Files, DirectoryIsAnIoError) {
  expect_error(MappedFile::open(folder_), ErrorCode::kIo, folder_, "directory");
  expect_error(read_file(folder_, 10), ErrorCode::kIo, folder_, "directory");
}

TEST_F(Files, EmptyFileCannotBeMappedButCanBeRead) {
  write("empty", "");
  expect_error(MappedFile::open(path("empty")), ErrorCode::kBadInput, path("empty"), "empty");
  EXPECT_EQ(read_file(path("empty"), 10).value_or("?"), "");
}

TEST_F(Files, PipeCannotBeMapped) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  int both_ends = ::open(path("pipe").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(both_ends, 0);
  expect_error(MappedFile::open(path("pipe")), ErrorCode::kIo, path("pipe"), "regular file");
  ::close(both_ends);
}

TEST_F(Files, PipeCanBeReadToItsEnd) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::string sent(200'000, 'x');  // more than a pipe holds
  std::thread writer([&] { std::ofstream(path("pipe")) << sent; });
  auto text = read_file(path("pipe"), sent.size());
  writer.join();
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_TRUE(*text == sent);
}

TEST_F(Files, ForbiddenFileIsAnIoError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write("secret", "text");
  ASSERT_EQ(::chmod(path("secret").c_str(), 0), 0);
  expect_error(MappedFile::open(path("secret")), ErrorCode::kIo, path("secret"), "Permission denied");
  expect_error(read_file(path("secret"), 10), ErrorCode::kIo, path("secret"), "Permission denied");
}

TEST_F(Files, ReadingStopsAtTheGivenSize) {
  write("ten", "0123456789");
  EXPECT_EQ(read_file(path("ten"), 10).value_or("?"), "0123456789");
  expect_error(read_file(path("ten"), 9), ErrorCode::kBadInput, path("ten"), "at most 9");
  expect_error(read_file("/dev/zero", 1000), ErrorCode::kBadInput, "/dev/zero",
               "1000");  // a file without an end
}

}  // namespace
}  // namespace duet::memory
