// Operators on tensors as such: fill, write_block, add, gather_rows, ragged_index.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/operators/operator.h"
#include "model/primitives.h"

namespace duet::model {
namespace {

// fill(buffer!; value): every element of a shared buffer.
class Fill : public Operator {
 public:
  explicit Fill(AttributeReader& a) : value_(a.number("value")) {}
  std::string_view kind() const override { return "fill"; }
  std::vector<int> written_inputs() const override { return {0}; }
  bool parallel() const override { return false; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 1, 1));
    if (!in[0].spec) return failure(ErrorCode::kBadInput, "input buffer is missing");
    if (!fits(in[0].spec->dtype))
      return failure(ErrorCode::kBadInput, "value {} does not fit {}", value_, dtype_name(in[0].spec->dtype));
    return std::vector<TensorSpec>();
  }
  Cost cost(const Step& s) const override { return {0, static_cast<int64_t>(s.inputs[0].bytes())}; }

  Status run(const Step& s, Worker) const override {
    const TensorView& b = s.inputs[0];
    int64_t n = b.elements();
    switch (b.dtype) {
      case DType::kF32:
        std::fill_n(b.as<float>(), n, static_cast<float>(value_));
        break;
      case DType::kF64:
        std::fill_n(b.as<double>(), n, value_);
        break;
      case DType::kI32:
        std::fill_n(b.as<int32_t>(), n, static_cast<int32_t>(value_));
        break;
      case DType::kI64:
        std::fill_n(b.as<int64_t>(), n, static_cast<int64_t>(value_));
        break;
      case DType::kU8:
        std::fill_n(b.as<uint8_t>(), n, static_cast<uint8_t>(value_));
        break;
      case DType::kBool:
        std::fill_n(b.as<uint8_t>(), n, static_cast<uint8_t>(value_ != 0));
        break;
    }
    return {};
  }
  Status decompose(const Step& s, Primitives&) const override { return run(s, {}); }

 private:
  bool fits(DType dtype) const {
    auto whole = [&](double least, double beyond) {
      return value_ == std::trunc(value_) && value_ >= least && value_ < beyond;
    };
    switch (dtype) {
      case DType::kF32:
        return std::abs(value_) <= double{std::numeric_limits<float>::max()};
      case DType::kF64:
        return true;
      case DType::kI32:
        return whole(-0x1p31, 0x1p31);
      case DType::kI64:
        return whole(-0x1p63, 0x1p63);
      case DType::kU8:
        return whole(0, 256);
      case DType::kBool:
        return whole(0, 2);
    }
    return false;
  }
  double value_;
};

// write_block(x, buffer!): x into the leading corner of a shared buffer of the same rank; the rest stays.
class WriteBlock : public Operator {
 public:
  explicit WriteBlock(AttributeReader&) {}
  std::string_view kind() const override { return "write_block"; }
  std::vector<int> written_inputs() const override { return {1}; }
  bool parallel() const override { return false; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 2, 2));
    if (!in[0].spec || !in[1].spec) return failure(ErrorCode::kBadInput, "an input is missing");
    DUET_TRY(expect_tensor(in[0], "x", in[0].spec->dtype, -1));
    DUET_TRY(expect_tensor(in[1], "buffer", in[0].spec->dtype, static_cast<int>(in[0].spec->shape.size())));
    return std::vector<TensorSpec>();
  }
  Cost cost(const Step& s) const override { return {0, 2 * static_cast<int64_t>(s.inputs[0].bytes())}; }

  Status run(const Step& s, Worker) const override {
    const TensorView &x = s.inputs[0], &buffer = s.inputs[1];
    for (int axis = 0; axis < x.rank; ++axis)
      if (x.dims[axis] > buffer.dims[axis])
        return failure(ErrorCode::kUsage, "{}: dimension {} is {}, but the buffer has {}", s.name, axis,
                       x.dims[axis], buffer.dims[axis]);
    if (x.elements() > 0) write(x, buffer, 0, x.data, buffer.data);
    return {};
  }
  Status decompose(const Step& s, Primitives&) const override { return run(s, {}); }

 private:
  static void write(const TensorView& x, const TensorView& to, int axis, const std::byte* from_data,
                    std::byte* to_data) {
    size_t from_bytes = element_bytes(x.dtype), to_bytes = from_bytes;
    for (int i = axis + 1; i < x.rank && i < kMaxRank; ++i) {
      from_bytes *= static_cast<size_t>(x.dims[i]);
      to_bytes *= static_cast<size_t>(to.dims[i]);
    }
    int64_t n = x.rank == 0 ? 1 : x.dims[axis];
    if (axis + 1 >= std::min(x.rank, kMaxRank)) {
      std::memcpy(to_data, from_data, static_cast<size_t>(n) * from_bytes);
      return;
    }
    for (int64_t i = 0; i < n; ++i)
      write(x, to, axis + 1, from_data + static_cast<size_t>(i) * from_bytes,
            to_data + static_cast<size_t>(i) * to_bytes);
  }
};

