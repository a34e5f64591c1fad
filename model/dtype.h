// Element types of tensors in programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace duet::model {

enum class DType : uint8_t { kF32, kF64, kI32, kI64, kU8, kBool };

size_t element_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // "f32", "f64", "i32", "i64", "u8", "bool"
std::optional<DType> parse_dtype(std::string_view name);

}  // namespace duet::model
