// Reads a pickle as data. It knows the opcodes and the names that a PyTorch state dict needs, refuses every
// other by name, and never calls anything: a rebuilt tensor is a value that lists its arguments.
// Opcodes: https://github.com/python/cpython/blob/main/Lib/pickletools.py
//
// Values lie in one array and refer to each other by index, so that neither nesting nor cycles cost
// recursion; texts are views of the pickle. Memory: at most some 70 bytes for each byte of the pickle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"

namespace duet::model {

// A state dict takes about 110 bytes a tensor; this is room for forty thousand.
inline constexpr size_t kMaxPickleBytes = 4 << 20;

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kFalse,
    kTrue,
    kInteger,
    kLongInteger,   // above 64 bits: two's complement, little-endian, in `text`
    kString,        // arbitrary bytes in `text`
    kGlobal,        // "torch.FloatStorage" in `text`
    kTuple,         // `items`
    kList,          // `items`; may contain itself
    kDict,          // keys and values in turn in `items`; may contain itself. An OrderedDict too
    kPersistentId,  // items[0] is the id
    kTensor,        // the arguments of torch._utils._rebuild_tensor_v2 in `items`
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;
  std::string_view text;
  std::vector<uint32_t> items;  // indices of values
};

// "the integer 7", "the text "x"", "a list": for messages.
std::string describe(const PickleValue& value);

struct Pickle {
  std::deque<PickleValue> values;  // a deque: growing it copies nothing
  uint32_t root = 0;
  size_t bytes = 0;  // up to and with STOP

  const PickleValue& operator[](uint32_t index) const { return values[index]; }
};

// The pickle at the beginning of `stream`, which must outlive the result. `where` begins every message.
// Errors: kBadInput for a damaged stream; kUnsupported for an opcode or a name that is not known here.
Result<Pickle> unpickle(std::string_view where, std::span<const std::byte> stream);

}  // namespace duet::model