// add(a, b) -> a + b: f32, same shape.
class Add : public Operator {
 public:
  explicit Add(AttributeReader&) {}
  std::string_view kind() const override { return "add"; }
  int reusable_input() const override { return 0; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 2, 2));
    DUET_TRY(expect_tensor(in[0], "a", DType::kF32, -1));
    DUET_TRY(expect_tensor(in[1], "b", DType::kF32, static_cast<int>(in[0].spec->shape.size())));
    for (int i = 0; i < static_cast<int>(in[0].spec->shape.size()); ++i)
      DUET_TRY(expect_dim(in[1], "b", i, in[0].spec->shape[static_cast<size_t>(i)]));
    return std::vector<TensorSpec>{{"", DType::kF32, in[0].spec->shape}};
  }
  Cost cost(const Step& s) const override { return {0, 3 * static_cast<int64_t>(s.inputs[0].bytes())}; }

  Status run(const Step& s, Worker worker) const override {
    auto [begin, end] = worker.share(s.inputs[0].elements());
    for (int64_t i = begin; i < end; ++i)
      s.outputs[0].as<float>()[i] = s.inputs[0].as<float>()[i] + s.inputs[1].as<float>()[i];
    return {};
  }
  Status decompose(const Step& s, Primitives& p) const override {
    p.store(p.add(p.input(s.inputs[0]), p.input(s.inputs[1])), s.outputs[0]);
    return {};
  }
};

// gather_rows(x [n, ...], rows i32[m]) -> [m, ...]: 4-byte elements.
class GatherRows : public Operator {
 public:
  explicit GatherRows(AttributeReader&) {}
  std::string_view kind() const override { return "gather_rows"; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 2, 2));
    if (!in[0].spec || in[0].spec->shape.empty() || element_bytes(in[0].spec->dtype) != 4)
      return failure(ErrorCode::kBadInput, "input x: expected rows of f32 or i32");
    if (in[0].constant && in[0].constant->layout != Layout::kRows)
      return failure(ErrorCode::kBadInput, "input x ({}) is stored in panels, expected rows",
                     in[0].spec->name);
    DUET_TRY(expect_tensor(in[1], "rows", DType::kI32, 1));
    Shape shape = in[0].spec->shape;
    shape[0] = in[1].spec->shape[0];
    return std::vector<TensorSpec>{{"", in[0].spec->dtype, std::move(shape)}};
  }
  Cost cost(const Step& s) const override { return {0, 2 * static_cast<int64_t>(s.outputs[0].bytes())}; }
  bool parallel() const override { return false; }  // because it can fail

  Status run(const Step& s, Worker) const override {
    DUET_TRY(check_rows(s));
    size_t row_bytes = static_cast<size_t>(s.inputs[0].columns()) * 4;
    for (int64_t i = 0; i < s.inputs[1].dims[0] && row_bytes > 0; ++i) {
      int32_t row = s.inputs[1].as<int32_t>()[i];
      std::memcpy(s.outputs[0].data + static_cast<size_t>(i) * row_bytes,
                  s.inputs[0].data + static_cast<size_t>(row) * row_bytes, row_bytes);
    }
    return {};
  }
  Status decompose(const Step& s, Primitives& p) const override {
    if (s.inputs[0].dtype == DType::kI32) return run(s, {});  // integers stay integers
    DUET_TRY(check_rows(s));
    p.store(
        p.gather(p.input(s.inputs[0]), {s.inputs[1].as<int32_t>(), static_cast<size_t>(s.inputs[1].dims[0])}),
        s.outputs[0]);
    return {};
  }

 private:
  static Status check_rows(const Step& s) {
    for (int64_t i = 0; i < s.inputs[1].dims[0]; ++i) {
      int32_t row = s.inputs[1].as<int32_t>()[i];
      if (row < 0 || row >= s.inputs[0].dims[0])
        return failure(ErrorCode::kUsage, "{}: row {} is {}, expected 0 to {}", s.name, i, row,
                       s.inputs[0].dims[0] - 1);
    }
    return {};
  }
};

