#include "memory/git_lfs.h"

#include <gtest/gtest.h>

namespace duet::memory {
namespace {

std::string message(std::string_view content) {
  auto status = refuse_git_lfs_pointer("m.bin", content);
  return status ? "" : status.error().message;
}

const std::string kVersion = "version https://git-lfs.github.com/spec/v1\n";

TEST(GitLfs, APointerIsExplainedWithTheRealSize) {
  EXPECT_EQ(message(kVersion + "oid sha256:4d7a214614ab\nsize 310020341\n"),
            "m.bin: is a Git LFS pointer; the real file has 310,020,341 bytes: run `git lfs pull` in its "
            "repository, or download the file");
  EXPECT_NE(message(kVersion + "size 12").find("has 12 bytes"), std::string::npos);
  EXPECT_NE(message(kVersion + "size 1234\n").find("has 1,234 bytes"), std::string::npos);
}

TEST(GitLfs, APointerWithoutAUsableSizeIsStillOne) {
  for (const char* rest : {"", "size\n", "size x\n", "size -1\n", "size 99999999999999999999999\n"})
    EXPECT_TRUE(message(kVersion + rest).starts_with("m.bin: is a Git LFS pointer: run")) << rest;
}

TEST(GitLfs, OtherFilesAreNone) {
  for (const char* content : {"", "version", "{\"a\": 1}", "version https://example.org/\nsize 5\n"})
    EXPECT_EQ(message(content), "") << content;
}

}  // namespace
}  // namespace duet::memory
