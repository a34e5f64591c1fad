// torch/serialization.py, _save and _legacy_save.
#include "model/importers/torch_checkpoint.h"

#include <bit>
#include <cstring>
#include <map>

#include "memory/arena.h"
#include "memory/git_lfs.h"
#include "model/importers/json_file.h"
#include "model/importers/torch_state_dict.h"
#include "model/importers/torch_zip.h"
#include "model/importers/unpickler.h"

namespace duet::model {
namespace {

using Bytes = std::span<const std::byte>;

// Tied tables have four names at most, positions two.
constexpr uint64_t kMostViews = 8;

// What both forms come down to.
struct Contents {
  TorchStateDict state;
  std::vector<Bytes> storages;  // by index in state.storages
};

// ---- the zip form ----

Result<Contents> read_zip(const std::string& path, Bytes file, TorchCheckpoint& checkpoint) {
  DUET_ASSIGN(TorchZip archive, TorchZip::open(path, file));
  const uint64_t pickle_bytes = archive.size("data.pkl").value();
  if (pickle_bytes > kMaxPickleBytes)  // before memory is taken for it: a sparse file costs nothing
    return failure(ErrorCode::kBadInput, "{}: a pickle of {} bytes, expected at most {}", path, pickle_bytes,
                   kMaxPickleBytes);
  std::vector<std::byte> text(pickle_bytes);
  DUET_TRY(archive.read("data.pkl", text));
  DUET_ASSIGN(Pickle pickle, unpickle(path, text));
  Contents contents;
  DUET_ASSIGN(contents.state, read_torch_state_dict(path, pickle));
  uint64_t total = 0;
  for (const TorchStorage& storage : contents.state.storages) {
    std::string entry = "data/" + storage.key;
    std::optional<uint64_t> bytes = archive.size(entry);
    if (!bytes)
      return failure(ErrorCode::kBadInput, "{}: storage {} has no entry {} in the zip archive", path,
                     in_quotes(storage.key), in_quotes(entry));
    if (*bytes != storage.bytes)
      return failure(ErrorCode::kBadInput,
                     "{}: storage {} has {} bytes in the zip archive, expected {} for {} elements of {}",
                     path, in_quotes(storage.key), *bytes, storage.bytes, storage.elements,
                     name_of(storage.type));
    total += *bytes;  // all entries together are no larger than the file
    DUET_TRY(memory::check_memory(total, path + ": its storages"));
    auto& copy = checkpoint.owned.emplace_back(std::make_unique_for_overwrite<std::byte[]>(*bytes));
    DUET_TRY(archive.read(entry, {copy.get(), *bytes}));
    contents.storages.emplace_back(copy.get(), *bytes);
  }
  return contents;
}

// ---- the form before torch 1.6 ----

// 0x1950a86a20f9469cfc6c, little-endian.
constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kProtocolVersion = 1001;

class LegacyReader {
 public:
  LegacyReader(const std::string& path, Bytes file) : path_(path), rest_(file) {}

  Result<Contents> read() {
    DUET_TRY(read_preamble());
    Contents contents;
    DUET_ASSIGN(Pickle state, next("the state dict"));
    DUET_ASSIGN(contents.state, read_torch_state_dict(path_, state));
    DUET_ASSIGN(Pickle keys, next("the list of storages"));
    DUET_TRY(read_storages(keys, contents));
    return contents;
  }

 private:
  Result<Pickle> next(const char* what) {
    DUET_ASSIGN(Pickle pickle, unpickle(fmt::format("{}: {}", path_, what), rest_));
    rest_ = rest_.subspan(pickle.bytes);
    return pickle;
  }

  Status read_preamble() {
    auto magic = unpickle(path_, rest_);
    if (!magic || (*magic)[magic->root].kind != PickleValue::Kind::kLongInteger ||
        (*magic)[magic->root].text != kMagic)
      return failure(ErrorCode::kBadInput,
                     "{}: neither a zip archive nor the older form of torch.save: is this a PyTorch "
                     "checkpoint?",
                     path_);
    rest_ = rest_.subspan(magic->bytes);
    DUET_ASSIGN(Pickle version, next("the protocol version"));
    const PickleValue& number = version[version.root];
    if (number.kind != PickleValue::Kind::kInteger || number.integer != kProtocolVersion)
      return failure(ErrorCode::kUnsupported, "{}: the protocol version is {}, expected {}", path_,
                     describe(number), kProtocolVersion);
    DUET_ASSIGN(Pickle system, next("the description of the system"));
    const PickleValue& fields = system[system.root];
    for (size_t i = 0; fields.kind == PickleValue::Kind::kDict && i < fields.items.size(); i += 2)
      if (system[fields.items[i]].text == "little_endian" &&
          system[fields.items[i + 1]].kind == PickleValue::Kind::kFalse)
        return failure(ErrorCode::kUnsupported,
                       "{}: its numbers are big-endian: save the model on another machine", path_);
    return {};
  }

