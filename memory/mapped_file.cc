#include "memory/mapped_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "memory/arena.h"
#include "memory/mapping_guard.h"

namespace duet::memory {
namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() { close(); }
  void close() {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
};

Result<struct stat> open_file(const std::string& path, int flags, Descriptor& file) {
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (file.fd < 0) return failure(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0)
    return failure(ErrorCode::kIo, "{}: cannot stat: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return failure(ErrorCode::kIo, "{}: is a directory, expected a file", path);
  return info;
}

Status lock_pages(const std::string& path, const void* data, size_t size) {
  if (::mlock(data, size) == 0) return {};
  int problem = errno;
  struct rlimit limit {};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return failure(
      ErrorCode::kOutOfMemory,
      "{}: cannot lock its {} bytes in memory: {}; the limit of locked memory is {}, raise it with "
      "`ulimit -l {}` or load the file with mmap",
      path, size, std::strerror(problem),
      limit.rlim_cur == RLIM_INFINITY ? "none" : fmt::format("{} bytes", limit.rlim_cur),
      (size + 1023) / 1024);
}

Status read_all(const std::string& path, int fd, std::byte* to, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = ::read(fd, to + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    if (n == 0)
      return failure(ErrorCode::kIo, "{}: shrank from {} to {} bytes while it was read", path, size, done);
    done += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace

struct MappedFile::Mapping {
  explicit Mapping(std::string file_path) : path(std::move(file_path)) {
    std::lock_guard lock(mutex);
    all.insert(this);
  }
  ~Mapping() {
    guard.release();
    if (data) ::munmap(data, size);
    std::lock_guard lock(mutex);
    all.erase(this);
  }
  Mapping(const Mapping&) = delete;

  Status map(size_t bytes, LoadMode mode);
  Status check_whole() const;

  static inline std::mutex mutex;
  static inline std::set<const Mapping*> all;

  const std::string path;
  Descriptor file;  // open as long as it is mapped: the path may name another file by then
  MappingGuard guard;
  std::byte* data = nullptr;
  size_t size = 0;
};

Status MappedFile::Mapping::map(size_t bytes, LoadMode mode) {
  bool copy = mode == LoadMode::kRead;
  if (uint64_t most = copy ? machine_memory().limit_bytes() : bytes; bytes > most)
    return failure(ErrorCode::kOutOfMemory,
                   "{}: a copy takes {} bytes of memory, and this machine has {}; load the file with mmap",
                   path, bytes, most);
  void* mapped = copy ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                      : ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED)
    return failure(copy ? ErrorCode::kOutOfMemory : ErrorCode::kIo, "{}: cannot map {} bytes: {}", path,
                   bytes, std::strerror(errno));
  data = static_cast<std::byte*>(mapped);
  size = bytes;
  if (!copy) {
    guard.watch(data, size);
    return mode == LoadMode::kMlock ? lock_pages(path, data, size) : Status();
  }
  DUET_TRY(read_all(path, file.fd, data, size));
  ::mprotect(data, size, PROT_READ);
  file.close();
  return {};
}

Status MappedFile::Mapping::check_whole() const {
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return {};
  auto now = static_cast<uint64_t>(info.st_size);
  if (now >= size && !guard.faulted()) return {};
  constexpr const char* kAdvice =
      "while it was in use; results cannot be trusted; start again with a whole file (replace files by "
      "renaming, "
      "not by overwriting)";
  if (now >= size) return failure(ErrorCode::kIo, "{}: a part of it could not be read {}", path, kAdvice);
  return failure(ErrorCode::kIo, "{}: shrank from {} to {} bytes {}", path, size, now, kAdvice);
}

Result<MappedFile> MappedFile::open(const std::string& path, LoadMode mode) {
  auto mapping = std::make_unique<Mapping>(path);
  DUET_ASSIGN(auto info,
              open_file(path, O_NONBLOCK, mapping->file));  // a FIFO without a writer must not hang us
  if (!S_ISREG(info.st_mode))
    return failure(ErrorCode::kIo, "{}: not a regular file, cannot be mapped", path);
  if (info.st_size == 0) return failure(ErrorCode::kBadInput, "{}: the file is empty", path);
  DUET_TRY(mapping->map(static_cast<size_t>(info.st_size), mode));
  return MappedFile(std::move(mapping));
}

MappedFile::MappedFile(std::unique_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}
MappedFile::MappedFile(MappedFile&& other) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept = default;
MappedFile::~MappedFile() = default;

std::span<const std::byte> MappedFile::bytes() const {
  return mapping_ ? std::span<const std::byte>(mapping_->data, mapping_->size) : std::span<const std::byte>();
}
const std::string& MappedFile::path() const { return mapping_->path; }
Status MappedFile::check_whole() const { return mapping_->check_whole(); }

Status check_mapped_files() {
  std::lock_guard lock(MappedFile::Mapping::mutex);
  for (const MappedFile::Mapping* mapping : MappedFile::Mapping::all) DUET_TRY(mapping->check_whole());
  return {};
}

namespace {

// A writer of a FIFO may come a little later than its reader.
Status await_writer(const std::string& path, int fd) {
  constexpr int kPatienceMilliseconds = 3000;
  pollfd waiting{fd, POLLIN, 0};
  int ready;
  do ready = ::poll(&waiting, 1, kPatienceMilliseconds);
  while (ready < 0 && errno == EINTR);
  if (ready == 0)
    return failure(ErrorCode::kIo, "{}: a pipe that nobody writes to (waited for {} s)", path,
                   kPatienceMilliseconds / 1000);
  return {};
}

}  // namespace

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  Descriptor file;
  DUET_ASSIGN(auto info, open_file(path, O_NONBLOCK, file));  // a FIFO without a writer must not hang us
  if (S_ISFIFO(info.st_mode)) DUET_TRY(await_writer(path, file.fd));
  ::fcntl(file.fd, F_SETFL, O_RDONLY);  // a writer that is slow is waited for
  if (info.st_size > 0 && static_cast<size_t>(info.st_size) > max_bytes)
    return failure(ErrorCode::kBadInput, "{}: {} bytes, expected at most {}", path, info.st_size, max_bytes);
  std::string text;
  char buffer[65536];
  while (true) {
    ssize_t n = ::read(file.fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    if (n == 0) return text;
    if (text.size() + static_cast<size_t>(n) > max_bytes)
      return failure(ErrorCode::kBadInput, "{}: more than {} bytes", path, max_bytes);
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace duet::memory
