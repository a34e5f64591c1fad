// The header is read by a SAX handler that knows the format's two levels: nothing else is ever stored, so a
// hostile header costs no more memory than its entries.
#include "model/importers/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "memory/git_lfs.h"
#include "model/importers/json_file.h"

namespace duet::model {
namespace {

using nlohmann::json;

constexpr size_t kMaxRank = 8;

struct Entry {
  std::optional<StoredType> type;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;  // [begin, end) from the start of the data
};

using Entries = std::map<std::string, Entry, std::less<>>;

// Receives the header's events; stops at the first one that is out of place, with `error` set.
class HeaderHandler : public nlohmann::json_sax<json> {
 public:
  explicit HeaderHandler(const std::string& path) : path_(path) {}

  Entries entries;
  std::optional<Error> error;

  bool null() override { return refuse_value("null"); }
  bool boolean(bool value) override { return refuse_value(value ? "true" : "false"); }
  bool number_float(number_float_t, const string_t& text) override { return refuse_value(text); }
  bool number_integer(number_integer_t value) override { return refuse_value(fmt::to_string(value)); }
  bool binary(binary_t&) override { return refuse_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kList) return refuse_value(fmt::to_string(value));
    if (list_->size() == kMaxRank)
      return refuse("{}: tensor {}: {} has more than {} elements", path_, in_quotes(tensor_), field_,
                    kMaxRank);
    list_->push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kEntry || field_ != "dtype") return refuse_value(in_quotes(value));
    entry_->type = stored_type(value);
    if (entry_->type) return true;
    error =
        Error{ErrorCode::kUnsupported,
              fmt::format("{}: tensor {}: dtype is {}, expected a safetensors type such as F32, F16 or BF16",
                          path_, in_quotes(tensor_), in_quotes(value))};
    return false;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kStart) return enter(State::kHeader);
    if (state_ == State::kHeader) return enter(tensor_ == "__metadata__" ? State::kMetadata : State::kEntry);
    return refuse_value("an object");
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      if (!entry_->type) return refuse_missing("dtype");
      if (!entry_->shape) return refuse_missing("shape");
      if (!entry_->offsets) return refuse_missing("data_offsets");
    }
    return enter(state_ == State::kHeader ? State::kEnd : State::kHeader);
  }

  bool key(string_t& name) override {
    if (state_ == State::kHeader) return begin_tensor(name);
    if (state_ == State::kEntry) return begin_field(name);
    return true;  // of the metadata
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kEntry || field_ == "dtype") return refuse_value("an array");
    list_ = field_ == "shape" ? &entry_->shape.emplace() : &entry_->offsets.emplace();
    return enter(State::kList);
  }

  bool end_array() override { return enter(State::kEntry); }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("{}: the header is not valid JSON at byte {} of the file", path_, 8 + position);
  }

 private:
  enum class State { kStart, kHeader, kMetadata, kEntry, kList, kEnd };

  bool enter(State state) {
    state_ = state;
    return true;
  }

  bool begin_tensor(const std::string& name) {
    tensor_ = name;
    field_.clear();
    if (name == "__metadata__") {
      if (metadata_seen_) return refuse("{}: the header has __metadata__ twice", path_);
      return metadata_seen_ = true;
    }
    auto [place, added] = entries.try_emplace(name);
    entry_ = &place->second;
    return added || refuse("{}: the header has tensor {} twice", path_, in_quotes(name));
  }

  bool begin_field(const std::string& name) {
    field_ = name;
    bool known = name == "dtype" || name == "shape" || name == "data_offsets";
    if (!known)
      return refuse("{}: tensor {}: unknown field {}, expected dtype, shape and data_offsets", path_,
                    in_quotes(tensor_), in_quotes(name));
    bool twice = name == "dtype" ? entry_->type.has_value()
                                 : (name == "shape" ? entry_->shape : entry_->offsets).has_value();
    return !twice || refuse("{}: tensor {}: {} is given twice", path_, in_quotes(tensor_), name);
  }

  bool refuse_missing(const char* field) {
    return refuse("{}: tensor {}: {} is missing", path_, in_quotes(tensor_), field);
  }

  bool refuse_value(std::string_view value) {
    switch (state_) {
      case State::kStart:
      case State::kEnd:
        return refuse("{}: the header is {}, expected a JSON object", path_, value);
      case State::kHeader:
        return refuse("{}: header entry {} is {}, expected an object", path_, in_quotes(tensor_), value);
      case State::kMetadata:
        return refuse("{}: __metadata__ holds {}, expected strings only", path_, value);
      case State::kEntry:
      case State::kList:
        break;
    }
    return refuse("{}: tensor {}: {} holds {}, expected {}", path_, in_quotes(tensor_), field_, value,
                  field_ == "dtype" ? "a string" : "an array of unsigned integers");
  }

  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    error = Error{ErrorCode::kBadInput, fmt::format(format, std::forward<Args>(args)...)};
    return false;
  }

  const std::string& path_;
  State state_ = State::kStart;
  bool metadata_seen_ = false;
  std::string tensor_, field_;             // the keys last seen on the two levels
  Entry* entry_ = nullptr;                 // of tensor_
  std::vector<uint64_t>* list_ = nullptr;  // the array that is being read
};

