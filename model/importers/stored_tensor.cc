// Element types of checkpoint files and their exact conversion to float.
#include "model/importers/stored_tensor.h"

#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace duet::model {
namespace {

struct TypeRow {
  StoredType type;
  const char* name;
  int bits;
};

constexpr TypeRow kTypes[] = {
    {StoredType::kBool, "BOOL", 8},      {StoredType::kF4, "F4", 4},
    {StoredType::kF6E2M3, "F6_E2M3", 6}, {StoredType::kF6E3M2, "F6_E3M2", 6},
    {StoredType::kU8, "U8", 8},          {StoredType::kI8, "I8", 8},
    {StoredType::kF8E5M2, "F8_E5M2", 8}, {StoredType::kF8E4M3, "F8_E4M3", 8},
    {StoredType::kF8E8M0, "F8_E8M0", 8}, {StoredType::kI16, "I16", 16},
    {StoredType::kU16, "U16", 16},       {StoredType::kF16, "F16", 16},
    {StoredType::kBF16, "BF16", 16},     {StoredType::kI32, "I32", 32},
    {StoredType::kU32, "U32", 32},       {StoredType::kF32, "F32", 32},
    {StoredType::kC64, "C64", 64},       {StoredType::kF64, "F64", 64},
    {StoredType::kI64, "I64", 64},       {StoredType::kU64, "U64", 64},
};

const TypeRow& row_of(StoredType type) {
  for (const TypeRow& row : kTypes)
    if (row.type == type) return row;
  DUET_CHECK(!"a type without a row");
  return kTypes[0];
}

template <class Stored, class Convert>
std::vector<float> convert_all(std::span<const std::byte> bytes, Convert convert) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof stored);
    values[i] = convert(stored);
  }
  return values;
}

}  // namespace

std::optional<StoredType> stored_type(std::string_view name) {
  for (const TypeRow& row : kTypes)
    if (row.name == name) return row.type;
  return std::nullopt;
}

const char* name_of(StoredType type) { return row_of(type).name; }
int bits_of(StoredType type) { return row_of(type).bits; }

std::string describe_shape(std::span<const uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<uint64_t> element_count(std::span<const uint64_t> shape) {
  uint64_t count = 1;
  for (uint64_t dimension : shape)
    if (__builtin_mul_overflow(count, dimension, &count)) return std::nullopt;
  return count;
}

std::optional<uint64_t> stored_bytes(StoredType type, std::span<const uint64_t> shape) {
  std::optional<uint64_t> count = element_count(shape);
  uint64_t bits = 0;
  if (!count || __builtin_mul_overflow(*count, static_cast<uint64_t>(bits_of(type)), &bits) || bits % 8 != 0)
    return std::nullopt;
  return bits / 8;
}

float float_from_f16(uint16_t bits) {
  uint32_t sign = (bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 31u;
  uint32_t mantissa = bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));  // infinity or NaN
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float magnitude =
      static_cast<float>(mantissa) * 0x1p-24f;  // zero or subnormal: exact, and normal as a float
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

Result<std::vector<float>> to_finite_floats(const StoredTensor& tensor, std::string_view file,
                                            std::string_view name) {
  std::vector<float> values;
  switch (tensor.type) {
    case StoredType::kF32:
      values = convert_all<float>(tensor.bytes, [](float value) { return value; });
      break;
    case StoredType::kF16:
      values = convert_all<uint16_t>(tensor.bytes, float_from_f16);
      break;
    case StoredType::kBF16:
      values = convert_all<uint16_t>(tensor.bytes, float_from_bf16);
      break;
    default:
      return failure(ErrorCode::kUnsupported, "{}: tensor {} has dtype {}, expected F32, F16 or BF16", file,
                     name, name_of(tensor.type));
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return failure(ErrorCode::kBadInput,
                     "{}: tensor {} of shape {} holds {} at element {}, expected finite weights", file, name,
                     describe_shape(tensor.shape), values[i], i);
  return values;
}

}  // namespace duet::model
