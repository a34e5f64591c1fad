// Lines from descriptors: what ends one, what there is already, and how much one may hold.
#include "runner/line_input.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/runner/golden.h"

namespace duet::runner {
namespace {

using Kind = LineInput::Next::Kind;

// A file under a name, open for reading as "/dev/fd/N" would be: a pipe whose other end the test holds.
struct Pipe {
  int write_end = -1;
  std::string path;
  Pipe() {
    static int count = 0;
    path = (golden::scratch_directory() / ("fifo" + std::to_string(++count))).string();
    EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
    write_end = ::open(path.c_str(), O_RDWR);  // open() of the reader must not wait
  }
  ~Pipe() { close(); }
  void write(std::string_view text) {
    EXPECT_EQ(::write(write_end, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close() {
    if (write_end >= 0) ::close(std::exchange(write_end, -1));
  }
};

std::string line_of(Result<LineInput::Next> next) {
  if (!next) return "error: " + next.error().message;
  if (next->kind == Kind::kEnd) return "<end>";
  if (next->kind == Kind::kNothingYet) return "<nothing yet>";
  return next->line + (next->ended_by_feed ? "\n" : "");
}

TEST(LineInput, OfTextEndsLinesAtFeedsOnly) {
  auto input = LineInput::of_text(std::string("a\r\n\n\vb\0c\n", 9) + "last");
  EXPECT_EQ(line_of(input.next(true)), "a\r\n");
  EXPECT_EQ(line_of(input.next(true)), "\n");
  EXPECT_EQ(line_of(input.next(true)), std::string("\vb\0c\n", 5));
  EXPECT_EQ(line_of(input.next(true)), "last");
  EXPECT_EQ(line_of(input.next(true)), "<end>");
  EXPECT_EQ(line_of(input.next(true)), "<end>");
}

TEST(LineInput, OfAPipeDoesNotWaitForTheRestOfALine) {
  Pipe pipe;
  auto input = LineInput::open(pipe.path);
  ASSERT_TRUE(input);
  EXPECT_EQ(line_of(input->next(false)), "<nothing yet>");
  pipe.write("one\ntwo\nthr");
  EXPECT_EQ(line_of(input->next(false)), "one\n");
  EXPECT_EQ(line_of(input->next(false)), "two\n");
  EXPECT_EQ(line_of(input->next(false)), "<nothing yet>");
  pipe.write("ee\n");
  EXPECT_EQ(line_of(input->next(false)), "three\n");
  pipe.write("four");
  EXPECT_EQ(line_of(input->next(false)), "<nothing yet>");
  pipe.close();
  EXPECT_EQ(line_of(input->next(false)), "four");
  EXPECT_EQ(line_of(input->next(false)), "<end>");
}

TEST(LineInput, TakesTheLongestLineAndRefusesALongerOne) {
  auto path = (golden::scratch_directory() / "long.txt").string();
  auto open_with = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    auto input = LineInput::open(path);
    EXPECT_TRUE(input);
    return std::move(*input);
  };
  std::string longest(LineInput::kMaxLineBytes, 'x');
  auto input = open_with("a\n" + longest + "\nb\n");
  EXPECT_EQ(line_of(input.next(true)), "a\n");
  EXPECT_EQ(line_of(input.next(true)).size(), longest.size() + 1);
  EXPECT_EQ(line_of(input.next(true)), "b\n");
  for (const char* end : {"", "\n", "\nb\n"}) {
    auto longer = open_with("a\n" + longest + "x" + end);
    EXPECT_EQ(line_of(longer.next(true)), "a\n");
    auto next = longer.next(true);
    ASSERT_FALSE(next);
    EXPECT_EQ(next.error().code, ErrorCode::kBadInput);
    EXPECT_NE(next.error().message.find(path + ": line 2 is longer than 16777216 bytes"), std::string::npos);
  }
}

TEST(LineInput, KnowsItsFile) {
  auto path = golden::scratch_directory() / "here.txt", link = golden::scratch_directory() / "link.txt";
  std::ofstream(path) << "x";
  std::filesystem::create_symlink(path, link);
  auto input = LineInput::open(path.string());
  ASSERT_TRUE(input);
  EXPECT_TRUE(input->is_file(path.string()));
  EXPECT_TRUE(input->is_file(link.string()));
  EXPECT_FALSE(input->is_file("/"));
  EXPECT_FALSE(input->is_file(path.string() + ".part"));
  EXPECT_FALSE(LineInput::of_text("x").is_file(path.string()));
  EXPECT_FALSE(input->is_terminal());
}

TEST(LineInput, NamesWhatItCannotOpen) {
  for (auto path : {golden::scratch_directory() / "none.txt", golden::scratch_directory()}) {
    auto input = LineInput::open(path.string());
    ASSERT_FALSE(input);
    EXPECT_EQ(input.error().code, ErrorCode::kIo);
    EXPECT_TRUE(input.error().message.starts_with(path.string() + ": ")) << input.error().message;
  }
}

}  // namespace
}  // namespace duet::runner
