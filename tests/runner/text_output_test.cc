// A file appears under its name when it is complete, and not before.
#include "runner/text_output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/runner/golden.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class TextOutputTest : public testing::Test {
 protected:
  TextOutputTest() {
    directory_ = golden::scratch_directory() / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(directory_);
    path_ = directory_ / "out.txt";
    part_ = directory_ / "out.txt.part";
  }
  fs::path directory_, path_, part_;
};

TEST_F(TextOutputTest, BuildsThePartFileAndRenamesIt) {
  std::ofstream(path_) << "old";
  auto output = TextOutput::open(path_.string());
  ASSERT_TRUE(output);
  EXPECT_EQ(output->part_path(), part_.string());
  ASSERT_TRUE(output->write("one\n"));
  EXPECT_EQ(read(part_), "");
  ASSERT_TRUE(output->flush());
  EXPECT_EQ(read(part_), "one\n");
  EXPECT_EQ(output->bytes_written(), 4u);
  EXPECT_EQ(read(path_), "old");
  ASSERT_TRUE(output->write("two"));
  ASSERT_TRUE(output->finish());
  EXPECT_EQ(read(path_), "one\ntwo");
  EXPECT_FALSE(fs::exists(part_));
  EXPECT_EQ(output->part_path(), "");
}

TEST_F(TextOutputTest, LeavesAPartFileOnlyIfItHoldsSomething) {
  {
    auto output = TextOutput::open(path_.string());
    ASSERT_TRUE(output);
    EXPECT_TRUE(fs::exists(part_));
  }
  EXPECT_FALSE(fs::exists(part_));
  {
    auto output = TextOutput::open(path_.string());
    ASSERT_TRUE(output->write("kept"));
    ASSERT_TRUE(output->flush());
  }
  EXPECT_EQ(read(part_), "kept");
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(TextOutputTest, GivesAnEmptyFileItsName) {
  auto output = TextOutput::open(path_.string());
  ASSERT_TRUE(output->finish());
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_EQ(fs::file_size(path_), 0u);
}

TEST_F(TextOutputTest, KeepsLinksAndPermissions) {
  fs::path real = directory_ / "real.txt";
  std::ofstream(real) << "old";
  fs::permissions(real, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real.txt", path_);
  auto output = TextOutput::open(path_.string());
  ASSERT_TRUE(output);
  ASSERT_TRUE(output->write("new"));
  ASSERT_TRUE(output->finish());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(read(real), "new");
  EXPECT_EQ(fs::status(real).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(TextOutputTest, WritesWhatItHoldsWhenThereIsMuch) {
  auto output = TextOutput::open(path_.string());
  ASSERT_TRUE(output->write(std::string(1 << 20, 'x')));
  EXPECT_EQ(fs::file_size(part_), 1u << 20);
}

TEST_F(TextOutputTest, NamesWhatItCannotCreate) {
  for (fs::path path : {directory_, directory_ / "none" / "out.txt"}) {
    auto output = TextOutput::open(path.string());
    ASSERT_FALSE(output);
    EXPECT_EQ(output.error().code, ErrorCode::kIo);
    EXPECT_TRUE(output.error().message.starts_with(path.string() + ": ")) << output.error().message;
  }
}

}  // namespace
}  // namespace duet::runner
