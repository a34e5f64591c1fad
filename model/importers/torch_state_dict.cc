// torch/_utils.py, _rebuild_tensor_v2(storage, storage_offset, size, stride, requires_grad, backward_hooks),
// and torch/serialization.py, persistent_id: ('storage', class, key, location, elements[, view]).
#include "model/importers/torch_state_dict.h"

#include <map>
#include <optional>
#include <set>

#include "model/importers/json_file.h"

namespace duet::model {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMaxRank = 8;

struct StorageClass {
  std::string_view name;
  StoredType type;
};

constexpr StorageClass kStorageClasses[] = {
    {"torch.FloatStorage", StoredType::kF32},        {"torch.HalfStorage", StoredType::kF16},
    {"torch.BFloat16Storage", StoredType::kBF16},    {"torch.DoubleStorage", StoredType::kF64},
    {"torch.LongStorage", StoredType::kI64},         {"torch.IntStorage", StoredType::kI32},
    {"torch.ShortStorage", StoredType::kI16},        {"torch.CharStorage", StoredType::kI8},
    {"torch.ByteStorage", StoredType::kU8},          {"torch.BoolStorage", StoredType::kBool},
    {"torch.ComplexFloatStorage", StoredType::kC64},
};

class Reader {
 public:
  Reader(std::string_view where, const Pickle& pickle) : where_(where), pickle_(pickle) {}

  Result<TorchStateDict> read() {
    const PickleValue& root = pickle_[pickle_.root];
    if (root.kind != Kind::kDict)
      return failure(ErrorCode::kUnsupported, "{}: the pickle holds {}, expected a state dict", where_,
                     describe(root));
    std::set<std::string_view> names;
    for (size_t i = 0; i < root.items.size(); i += 2) {
      const PickleValue& name = pickle_[root.items[i]];
      if (name.kind != Kind::kString)
        return failure(ErrorCode::kUnsupported,
                       "{}: a key of the state dict is {}, expected the name of a tensor", where_,
                       describe(name));
      tensor_ = name.text;
      if (!names.insert(tensor_).second) return fail("the state dict has this name twice");
      DUET_TRY(read_tensor(pickle_[root.items[i + 1]]));
    }
    return std::move(result_);
  }

 private:
  Status read_tensor(const PickleValue& value) {
    if (value.kind != Kind::kTensor)
      return fail(ErrorCode::kUnsupported, "is {}, expected a tensor: is this a state dict?",
                  describe(value));
    if (value.items.size() < 6)
      return fail("has {} arguments of _rebuild_tensor_v2, expected at least 6", value.items.size());
    TorchTensor tensor;
    tensor.name = tensor_;
    DUET_ASSIGN(tensor.storage, read_storage(pickle_[value.items[0]]));
    DUET_ASSIGN(tensor.offset, unsigned_integer("storage offset", pickle_[value.items[1]]));
    DUET_ASSIGN(tensor.shape, sizes("shape", pickle_[value.items[2]]));
    DUET_ASSIGN(tensor.strides, sizes("strides", pickle_[value.items[3]]));
    DUET_TRY(check_range(tensor));
    result_.tensors.push_back(std::move(tensor));
    return {};
  }

  // The index of the storage, which may have been seen before.
  Result<size_t> read_storage(const PickleValue& value) {
    if (value.kind != Kind::kPersistentId) return fail("its storage is {}", describe(value));
    const PickleValue& id = pickle_[value.items[0]];
    if (id.kind != Kind::kTuple || id.items.size() < 5 || id.items.size() > 6)
      return fail("its storage has the id {}, expected a tuple of 5 or 6", describe(id));
    const PickleValue &tag = pickle_[id.items[0]], &storage_class = pickle_[id.items[1]],
                      &key = pickle_[id.items[2]];
    if (tag.kind != Kind::kString || tag.text != "storage")
      return fail("its storage's id begins with {}, expected \"storage\"", describe(tag));
    const StorageClass* known = nullptr;
    for (const StorageClass& each : kStorageClasses)
      if (storage_class.kind == Kind::kGlobal && storage_class.text == each.name) known = &each;
    if (!known) return fail("its storage is of the class {}", describe(storage_class));
    if (key.kind != Kind::kString) return fail("its storage's key is {}, expected a text", describe(key));
    if (id.items.size() == 6 && pickle_[id.items[5]].kind != Kind::kNone)
      return fail(
          ErrorCode::kUnsupported,
          "its storage is a view of another one, as very old releases of PyTorch wrote: save the model "
          "anew");
    TorchStorage storage{std::string(key.text), known->type, 0, 0};
    DUET_ASSIGN(storage.elements, unsigned_integer("number of elements", pickle_[id.items[4]]));
    std::optional<uint64_t> bytes = stored_bytes(storage.type, {&storage.elements, 1});
    if (!bytes)
      return fail("its storage {} has {} elements of {}, expected a size below 2^64 bytes",
                  in_quotes(storage.key), storage.elements, name_of(storage.type));
    storage.bytes = *bytes;
    return index_of(std::move(storage));
  }

