#include "memory/plan_picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace duet::memory {
namespace {

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) result.push_back(line);
  return result;
}

// The cells of a picture: what follows the address in each row.
std::vector<std::string> cells(const std::string& text, size_t rows) {
  std::vector<std::string> result = lines(text);
  result = {result.begin() + 2, result.begin() + 2 + static_cast<ptrdiff_t>(rows)};
  for (auto& line : result) line = line.substr(line.find_last_of(' ') + 1);
  return result;
}

TEST(Picture, ShowsASmallPlanCellByCell) {
  std::vector<BufferRequest> requests = {{"early", 128, 0, 2}, {"late", 128, 3, 5}, {"above", 64, 1, 3}};
  ArenaPlan plan;
  plan.offsets = {0, 0, 128};
  plan.arena_bytes = plan.lower_bound_bytes = 192;
  plan.naive_bytes = 320;
  EXPECT_EQ(draw_plan(requests, plan),
            "arena 192 bytes, lower bound 192, without sharing 320\n"
            "address steps 0..5, 6 cells across\n"
            "      0 AAABBB\n"
            "     64 AAABBB\n"
            "    128 .CCC..\n"
            "A early: 128 bytes at 0, steps 0..2\n"
            "B late: 128 bytes at 0, steps 3..5\n"
            "C above: 64 bytes at 128, steps 1..3\n");
}

TEST(Picture, ShowsABufferThatIsThinnerThanACell) {
  std::vector<BufferRequest> requests = {{"huge", 1 << 20, 0, 999}, {"tiny", 1, 500, 500}};
  ArenaPlan plan = *plan_arena(requests);
  std::string text = draw_plan(requests, plan);
  size_t seen = 0;
  for (const auto& row : cells(text, 16)) seen += static_cast<size_t>(std::ranges::count(row, 'B'));
  EXPECT_EQ(seen, 1u) << text;
}

TEST(Picture, StaysWithinItsLimits) {
  std::vector<BufferRequest> requests;
  for (int i = 0; i < 500; ++i) requests.push_back({"b", static_cast<uint64_t>(i % 7 * 1000 + 1), i, i + 3});
  ArenaPlan plan = *plan_arena(requests);
  std::string text = draw_plan(requests, plan, 40, 8);
  for (const auto& row : cells(text, 8)) EXPECT_EQ(row.size(), 40u) << text;
  EXPECT_EQ(lines(text).size(), 2u + 8 + 62 + 1)
      << "two head lines, rows, a letter each, one line for the others";
  EXPECT_NE(text.find("+ 438 smaller buffers"), std::string::npos) << text;
}

TEST(Picture, ShowsEveryBufferOfALadder) {
  std::vector<BufferRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back({"rung", static_cast<uint64_t>(64 << (i % 5)), i, i + 2});
  ArenaPlan plan = *plan_arena(requests);
  std::string text = draw_plan(requests, plan), all;
  for (const auto& row : cells(text, 16)) all += row;
  for (char letter : std::string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz01234567"))
    EXPECT_NE(all.find(letter), std::string::npos) << letter << "\n" << text;
}

TEST(Picture, OfNothingIsOneLine) {
  EXPECT_EQ(lines(draw_plan({}, ArenaPlan{})).size(), 1u);
  std::vector<BufferRequest> requests = {{"empty", 0, 0, 4}};
  EXPECT_EQ(lines(draw_plan(requests, *plan_arena(requests))).size(), 1u);
}

TEST(Picture, SurvivesAbsurdSizesAndLimits) {
  std::vector<BufferRequest> requests = {{"vast", UINT64_MAX - 63, INT32_MIN, INT32_MAX}};
  ArenaPlan plan = *plan_arena(requests);
  std::string text = draw_plan(requests, plan);
  for (const auto& row : cells(text, 16)) EXPECT_EQ(row, std::string(72, 'A')) << text;
  EXPECT_NE(text.find("\n 1152921504606846972 AAA"), std::string::npos) << "the second sixteenth\n" << text;
  EXPECT_NE(draw_plan(requests, plan, 0, -3).find(" A\n"), std::string::npos);
}

}  // namespace
}  // namespace duet::memory
