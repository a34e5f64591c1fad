// The cells are filled by exact areas (bytes x steps), not by sampling points: a thin buffer is never
// skipped.
#include "memory/plan_picture.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace duet::memory {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
constexpr char kFree = '.', kOthers = '+';

// A picture of the rectangle steps x addresses.
struct Grid {
  int64_t first_step = 0, steps = 0;  // the steps shown: first_step .. first_step + steps - 1
  uint64_t bytes = 0;                 // the addresses shown: 0 .. bytes - 1
  int64_t columns = 0, rows = 0;

  // Cell boundaries: column c shows the steps column_begin(c) .. column_begin(c + 1) - 1; the same for rows.
  int64_t column_begin(int64_t c) const { return steps * c / columns; }
  uint64_t row_begin(int64_t r) const {  // bytes * r / rows without overflow
    auto n = static_cast<uint64_t>(rows), k = static_cast<uint64_t>(r);
    return bytes / n * k + bytes % n * k / n;
  }
};

Grid make_grid(std::span<const BufferRequest> requests, const ArenaPlan& plan, int max_columns,
               int max_rows) {
  Grid grid;
  int64_t first = requests.front().first, last = requests.front().last;
  for (const auto& r : requests) {
    first = std::min<int64_t>(first, r.first);
    last = std::max<int64_t>(last, r.last);
  }
  grid.first_step = first;
  grid.steps = last - first + 1;
  grid.bytes = plan.arena_bytes;
  grid.columns = std::min<int64_t>(grid.steps, std::max(max_columns, 1));
  grid.rows = static_cast<int64_t>(
      std::min<uint64_t>((grid.bytes + kBufferAlignment - 1) / kBufferAlignment, std::max(max_rows, 1)));
  return grid;
}

struct Cell {
  size_t request = SIZE_MAX;  // SIZE_MAX: free
  double area = 0;            // of that request in this cell, bytes x steps
};

// Calls visit(column, row, area) for each cell that a buffer touches.
template <class Visit>
void for_each_cell(const Grid& grid, const BufferRequest& request, uint64_t offset, Visit visit) {
  int64_t begin = request.first - grid.first_step, end = int64_t{request.last} - grid.first_step + 1;
  for (int64_t r = 0; r < grid.rows; ++r) {
    uint64_t low = std::max(offset, grid.row_begin(r)),
             high = std::min(offset + request.bytes, grid.row_begin(r + 1));
    if (low >= high) continue;
    for (int64_t c = 0; c < grid.columns; ++c) {
      int64_t left = std::max(begin, grid.column_begin(c)), right = std::min(end, grid.column_begin(c + 1));
      if (left < right) visit(c, r, static_cast<double>(right - left) * static_cast<double>(high - low));
    }
  }
}

std::vector<Cell> fill_cells(std::span<const BufferRequest> requests, const ArenaPlan& plan, const Grid& grid,
                             const std::vector<size_t>& by_size) {
  std::vector<Cell> cells(static_cast<size_t>(grid.columns * grid.rows));
  auto cell = [&](int64_t c, int64_t r) -> Cell& { return cells[static_cast<size_t>(r * grid.columns + c)]; };
  for (size_t i : by_size) {
    for_each_cell(grid, requests[i], plan.offsets[i], [&](int64_t c, int64_t r, double area) {
      if (area > cell(c, r).area) cell(c, r) = {i, area};
    });
  }
  // A buffer that won no cell takes the first one of its own from a buffer that keeps others.
  std::vector<int64_t> won(requests.size(), 0);
  for (const Cell& c : cells)
    if (c.request != SIZE_MAX) ++won[c.request];
  for (size_t i : by_size) {
    for_each_cell(grid, requests[i], plan.offsets[i], [&](int64_t c, int64_t r, double area) {
      if (won[i] > 0 || won[cell(c, r).request] < 2) return;
      --won[cell(c, r).request];
      cell(c, r) = {i, area};
      ++won[i];
    });
  }
  return cells;
}

}  // namespace

std::string draw_plan(std::span<const BufferRequest> requests, const ArenaPlan& plan, int max_columns,
                      int max_rows) {
  DUET_CHECK(plan.offsets.size() == requests.size());
  std::string text = fmt::format("arena {} bytes, lower bound {}, without sharing {}\n", plan.arena_bytes,
                                 plan.lower_bound_bytes, plan.naive_bytes);
  if (requests.empty() || plan.arena_bytes == 0) return text;
  Grid grid = make_grid(requests, plan, max_columns, max_rows);

  std::vector<size_t> by_size;  // largest first, then in program order; empty buffers are not drawn
  for (size_t i = 0; i < requests.size(); ++i)
    if (requests[i].bytes > 0) by_size.push_back(i);
  std::ranges::stable_sort(by_size,
                           [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });
  std::vector<char> letter(requests.size(), kOthers);
  size_t lettered = std::min(by_size.size(), kLetters.size());
  for (size_t k = 0; k < lettered; ++k) letter[by_size[k]] = kLetters[k];

  std::vector<Cell> cells = fill_cells(requests, plan, grid, by_size);
  size_t width = std::max<size_t>(fmt::formatted_size("{}", plan.arena_bytes), 7);
  text += fmt::format("{:>{}} steps {}..{}, {} cells across\n", "address", width, grid.first_step,
                      grid.first_step + grid.steps - 1, grid.columns);
  for (int64_t r = 0; r < grid.rows; ++r) {
    text += fmt::format("{:>{}} ", grid.row_begin(r), width);
    for (int64_t c = 0; c < grid.columns; ++c) {
      size_t i = cells[static_cast<size_t>(r * grid.columns + c)].request;
      text += i == SIZE_MAX ? kFree : letter[i];
    }
    text += '\n';
  }
  for (size_t k = 0; k < lettered; ++k) {
    const BufferRequest& r = requests[by_size[k]];
    text += fmt::format("{} {}: {} bytes at {}, steps {}..{}\n", kLetters[k], r.name, r.bytes,
                        plan.offsets[by_size[k]], r.first, r.last);
  }
  if (lettered < by_size.size()) {
    uint64_t bytes = 0;
    for (size_t k = lettered; k < by_size.size(); ++k) bytes += requests[by_size[k]].bytes;
    text +=
        fmt::format("{} {} smaller buffers: {} bytes together\n", kOthers, by_size.size() - lettered, bytes);
  }
  return text;
}

}  // namespace duet::memory