  Result<size_t> index_of(TorchStorage storage) {
    auto [place, added] = storage_index_.try_emplace(storage.key, result_.storages.size());
    if (added) {
      result_.storages.push_back(std::move(storage));
      return place->second;
    }
    const TorchStorage& earlier = result_.storages[place->second];
    if (earlier.type != storage.type || earlier.elements != storage.elements)
      return fail("its storage {} has {} elements of {}, but {} of {} for an earlier tensor",
                  in_quotes(storage.key), storage.elements, name_of(storage.type), earlier.elements,
                  name_of(earlier.type));
    return place->second;
  }

  Result<uint64_t> unsigned_integer(const char* what, const PickleValue& value) const {
    if (value.kind != Kind::kInteger || value.integer < 0)
      return fail("its {} is {}, expected an integer from 0", what, describe(value));
    return static_cast<uint64_t>(value.integer);
  }

  Result<std::vector<uint64_t>> sizes(const char* what, const PickleValue& value) const {
    if (value.kind != Kind::kTuple || value.items.size() > kMaxRank)
      return fail("its {} is {}, expected a tuple of at most {}", what, describe(value), kMaxRank);
    std::vector<uint64_t> list;
    for (uint32_t item : value.items) {
      DUET_ASSIGN(uint64_t size, unsigned_integer(what, pickle_[item]));
      list.push_back(size);
    }
    return list;
  }

  // All elements lie in the storage, and the tensor is no larger than that.
  Status check_range(TorchTensor& tensor) const {
    if (tensor.shape.size() != tensor.strides.size())
      return fail("has the shape {} and the strides {}, expected as many of each",
                  describe_shape(tensor.shape), describe_shape(tensor.strides));
    const TorchStorage& storage = result_.storages[tensor.storage];
    std::optional<uint64_t> elements = element_count(tensor.shape);
    bool fits = elements.has_value();
    uint64_t last = tensor.offset;  // element of the storage
    for (size_t i = 0; fits && *elements != 0 && i < tensor.shape.size(); ++i) {
      uint64_t step = 0;
      fits = !__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) &&
             !__builtin_add_overflow(last, step, &last);
    }
    if (!fits || (*elements == 0 ? last > storage.elements : last >= storage.elements))
      return fail("shape {}, strides {} and offset {} reach beyond the {} elements of its storage {}",
                  describe_shape(tensor.shape), describe_shape(tensor.strides), tensor.offset,
                  storage.elements, in_quotes(storage.key));
    if (*elements > storage.elements)
      return fail(ErrorCode::kUnsupported,
                  "shape {} and strides {} repeat elements of its storage of {}: save a contiguous copy",
                  describe_shape(tensor.shape), describe_shape(tensor.strides), storage.elements);
    tensor.elements = *elements;
    return {};
  }

  template <class... Args>
  tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    return failure(code, "{}: tensor {}: {}", where_, in_quotes(tensor_),
                   fmt::format(format, std::forward<Args>(args)...));
  }

  template <class... Args>
  tl::unexpected<Error> fail(fmt::format_string<Args...> format, Args&&... args) const {
    return fail(ErrorCode::kBadInput, format, std::forward<Args>(args)...);
  }

  std::string_view where_;
  const Pickle& pickle_;
  std::string_view tensor_;  // the one that is being read
  TorchStateDict result_;
  std::map<std::string, size_t> storage_index_;
};

}  // namespace

Result<TorchStateDict> read_torch_state_dict(std::string_view where, const Pickle& pickle) {
  return Reader(where, pickle).read();
}

}  // namespace duet::model
