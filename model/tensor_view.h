// A tensor in memory that somebody else owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/dtype.h"

namespace duet::model {

inline constexpr int kMaxRank = 4;

// Row-major elements and the sizes that they have in the call at hand.
struct TensorView {
  std::byte* data = nullptr;  // null: an optional operand left out
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t dims[kMaxRank] = {};

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  uint64_t bytes() const { return static_cast<uint64_t>(elements()) * element_bytes(dtype); }
  int64_t rows() const { return rank == 0 ? 1 : dims[0]; }
  int64_t columns() const {
    return dims[0] == 0 || rank == 0 ? 1 : elements() / dims[0];
  }  // elements in a row
};

}  // namespace duet::model
