#include "model/importers/torch_zip.h"

#include <zip.h>

#include "model/importers/json_file.h"

namespace duet::model {
namespace {

struct ZipError {
  ZipError() { zip_error_init(&error); }
  ~ZipError() { zip_error_fini(&error); }
  zip_error_t error;
};

}  // namespace

void TorchZip::Close::operator()(zip* archive) const { zip_discard(archive); }

Result<TorchZip> TorchZip::open(const std::string& path, std::span<const std::byte> file) {
  ZipError problem;
  zip_source_t* source = zip_source_buffer_create(file.data(), file.size(), 0, &problem.error);
  zip_t* archive = source ? zip_open_from_source(source, ZIP_RDONLY, &problem.error) : nullptr;
  if (!archive) {
    zip_source_free(source);  // may be null
    return failure(ErrorCode::kBadInput, "{}: not a readable zip archive ({}): is it truncated?", path,
                   zip_error_strerror(&problem.error));
  }
  TorchZip opened;
  opened.path_ = path;
  opened.archive_.reset(archive);
  DUET_TRY(opened.list_entries(file.size()));
  DUET_TRY(opened.check_byte_order());
  return opened;
}

Status TorchZip::list_entries(uint64_t file_bytes) {
  uint64_t total = 0;
  auto count = static_cast<uint64_t>(zip_get_num_entries(archive_.get(), 0));
  for (uint64_t i = 0; i < count; ++i) {
    zip_stat_t stat;
    zip_stat_init(&stat);
    const char* raw_name = zip_get_name(archive_.get(), i, ZIP_FL_ENC_RAW);
    constexpr uint64_t kNeeded =
        ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (!raw_name || zip_stat_index(archive_.get(), i, 0, &stat) != 0 || (stat.valid & kNeeded) != kNeeded)
      return failure(ErrorCode::kBadInput, "{}: entry {} of the zip archive is damaged", path_, i);
    std::string name = raw_name;
    if (stat.encryption_method != ZIP_EM_NONE)
      return failure(ErrorCode::kUnsupported,
                     "{}: entry {} of the zip archive is encrypted, expected plain ones as torch.save writes "
                     "them",
                     path_, in_quotes(name));
    if (stat.comp_method != ZIP_CM_STORE)
      return failure(ErrorCode::kUnsupported,
                     "{}: entry {} of the zip archive is compressed (method {}), expected stored ones as "
                     "torch.save writes them",
                     path_, in_quotes(name), stat.comp_method);
    if (stat.size != stat.comp_size || __builtin_add_overflow(total, stat.size, &total) || total > file_bytes)
      return failure(
          ErrorCode::kBadInput,
          "{}: entry {} of the zip archive claims {} bytes, more than the file of {} bytes can hold", path_,
          in_quotes(name), stat.size, file_bytes);
    if (i == 0) folder_ = name.substr(0, name.find('/') + 1);
    if (!entries_.try_emplace(name, Entry{i, stat.size}).second)
      return failure(ErrorCode::kBadInput, "{}: the zip archive has entry {} twice", path_, in_quotes(name));
  }
  if (!size("data.pkl"))
    return failure(ErrorCode::kBadInput, "{}: a zip archive without {}, expected one that torch.save wrote",
                   path_, in_quotes(folder_ + "data.pkl"));
  return {};
}

Status TorchZip::check_byte_order() const {
  std::optional<uint64_t> bytes = size("byteorder");  // older releases wrote none
  if (!bytes) return {};
  constexpr std::string_view kLittle = "little";
  std::string order(kLittle.size(), '\0');
  if (*bytes == order.size()) DUET_TRY(read("byteorder", std::as_writable_bytes(std::span(order))));
  if (order != kLittle)
    return failure(ErrorCode::kUnsupported,
                   "{}: its byteorder is not \"little\": save the model on another "
                   "machine",
                   path_);
  return {};
}

std::optional<uint64_t> TorchZip::size(std::string_view entry) const {
  auto place = entries_.find(fmt::format("{}{}", folder_, entry));
  if (place == entries_.end()) return std::nullopt;
  return place->second.bytes;
}

Status TorchZip::read(std::string_view entry, std::span<std::byte> into) const {
  auto place = entries_.find(fmt::format("{}{}", folder_, entry));
  DUET_CHECK(place != entries_.end() && place->second.bytes == into.size());
  auto damaged = [&](const char* why) {
    return failure(ErrorCode::kBadInput, "{}: entry {} of the zip archive is damaged: {}", path_,
                   in_quotes(place->first), why);
  };
  zip_file_t* file = zip_fopen_index(archive_.get(), place->second.index, 0);
  if (!file) return damaged(zip_strerror(archive_.get()));
  std::unique_ptr<zip_file_t, int (*)(zip_file_t*)> closed(file, zip_fclose);
  std::byte surplus;
  // The read past the end makes libzip compare the checksum.
  if (zip_fread(file, into.data(), into.size()) != static_cast<zip_int64_t>(into.size()) ||
      zip_fread(file, &surplus, 1) != 0)
    return damaged(zip_file_strerror(file));
  return {};
}

}  // namespace duet::model