// ragged_index(lengths i32[rows]; tokens) -> starts i32[rows], last i32[rows], row i32[tokens], position
// i32[tokens]: where each row's tokens lie when rows of these lengths stand one after the other without
// padding.
class RaggedIndex : public Operator {
 public:
  explicit RaggedIndex(AttributeReader& a) : tokens_(a.text_or("tokens", "")) {}
  std::string_view kind() const override { return "ragged_index"; }
  bool parallel() const override { return false; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 1, 1));
    DUET_TRY(expect_tensor(in[0], "lengths", DType::kI32, 1));
    if (tokens_.empty())
      return failure(ErrorCode::kBadInput, "attribute tokens is missing: the symbol of the total");
    const Dim& rows = in[0].spec->shape[0];
    TensorSpec per_row{"", DType::kI32, {rows}}, per_token{"", DType::kI32, {Dim(tokens_)}};
    return std::vector<TensorSpec>{per_row, per_row, per_token, per_token};
  }
  Cost cost(const Step& s) const override { return {0, 2 * static_cast<int64_t>(s.outputs[2].bytes())}; }

  Status run(const Step& s, Worker) const override {
    int64_t token = 0, tokens = s.outputs[2].dims[0];
    for (int64_t row = 0; row < s.inputs[0].dims[0]; ++row) {
      int32_t length = s.inputs[0].as<int32_t>()[row];
      if (length < 1 || length > tokens - token)
        return failure(ErrorCode::kUsage, "{}: length {} of row {} does not fit the {} tokens", s.name,
                       length, row, tokens);
      s.outputs[0].as<int32_t>()[row] = static_cast<int32_t>(token);
      s.outputs[1].as<int32_t>()[row] = static_cast<int32_t>(token + length - 1);
      for (int32_t i = 0; i < length; ++i, ++token) {
        s.outputs[2].as<int32_t>()[token] = static_cast<int32_t>(row);
        s.outputs[3].as<int32_t>()[token] = i;
      }
    }
    if (token != tokens)
      return failure(ErrorCode::kUsage, "{}: the lengths add up to {}, expected {} tokens", s.name, token,
                     tokens);
    return {};
  }
  Status decompose(const Step& s, Primitives&) const override { return run(s, {}); }

 private:
  std::string tokens_;
};

template <class T>
std::shared_ptr<const Operator> make(AttributeReader& a) {
  return std::make_shared<T>(a);
}

constexpr OperatorRow kTable[] = {{"fill", make<Fill>},
                                  {"write_block", make<WriteBlock>},
                                  {"add", make<Add>},
                                  {"gather_rows", make<GatherRows>},
                                  {"ragged_index", make<RaggedIndex>}};

}  // namespace

std::span<const OperatorRow> tensor_operators() { return kTable; }

}  // namespace duet::model
