// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: lines of "key value", "version" first.
#include "memory/git_lfs.h"

#include <charconv>
#include <cstdint>

namespace duet::memory {
namespace {

constexpr size_t kMostPointerBytes = 1024;  // says the specification

// ", the real file has 310,020,341 bytes"; empty when the pointer does not say.
std::string describe_size(std::string_view pointer) {
  constexpr std::string_view kSize = "\nsize ";
  size_t at = pointer.find(kSize);
  if (at == std::string_view::npos) return "";
  uint64_t bytes = 0;
  const char* digits = pointer.data() + at + kSize.size();
  if (std::from_chars(digits, pointer.data() + pointer.size(), bytes).ec != std::errc()) return "";
  std::string text = fmt::to_string(bytes);
  for (size_t place = text.size(); place > 3;) text.insert(place -= 3, ",");
  return fmt::format("; the real file has {} bytes", text);
}

}  // namespace

Status refuse_git_lfs_pointer(std::string_view path, std::string_view content) {
  if (!content.starts_with("version https://git-lfs.github.com/spec/")) return {};
  return failure(ErrorCode::kBadInput,
                 "{}: is a Git LFS pointer{}: run `git lfs pull` in its repository, or download the file",
                 path, describe_size(content.substr(0, kMostPointerBytes)));
}

}  // namespace duet::memory
