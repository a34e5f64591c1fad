// PyTorch checkpoints by hand: opcodes of pickles, the zip archive of torch.save and its older form. Each
// piece is a string, so that a test may spoil any of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {

// ---- pickles: each function gives the opcodes that push one value ----

std::string little_endian(uint64_t number, size_t bytes);
std::string pickled(const std::string& text);
std::string pickled(int64_t integer);
std::string pickled_tuple(const std::vector<std::string>& items);
std::string pickled_sizes(const std::vector<int64_t>& sizes);
std::string pickled_global(const std::string& module, const std::string& name);

struct StorageId {
  std::string storage_class = "FloatStorage";
  std::string key = "0";
  int64_t elements = 0;
  bool legacy = false;  // with a sixth part, None
};
std::string pickled_storage(const StorageId& id);
std::string pickled_tensor(const std::string& storage, int64_t offset, const std::vector<int64_t>& shape,
                           const std::vector<int64_t>& strides);

using NamedValues = std::vector<std::pair<std::string, std::string>>;
std::string pickled_dict(const NamedValues& values);  // an OrderedDict
std::string whole_pickle(const std::string& value);   // with PROTO 2 and STOP

// ---- files ----

struct ZipEntry {
  std::string name;
  std::string data;
  uint16_t method = 0;                  // stored
  uint16_t flags = 0;                   // bit 0: encrypted
  uint64_t claimed_bytes = UINT64_MAX;  // the data's
};
std::string zip_bytes(const std::vector<ZipEntry>& entries, bool zip64 = false);

using Storages = std::vector<std::pair<std::string, std::string>>;  // key, bytes

// m/data.pkl, m/byteorder, m/data/KEY, ...
std::string torch_zip_bytes(const std::string& pickle, const Storages& storages);

// `element_bytes` of all storages.
std::string torch_legacy_bytes(const std::string& pickle, const Storages& storages, size_t element_bytes = 4);

// A checkpoint that holds every tensor in a storage of its own.
std::string torch_zip_bytes(const SmallTensors& tensors);

}  // namespace duet::model
