// The primitives that every operator decomposes into: the canonical, slow meaning of a program. An operator's
// decompose() calls them; what they do (compute, record, export) is the implementation's business.
//   matmul add mul exp erf max sum rsqrt slice concat gather scatter transpose cast
// (erf is here because the exact gelu has no finite form in the others.)
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/tensor_view.h"

namespace duet::model {

class Primitives {
 public:
  struct Value {
    int id = -1;
  };
  virtual ~Primitives() = default;

  virtual Value input(const TensorView& view) = 0;         // f32 or i32 tensor
  virtual Value input_panels(const TensorView& view) = 0;  // [N, K] stored in panels of 16 outputs
  virtual Value constant(float value) = 0;                 // [1]
  virtual std::vector<int64_t> dims(Value a) const = 0;

  virtual Value matmul(Value a, Value b) = 0;  // [m, k] x [k, n]
  // add, mul: same shape, or b is [n] (a row), [m, 1] (a column) or [1].
  virtual Value add(Value a, Value b) = 0;
  virtual Value mul(Value a, Value b) = 0;
  virtual Value exp(Value a) = 0;
  virtual Value erf(Value a) = 0;
  virtual Value rsqrt(Value a) = 0;
  virtual Value maximum(Value a, float floor) = 0;  // elementwise max with a number
  virtual Value max_columns(Value a) = 0;           // [m, n] -> [m, 1]
  virtual Value sum_columns(Value a) = 0;           // [m, n] -> [m, 1]
  virtual Value slice(Value a, int axis, int64_t begin, int64_t end) = 0;
  virtual Value concat(std::span<const Value> parts, int axis) = 0;
  virtual Value gather(Value table, std::span<const int32_t> rows) = 0;  // rows of [n, ...]
  virtual Value transpose(Value a) = 0;                                  // [m, n] -> [n, m]

  // Gives a value the name that the original's layer has: "model.decoder.layers.0.fc1".
  virtual void name(Value a, const std::string& name) = 0;
  // Writes the value to an output of the operator.
  virtual void store(Value a, const TensorView& out) = 0;
  // Values as numbers, for operators whose result is a choice (argmax).
  virtual std::span<const float> read(Value a) const = 0;

  // Compositions.
  Value negate(Value a) { return mul(a, constant(-1)); }
  Value subtract(Value a, Value b) { return add(a, negate(b)); }
  Value reciprocal(Value a) {  // of positive numbers
    Value root = rsqrt(a);
    return mul(root, root);
  }
  Value softmax(Value a) {
    Value e = exp(subtract(a, max_columns(a)));
    return mul(e, reciprocal(sum_columns(e)));
  }
};

// Computes at once, in double between a value's loads and stores of f32: the reference path.
class ReferencePrimitives : public Primitives {
 public:
  using Observer =
      std::function<void(const std::string& name, std::span<const int64_t> dims, std::span<const float>)>;
  explicit ReferencePrimitives(Observer observer = nullptr) : observer_(std::move(observer)) {}

  Value input(const TensorView& view) override;
  Value input_panels(const TensorView& view) override;
  Value constant(float value) override;
  std::vector<int64_t> dims(Value a) const override { return at(a).dims; }
  Value matmul(Value a, Value b) override;
  Value add(Value a, Value b) override;
  Value mul(Value a, Value b) override;
  Value exp(Value a) override;
  Value erf(Value a) override;
  Value rsqrt(Value a) override;
  Value maximum(Value a, float floor) override;
  Value max_columns(Value a) override;
  Value sum_columns(Value a) override;
  Value slice(Value a, int axis, int64_t begin, int64_t end) override;
  Value concat(std::span<const Value> parts, int axis) override;
  Value gather(Value table, std::span<const int32_t> rows) override;
  Value transpose(Value a) override;
  void name(Value a, const std::string& name) override;
  void store(Value a, const TensorView& out) override;
  std::span<const float> read(Value a) const override { return at(a).data; }

 private:
  struct Array {
    std::vector<int64_t> dims;
    std::vector<float> data;
    int64_t rows() const { return dims.empty() ? 1 : dims[0]; }
    int64_t columns() const { return rows() == 0 ? 0 : static_cast<int64_t>(data.size()) / rows(); }
  };
  const Array& at(Value a) const { return arrays_[static_cast<size_t>(a.id)]; }
  Value keep(std::vector<int64_t> dims, std::vector<float> data);
  template <class F>
  Value map(Value a, F f);
  template <class F>
  Value zip(Value a, Value b, F f);
  template <class F>
  Value fold_columns(Value a, double start, F f);

  Observer observer_;
  std::vector<Array> arrays_;
};

}  // namespace duet::model
