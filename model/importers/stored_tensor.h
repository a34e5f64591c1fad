// A tensor as a checkpoint file stores it: element type, shape and raw bytes. Readers of file formats yield a
// map of these; checkpoint.h turns them into floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"

namespace duet::model {

// Every element type that safetensors defines, so that a refused one can be named.
enum class StoredType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

std::optional<StoredType> stored_type(
    std::string_view name);  // by its name in a safetensors file, e.g. "BF16"
const char* name_of(StoredType type);
int bits_of(StoredType type);

struct StoredTensor {
  StoredType type = StoredType::kF32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;  // row-major, little-endian, not necessarily aligned
};

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// "[2, 3]"; "[]" for a scalar.
std::string describe_shape(std::span<const uint64_t> shape);

// The product of the dimensions; nothing when it does not fit 64 bits.
std::optional<uint64_t> element_count(std::span<const uint64_t> shape);

// Bytes that `shape` takes in `type`; nothing on overflow, or when sub-byte elements do not fill whole bytes.
std::optional<uint64_t> stored_bytes(StoredType type, std::span<const uint64_t> shape);

// Exact for every bit pattern: subnormals, infinities, and NaNs with their payload.
float float_from_f16(uint16_t bits);
float float_from_bf16(uint16_t bits);

// The elements of an F32, F16 or BF16 tensor. Errors: kUnsupported for another type, kBadInput for NaN or
// infinity, with `file` and `name` in the message.
Result<std::vector<float>> to_finite_floats(const StoredTensor& tensor, std::string_view file,
                                            std::string_view name);

}  // namespace duet::model
