#include "runner/elements.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace duet::runner {
namespace {

using model::DType;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
bool put(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof value);
  return true;
}

template <class T>
bool store_whole(Number number, int64_t least, int64_t most, std::byte* to) {
  if (const double* real = std::get_if<double>(&number)) {
    if (!(*real >= -0x1p63 && *real < 0x1p63) || *real != std::trunc(*real)) return false;
    number = static_cast<int64_t>(*real);
  }
  int64_t value = std::get<int64_t>(number);
  return value >= least && value <= most && put(static_cast<T>(value), to);
}

template <class T>
bool store_real(Number number, std::byte* to) {
  if (const int64_t* whole = std::get_if<int64_t>(&number)) {
    auto real = static_cast<T>(*whole);
    return static_cast<__int128>(real) == *whole && put(real, to);
  }
  double value = std::get<double>(number);
  if constexpr (sizeof(T) < sizeof value) {
    // What is nearer to the largest float than to twice 2^127 rounds to it: 3.4028235e+38, as it is printed.
    constexpr double kLargest = std::numeric_limits<T>::max(), kHalfStep = 0x1p103;
    if (std::isfinite(value) && std::abs(value) >= kLargest + kHalfStep) return false;
    if (std::isfinite(value)) value = std::clamp(value, -kLargest, kLargest);
  }
  return put(static_cast<T>(value), to);
}

template <class T>
std::string real_text(T value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + "." : text;
}

}  // namespace

Number load_element(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kF32:
      return double{load<float>(from)};
    case DType::kF64:
      return load<double>(from);
    case DType::kI32:
      return int64_t{load<int32_t>(from)};
    case DType::kI64:
      return load<int64_t>(from);
    case DType::kU8:
    case DType::kBool:
      break;
  }
  return int64_t{load<uint8_t>(from)};
}

bool store_element(DType dtype, Number number, std::byte* to) {
  switch (dtype) {
    case DType::kF32:
      return store_real<float>(number, to);
    case DType::kF64:
      return store_real<double>(number, to);
    case DType::kI32:
      return store_whole<int32_t>(number, INT32_MIN, INT32_MAX, to);
    case DType::kI64:
      return store_whole<int64_t>(number, INT64_MIN, INT64_MAX, to);
    case DType::kU8:
      return store_whole<uint8_t>(number, 0, 255, to);
    case DType::kBool:
      return store_whole<uint8_t>(number, 0, 1, to);
  }
  return false;
}

std::string element_text(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::kF32:
      return real_text(load<float>(from));
    case DType::kF64:
      return real_text(load<double>(from));
    case DType::kBool:
      return load<uint8_t>(from) == 0 ? "false" : "true";
    default:
      return std::to_string(std::get<int64_t>(load_element(dtype, from)));
  }
}

Result<Tensor> convert(Tensor tensor, DType dtype) {
  if (tensor.dtype == dtype && dtype != DType::kBool) return tensor;  // a bool may hold a 2
  size_t from_bytes = model::element_bytes(tensor.dtype), to_bytes = model::element_bytes(dtype);
  size_t count = tensor.data.size() / from_bytes;
  Tensor result{dtype, tensor.dims, std::vector<std::byte>(count * to_bytes)};
  for (size_t i = 0; i < count; ++i) {
    const std::byte* from = tensor.data.data() + i * from_bytes;
    if (!store_element(dtype, load_element(tensor.dtype, from), result.data.data() + i * to_bytes))
      return failure(ErrorCode::kBadInput, "element {} is {} ({}), which does not fit {}", i,
                     tensor.dtype == DType::kBool ? std::to_string(std::to_integer<int>(*from))
                                                  : element_text(tensor.dtype, from),
                     model::dtype_name(tensor.dtype), model::dtype_name(dtype));
  }
  return result;
}

}  // namespace duet::runner
