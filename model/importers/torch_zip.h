// The zip archives of torch.save (since torch 1.6): NAME/data.pkl, NAME/data/KEY for each storage,
// NAME/byteorder. Their entries are stored as they are; anything else is refused, hence no archive unpacks to
// more than its own size. libzip reads them, and its errors end here.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "memory/error.h"

struct zip;  // libzip's archive

namespace duet::model {

class TorchZip {
 public:
  // `file` must outlive the object; `path` is for messages. Errors: kBadInput for a damaged archive or one
  // that torch.save did not write; kUnsupported for compressed or encrypted entries and big-endian numbers.
  static Result<TorchZip> open(const std::string& path, std::span<const std::byte> file);

  // The bytes of an entry below NAME/, "data.pkl" or "data/0"; nothing when there is none.
  std::optional<uint64_t> size(std::string_view entry) const;

  // REQUIRES: size(entry) == into.size(). Errors: kBadInput when the entry is damaged (its checksum
  // included).
  Status read(std::string_view entry, std::span<std::byte> into) const;

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  struct Entry {
    uint64_t index;
    uint64_t bytes;
  };

  Status list_entries(uint64_t file_bytes);
  Status check_byte_order() const;

  std::string path_;
  std::unique_ptr<zip, Close> archive_;
  std::map<std::string, Entry, std::less<>> entries_;  // by full name
  std::string folder_;                                 // "NAME/"
};

}  // namespace duet::model
