// Quotas of processor time, read from made-up control groups.
#include "memory/processors.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace duet::memory {
namespace {

class Groups : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "duet_groups_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  std::optional<double> quota(const std::string& groups) const {
    write("groups", groups);
    return processor_quota(root_.string(), (root_ / "groups").string());
  }
  std::filesystem::path root_;
};

TEST_F(Groups, OfVersion2LimitWithAllTheirParents) {
  EXPECT_EQ(quota("0::/a/b\n"), std::nullopt);
  write("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), std::nullopt);
  write("a/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 1.5);
  EXPECT_EQ(quota("0::/a\n"), 1.5);
  EXPECT_EQ(quota("0::/c\n"), std::nullopt);
  write("a/b/cpu.max", "40000 200000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 0.2);
  EXPECT_EQ(quota("0::/a\n"), 1.5);
}

TEST_F(Groups, OfAContainerThatSeesItsOwnAsTheRootLimit) {
  write("cpu.max", "200000 100000\n");
  EXPECT_EQ(quota("0::/not/visible/here\n"), 2);
  EXPECT_EQ(quota(""), 2);
  EXPECT_EQ(processor_quota(root_.string(), (root_ / "none").string()), 2);
}

TEST_F(Groups, OfVersion1Limit) {
  write("cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n");
  write("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("4:memory:/docker\n3:cpu,cpuacct:/docker\n"), std::nullopt);
  write("cpu,cpuacct/docker/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(quota("4:memory:/docker\n3:cpu,cpuacct:/docker\n"), 2.5);
  write("cpu/cpu.cfs_quota_us", "100000\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("3:cpuset:/docker\n"), 1);
}

TEST_F(Groups, ThatMakeNoSenseDoNotLimit) {
  for (const char* text : {"", "\n", "max", "100000", "5 0\n", "x y\n", "-5 100\n"}) {
    write("cpu.max", text);
    EXPECT_EQ(quota("0::/\n"), std::nullopt) << text;
  }
  EXPECT_EQ(quota(":::\nno group\n0:\n"), std::nullopt);
}

TEST(AvailableProcessors, AreNotMoreThanTheThreadMayRunOn) {
  EXPECT_GE(available_processors(), 1);
  EXPECT_LE(available_processors(), static_cast<int>(std::thread::hardware_concurrency()));
  std::thread([] {
    cpu_set_t all, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i)
      if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(available_processors(), 1);
  }).join();
}

}  // namespace
}  // namespace duet::memory
