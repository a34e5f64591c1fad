#include "tests/model/importers/torch_bytes.h"

#include <array>

namespace duet::model {
namespace {

uint32_t crc32(const std::string& data) {
  uint32_t crc = ~0u;
  for (char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

std::string u16(uint64_t number) { return little_endian(number, 2); }
std::string u32(uint64_t number) { return little_endian(number, 4); }
std::string u64(uint64_t number) { return little_endian(number, 8); }

// The part that local and central headers have in common: flags to the lengths of name and extra field.
std::string zip_header(const ZipEntry& entry, uint64_t bytes, bool zip64, size_t extra) {
  std::string size = u32(zip64 ? 0xFFFFFFFF : bytes);
  return u16(entry.flags) + u16(entry.method) + u32(0) + u32(crc32(entry.data)) + size + size +
         u16(entry.name.size()) + u16(extra);
}

const char* storage_class(const std::string& dtype) {
  return dtype == "F32"    ? "FloatStorage"
         : dtype == "F16"  ? "HalfStorage"
         : dtype == "BF16" ? "BFloat16Storage"
                           : "DoubleStorage";
}

}  // namespace

std::string little_endian(uint64_t number, size_t bytes) {
  return std::string(reinterpret_cast<const char*>(&number), bytes);
}

std::string pickled(const std::string& text) { return "X" + u32(text.size()) + text; }

std::string pickled(int64_t integer) {
  if (integer == static_cast<int32_t>(integer)) return "J" + u32(static_cast<uint64_t>(integer));
  return "\x8a\x08" + u64(static_cast<uint64_t>(integer));
}

std::string pickled_tuple(const std::vector<std::string>& items) {
  std::string opcodes = "(";
  for (const std::string& item : items) opcodes += item;
  return opcodes + "t";
}

std::string pickled_sizes(const std::vector<int64_t>& sizes) {
  std::vector<std::string> items;
  for (int64_t size : sizes) items.push_back(pickled(size));
  return pickled_tuple(items);
}

std::string pickled_global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

std::string pickled_storage(const StorageId& id) {
  std::vector<std::string> parts = {pickled("storage"), pickled_global("torch", id.storage_class),
                                    pickled(id.key), pickled("cpu"), pickled(id.elements)};
  if (id.legacy) parts.push_back("N");
  return pickled_tuple(parts) + "Q";
}

std::string pickled_tensor(const std::string& storage, int64_t offset, const std::vector<int64_t>& shape,
                           const std::vector<int64_t>& strides) {
  return pickled_global("torch._utils", "_rebuild_tensor_v2") +
         pickled_tuple({storage, pickled(offset), pickled_sizes(shape), pickled_sizes(strides), "\x89",
                        pickled_dict({})}) +
         "R";
}

std::string pickled_dict(const NamedValues& values) {
  std::string opcodes = pickled_global("collections", "OrderedDict") + ")R(";
  for (const auto& [name, value] : values) opcodes += pickled(name) + value;
  return opcodes + "u";
}

std::string whole_pickle(const std::string& value) { return "\x80\x02" + value + "."; }

std::string zip_bytes(const std::vector<ZipEntry>& entries, bool zip64) {
  std::string file, directory;
  for (const ZipEntry& entry : entries) {
    uint64_t bytes = entry.claimed_bytes == UINT64_MAX ? entry.data.size() : entry.claimed_bytes;
    std::string sizes = zip64 ? u16(1) + u16(16) + u64(bytes) + u64(bytes) : "";
    std::string place = zip64 ? u16(1) + u16(24) + u64(bytes) + u64(bytes) + u64(file.size()) : "";
    directory += "PK\x01\x02" + u16(45) + u16(45) + zip_header(entry, bytes, zip64, place.size()) + u16(0) +
                 u16(0) + u16(0) + u32(0) + u32(zip64 ? 0xFFFFFFFF : file.size()) + entry.name + place;
    file += "PK\x03\x04" + u16(45) + zip_header(entry, bytes, zip64, sizes.size()) + entry.name + sizes +
            entry.data;
  }
  uint64_t at = file.size(), count = entries.size();
  file += directory;
  if (zip64) {
    uint64_t end64 = file.size();
    file += "PK\x06\x06" + u64(44) + u16(45) + u16(45) + u32(0) + u32(0) + u64(count) + u64(count) +
            u64(directory.size()) + u64(at);
    file += "PK\x06\x07" + u32(0) + u64(end64) + u32(1);
    return file + "PK\x05\x06" + std::string(4, '\0') + std::string(12, '\xFF') + u16(0);
  }
  return file + "PK\x05\x06" + u32(0) + u16(count) + u16(count) + u32(directory.size()) + u32(at) + u16(0);
}

std::string torch_zip_bytes(const std::string& pickle, const Storages& storages) {
  std::vector<ZipEntry> entries = {{"m/data.pkl", pickle}, {"m/byteorder", "little"}};
  for (const auto& [key, bytes] : storages) entries.push_back({"m/data/" + key, bytes});
  return zip_bytes(entries);
}

std::string torch_legacy_bytes(const std::string& pickle, const Storages& storages, size_t element_bytes) {
  std::string keys = "](", data;
  for (const auto& [key, bytes] : storages) {
    keys += pickled(key);
    data += u64(bytes.size() / element_bytes) + bytes;
  }
  return whole_pickle("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + whole_pickle("M\xe9\x03") +
         whole_pickle("}(" + pickled("little_endian") + "\x88u") + pickle + whole_pickle(keys + "e") + data;
}

std::string torch_zip_bytes(const SmallTensors& tensors) {
  NamedValues values;
  Storages storages;
  for (const auto& [name, tensor] : tensors) {
    std::vector<int64_t> shape(tensor.shape.begin(), tensor.shape.end()), strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    StorageId id{storage_class(tensor.dtype), std::to_string(storages.size()), 1};
    for (int64_t size : shape) id.elements *= size;
    values.emplace_back(name, pickled_tensor(pickled_storage(id), 0, shape, strides));
    storages.emplace_back(id.key, tensor.data);
  }
  return torch_zip_bytes(whole_pickle(pickled_dict(values)), storages);
}

}  // namespace duet::model
