#include "memory/processors.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

#include "memory/mapped_file.h"

namespace duet::memory {
namespace {

// Numbers of a text separated by spaces; what is none ("max", "-1") ends them.
std::vector<uint64_t> numbers_in(const std::string& path) {
  std::vector<uint64_t> numbers;
  auto text = read_file(path, 4096);
  if (!text) return numbers;
  const char *at = text->data(), *end = at + text->size();
  for (uint64_t value; at < end; ++at) {
    auto [stop, problem] = std::from_chars(at, end, value);
    if (problem != std::errc()) break;
    numbers.push_back(value);
    at = stop;
  }
  return numbers;
}

std::optional<double> quotient(const std::vector<uint64_t>& quota, const std::vector<uint64_t>& period) {
  if (quota.empty() || period.empty() || period.back() == 0) return std::nullopt;
  return static_cast<double>(quota.front()) / static_cast<double>(period.back());
}

// Version 2 has "quota period" in one file, version 1 two files.
std::optional<double> quota_of(const std::string& folder) {
  auto both = numbers_in(folder + "/cpu.max");
  if (both.size() == 2) return quotient(both, both);
  return quotient(numbers_in(folder + "/cpu.cfs_quota_us"), numbers_in(folder + "/cpu.cfs_period_us"));
}

// The limits of /a/b, /a and / all hold.
void tighten_upwards(const std::string& mount, std::string group, std::optional<double>& tightest) {
  while (true) {
    if (auto quota = quota_of(mount + group)) tightest = std::min(tightest.value_or(*quota), *quota);
    auto slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

std::optional<double> processor_quota(const std::string& root, const std::string& groups) {
  std::optional<double> tightest;
  std::string text = read_file(groups, 1 << 16).value_or("");
  text += "\n0::\n0:cpu:\n";  // where a container sees its own group as the root
  // A line is "number:controllers:/group"; version 2 has number 0 and no controllers.
  for (size_t from = 0; from < text.size();) {
    size_t end = text.find('\n', from);
    std::string line = text.substr(from, end - from);
    from = end + 1;
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty())
      tighten_upwards(root, group, tightest);
    else if (("," + controllers + ",").find(",cpu,") != std::string::npos)
      tighten_upwards(root + "/" + controllers, group, tightest);
  }
  return tightest;
}

int available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = ::sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());
  if (auto quota = processor_quota(); quota && *quota < count) count = static_cast<int>(std::ceil(*quota));
  return std::max(count, 1);
}

}  // namespace duet::memory
