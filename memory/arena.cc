#include "memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "memory/mapped_file.h"

namespace duet::memory {
namespace {

std::optional<uint64_t> leading_number(std::string_view text) {
  auto begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  auto result = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

// The number in a line "key   123 kB" of a text, in the unit of the text.
std::optional<uint64_t> number_after(std::string_view text, std::string_view key) {
  auto at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  return leading_number(text.substr(at + key.size()));
}

std::optional<uint64_t> number_in_file(const std::string& path) {
  auto text = read_file(path, 4096);
  if (!text) return std::nullopt;
  return leading_number(*text);  // "max" is no number: no limit
}

void tighten(std::optional<uint64_t>& limit, std::optional<uint64_t> other) {
  if (other) limit = limit ? std::min(*limit, *other) : *other;
}

// Control groups v2: /proc/self/cgroup holds "0::/a/b"; the limits of /a/b, /a and / all hold. v1 has one
// file.
std::optional<uint64_t> control_group_limit() {
  std::optional<uint64_t> limit;
  tighten(limit, number_in_file("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  auto groups = read_file("/proc/self/cgroup", 1 << 16);
  std::string group;
  if (groups) {
    auto at = groups->find("0::/");
    if (at != std::string::npos) group = groups->substr(at + 3, groups->find('\n', at) - at - 3);
  }
  while (true) {
    tighten(limit, number_in_file("/sys/fs/cgroup" + group + "/memory.max"));
    auto slash = group.rfind('/');
    if (slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

std::string describe(const MachineMemory& memory) {
  std::string text = fmt::format("{} bytes of memory", memory.physical_bytes);
  if (memory.available_bytes) text += fmt::format(", {} of them available", *memory.available_bytes);
  if (memory.control_group_bytes && *memory.control_group_bytes < memory.physical_bytes)
    text += fmt::format(", and this process is limited to {}", *memory.control_group_bytes);
  return text;
}

}  // namespace

uint64_t MachineMemory::limit_bytes() const {
  return std::min(physical_bytes, control_group_bytes.value_or(physical_bytes));
}

MachineMemory machine_memory() {
  MachineMemory memory;
  memory.physical_bytes =
      static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (auto text = read_file("/proc/meminfo", 1 << 16)) {
    if (auto kib = number_after(*text, "MemAvailable:")) memory.available_bytes = *kib * 1024;
  }
  memory.control_group_bytes = control_group_limit();
  return memory;
}

Status check_memory(uint64_t bytes, std::string_view what) {
  if (bytes < (1u << 20)) return {};  // not worth reading three files for
  MachineMemory memory = machine_memory();
  if (bytes <= memory.limit_bytes()) return {};
  return failure(ErrorCode::kOutOfMemory,
                 "{} would need {} bytes, and this machine has {}: choose smaller limits", what, bytes,
                 describe(memory));
}

Result<Arena> Arena::create(uint64_t bytes) {
  if (bytes == 0) return Arena();
  DUET_TRY(check_memory(bytes, "an arena"));
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    int problem = errno;  // describing the machine reads files
    return failure(ErrorCode::kOutOfMemory, "cannot map an arena of {} bytes: {}; this machine has {}", bytes,
                   std::strerror(problem), describe(machine_memory()));
  }
  return Arena(static_cast<std::byte*>(data), bytes);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  Arena old(std::move(*this));
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Arena::~Arena() {
  if (data_) ::munmap(data_, bytes_);
}

}  // namespace duet::memory