  Status read_storages(const Pickle& keys, Contents& contents) {
    const PickleValue& list = keys[keys.root];
    if (list.kind != PickleValue::Kind::kList)
      return failure(ErrorCode::kBadInput, "{}: the storages are listed by {}, expected a list", path_,
                     describe(list));
    std::map<std::string_view, size_t> missing;
    for (const TorchStorage& storage : contents.state.storages) missing.emplace(storage.key, missing.size());
    std::map<std::string_view, size_t> index = missing;
    contents.storages.resize(index.size());
    for (uint32_t item : list.items) {
      const PickleValue& key = keys[item];
      auto place = key.kind == PickleValue::Kind::kString ? index.find(key.text) : index.end();
      if (place == index.end())
        return failure(ErrorCode::kBadInput, "{}: the list of storages has {}, which no tensor uses", path_,
                       describe(key));
      if (missing.erase(key.text) == 0)
        return failure(ErrorCode::kBadInput, "{}: the list of storages has {} twice", path_, describe(key));
      DUET_ASSIGN(contents.storages[place->second], next_storage(contents.state.storages[place->second]));
    }
    if (!missing.empty())
      return failure(ErrorCode::kBadInput, "{}: storage {} is missing in the list of storages", path_,
                     in_quotes(missing.begin()->first));
    if (!rest_.empty())
      return failure(ErrorCode::kBadInput, "{}: {} bytes after the last storage, expected none", path_,
                     rest_.size());
    return {};
  }

  Result<Bytes> next_storage(const TorchStorage& storage) {
    static_assert(std::endian::native == std::endian::little);
    uint64_t elements = 0;
    if (rest_.size() < sizeof elements) return truncated(storage, sizeof elements);
    std::memcpy(&elements, rest_.data(), sizeof elements);
    rest_ = rest_.subspan(sizeof elements);
    if (elements != storage.elements)
      return failure(ErrorCode::kBadInput, "{}: storage {} has {} elements, but {} in the state dict", path_,
                     in_quotes(storage.key), elements, storage.elements);
    if (rest_.size() < storage.bytes) return truncated(storage, storage.bytes);
    Bytes bytes = rest_.first(storage.bytes);
    rest_ = rest_.subspan(storage.bytes);
    return bytes;
  }

  tl::unexpected<Error> truncated(const TorchStorage& storage, uint64_t wanted) const {
    return failure(ErrorCode::kBadInput,
                   "{}: storage {} needs {} bytes, but {} are left: the file is truncated", path_,
                   in_quotes(storage.key), wanted, rest_.size());
  }

  const std::string& path_;
  Bytes rest_;  // of the file
};

// ---- tensors ----

bool is_contiguous(const TorchTensor& tensor) {
  uint64_t stride = 1;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.shape[i];
  }
  return true;
}

// A row-major copy. REQUIRES: at least one element.
std::unique_ptr<std::byte[]> gather(const TorchTensor& tensor, Bytes storage, size_t element_bytes) {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(tensor.elements * element_bytes);
  std::vector<uint64_t> at(tensor.shape.size(), 0);
  uint64_t from = tensor.offset;
  for (uint64_t to = 0; to < tensor.elements; ++to) {
    std::memcpy(&copy[to * element_bytes], &storage[from * element_bytes], element_bytes);
    for (size_t i = at.size(); i-- > 0;) {
      from += tensor.strides[i];
      if (++at[i] < tensor.shape[i]) break;
      from -= tensor.strides[i] * tensor.shape[i];
      at[i] = 0;
    }
  }
  return copy;
}

Status add_tensors(const std::string& path, uint64_t file_bytes, Contents& contents,
                   TorchCheckpoint& checkpoint) {
  uint64_t total = 0;  // no sum overflows: each is at most the file's size, and stops at 8 times that
  for (TorchTensor& tensor : contents.state.tensors) {
    const TorchStorage& storage = contents.state.storages[tensor.storage];
    auto element_bytes = static_cast<size_t>(bits_of(storage.type) / 8);
    uint64_t bytes = tensor.elements * element_bytes;
    total += bytes;
    if (total > kMostViews * file_bytes)
      return failure(
          ErrorCode::kBadInput,
          "{}: up to tensor {} the tensors take {} bytes of a file of {}: too many share a storage", path,
          in_quotes(tensor.name), total, file_bytes);
    StoredTensor stored{storage.type, tensor.shape, {}};
    if (tensor.elements == 0) {
    } else if (is_contiguous(tensor)) {
      stored.bytes = contents.storages[tensor.storage].subspan(tensor.offset * element_bytes, bytes);
    } else {
      auto& copy =
          checkpoint.owned.emplace_back(gather(tensor, contents.storages[tensor.storage], element_bytes));
      stored.bytes = {copy.get(), bytes};
    }
    checkpoint.tensors.emplace(std::move(tensor.name), std::move(stored));
  }
  return {};
}

}  // namespace

Result<TorchCheckpoint> parse_torch_checkpoint(const std::string& path, std::span<const std::byte> file) {
  std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  DUET_TRY(memory::refuse_git_lfs_pointer(path, text));
  TorchCheckpoint checkpoint;
  Contents contents;
  if (text.starts_with("PK")) {
    DUET_ASSIGN(contents, read_zip(path, file, checkpoint));
  } else {
    DUET_ASSIGN(contents, LegacyReader(path, file).read());
    checkpoint.views_file = true;
  }
  DUET_TRY(add_tensors(path, file.size(), contents, checkpoint));
  return checkpoint;
}

Result<TorchCheckpointFile> TorchCheckpointFile::open(const std::string& path) {
  DUET_ASSIGN(memory::MappedFile file, memory::MappedFile::open(path));
  TorchCheckpointFile opened;
  DUET_ASSIGN(opened.checkpoint_, parse_torch_checkpoint(path, file.bytes()));
  if (opened.checkpoint_.views_file) opened.file_ = std::move(file);
  return opened;
}

}  // namespace duet::model