// The bytes of one entry, its shape and range checked against each other and against the data.
Result<StoredTensor> place_tensor(const std::string& path, const std::string& name, Entry& entry,
                                  std::span<const std::byte> data) {
  const std::vector<uint64_t>& offsets = *entry.offsets;
  if (offsets.size() != 2)
    return failure(ErrorCode::kBadInput, "{}: tensor {}: data_offsets has {} elements, expected 2", path,
                   in_quotes(name), offsets.size());
  auto [begin, end] = std::pair(offsets[0], offsets[1]);
  if (begin > end || end > data.size())
    return failure(ErrorCode::kBadInput,
                   "{}: tensor {}: data_offsets are [{}, {}], expected a range inside {} bytes of data", path,
                   in_quotes(name), begin, end, data.size());
  std::optional<uint64_t> expected = stored_bytes(*entry.type, *entry.shape);
  if (!expected)
    return failure(ErrorCode::kBadInput,
                   "{}: tensor {}: shape {} of {} is not a whole number of bytes below 2^64", path,
                   in_quotes(name), describe_shape(*entry.shape), name_of(*entry.type));
  if (*expected != end - begin)
    return failure(ErrorCode::kBadInput,
                   "{}: tensor {}: data_offsets [{}, {}] are {} bytes, expected {} for {} of {}", path,
                   in_quotes(name), begin, end, end - begin, *expected, describe_shape(*entry.shape),
                   name_of(*entry.type));
  return StoredTensor{*entry.type, std::move(*entry.shape), data.subspan(begin, end - begin)};
}

// No two tensors share a byte, and the last one ends where the file does.
Status check_ranges(const std::string& path, const StoredTensors& tensors, std::span<const std::byte> data) {
  std::vector<StoredTensors::const_pointer> order;
  for (const auto& named : tensors)
    if (!named.second.bytes.empty()) order.push_back(&named);
  std::sort(order.begin(), order.end(),
            [](auto* a, auto* b) { return a->second.bytes.data() < b->second.bytes.data(); });
  const std::byte* end = data.data();
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i]->second.bytes.data() < end)
      return failure(ErrorCode::kBadInput, "{}: tensors {} and {} overlap in the data", path,
                     in_quotes(order[i - 1]->first), in_quotes(order[i]->first));
    end = order[i]->second.bytes.data() + order[i]->second.bytes.size();
  }
  auto surplus = static_cast<size_t>(data.data() + data.size() - end);
  if (surplus != 0)
    return failure(ErrorCode::kBadInput, "{}: {} bytes after the last tensor's data, expected none", path,
                   surplus);
  return {};
}

// The header's text; the data follows it.
Result<std::span<const std::byte>> header_of(const std::string& path, std::span<const std::byte> file) {
  DUET_TRY(memory::refuse_git_lfs_pointer(path, {reinterpret_cast<const char*>(file.data()), file.size()}));
  if (file.size() < 8)
    return failure(ErrorCode::kBadInput, "{}: {} bytes, expected at least the 8 of a header length", path,
                   file.size());
  static_assert(std::endian::native == std::endian::little);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > file.size() - 8)
    return failure(ErrorCode::kBadInput,
                   "{}: the header length is {}, but {} bytes follow: truncated, or not safetensors", path,
                   header_bytes, file.size() - 8);
  if (header_bytes > kMaxSafetensorsHeaderBytes)
    return failure(ErrorCode::kBadInput, "{}: the header length is {}, expected at most {}", path,
                   header_bytes, kMaxSafetensorsHeaderBytes);
  return file.subspan(8, header_bytes);
}

}  // namespace

Result<StoredTensors> parse_safetensors(const std::string& path, std::span<const std::byte> file) {
  DUET_ASSIGN(std::span<const std::byte> header, header_of(path, file));
  std::span<const std::byte> data = file.subspan(8 + header.size());

  HeaderHandler handler(path);
  auto* text = reinterpret_cast<const char*>(header.data());
  bool parsed = json::sax_parse(text, text + header.size(), &handler);
  if (handler.error) return tl::make_unexpected(*std::move(handler.error));
  DUET_CHECK(parsed);

  StoredTensors tensors;
  for (auto& [name, entry] : handler.entries) {
    DUET_ASSIGN(StoredTensor tensor, place_tensor(path, name, entry, data));
    tensors.emplace(name, std::move(tensor));
  }
  DUET_TRY(check_ranges(path, tensors, data));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  DUET_ASSIGN(memory::MappedFile file, memory::MappedFile::open(path));
  DUET_ASSIGN(StoredTensors tensors, parse_safetensors(path, file.bytes()));
  return SafetensorsFile(std::move(file), std::move(tensors));
}

}  // namespace duet::model
