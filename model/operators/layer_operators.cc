// The layers of a transformer outside attention: embed, linear, norm.
#include <algorithm>
#include <string>

#include "model/kernels/kernels.h"
#include "model/operators/operator.h"
#include "model/primitives.h"

namespace duet::model {
namespace {

std::string sibling(std::string_view layer, std::string_view name) {
  auto dot = layer.rfind('.');
  return std::string(dot == std::string_view::npos ? "" : layer.substr(0, dot + 1)) + std::string(name);
}

// embed(ids i32[tokens], positions i32[tokens], W [vocabulary, d] in panels, P [max_positions, d]; scale)
//   -> W[id] * scale + P[position], f32 [tokens, d]
class Embed : public Operator {
 public:
  explicit Embed(AttributeReader& a) : scale_(static_cast<float>(a.number("scale"))) {}
  std::string_view kind() const override { return "embed"; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 4, 4));
    DUET_TRY(expect_tensor(in[0], "ids", DType::kI32, 1));
    DUET_TRY(expect_tensor(in[1], "positions", DType::kI32, 1));
    DUET_TRY(expect_dim(in[1], "positions", 0, in[0].spec->shape[0]));
    DUET_TRY(expect_panels(in[2], "W"));
    DUET_TRY(expect_tensor(in[3], "P", DType::kF32, 2));
    DUET_TRY(expect_dim(in[3], "P", 1, in[2].spec->shape[1]));
    return std::vector<TensorSpec>{{"", DType::kF32, {in[0].spec->shape[0], in[2].spec->shape[1]}}};
  }
  Cost cost(const Step& s) const override { return {0, 3 * static_cast<int64_t>(s.outputs[0].bytes())}; }

  Status run(const Step& s, Worker worker) const override {
    int64_t d = s.inputs[2].dims[1];
    const float* table = s.inputs[2].as<const float>();
    auto [begin, end] = worker.share(s.inputs[0].dims[0]);
    for (int64_t t = begin; t < end; ++t) {
      int64_t id = s.inputs[0].as<int32_t>()[t], position = s.inputs[1].as<int32_t>()[t];
      DUET_TRY(check(s, id, position));
      const float* weights = table + id / kPanelWidth * d * kPanelWidth + id % kPanelWidth;
      const float* place = s.inputs[3].as<const float>() + position * d;
      float* out = s.outputs[0].as<float>() + t * d;
      for (int64_t j = 0; j < d; ++j) out[j] = weights[j * kPanelWidth] * scale_ + place[j];
    }
    return {};
  }

  Status decompose(const Step& s, Primitives& p) const override {
    std::span<const int32_t> ids(s.inputs[0].as<int32_t>(), static_cast<size_t>(s.inputs[0].dims[0]));
    std::span<const int32_t> positions(s.inputs[1].as<int32_t>(), ids.size());
    for (size_t t = 0; t < ids.size(); ++t) DUET_TRY(check(s, ids[t], positions[t]));
    auto rows = p.gather(p.input_panels(s.inputs[2]), ids);
    p.name(rows, std::string(s.name));
    auto places = p.gather(p.input(s.inputs[3]), positions);
    p.name(places, sibling(s.name, "embed_positions"));
    p.store(p.add(p.mul(rows, p.constant(scale_)), places), s.outputs[0]);
    return {};
  }

 private:
  static Status check(const Step& s, int64_t id, int64_t position) {
    if (id < 0 || id >= s.inputs[2].dims[0])
      return failure(ErrorCode::kUsage, "{}: token id {}, expected 0 to {}", s.name, id,
                     s.inputs[2].dims[0] - 1);
    if (position < 0 || position >= s.inputs[3].dims[0])
      return failure(ErrorCode::kUsage, "{}: position {}, expected 0 to {}", s.name, position,
                     s.inputs[3].dims[0] - 1);
    return {};
  }
  float scale_;
};

kernels::Activation parse_activation(const std::string& name, bool& known) {
  known = true;
  if (name == "none") return kernels::Activation::kNone;
  if (name == "relu") return kernels::Activation::kRelu;
  if (name == "gelu") return kernels::Activation::kGelu;
  if (name == "swish") return kernels::Activation::kSwish;
  known = false;
  return kernels::Activation::kNone;
}

// linear(x [rows, k], W [n, k] in panels, bias [n]?, residual [rows, n]?; activation, parts)
//   -> activation(x W^T + bias) + residual, f32 [rows, n].
// parts: names of equal shares of the outputs that were layers of their own ("...q_proj", "...k_proj",
// "...v_proj").
class Linear : public Operator {
 public:
  explicit Linear(AttributeReader& a)
      : activation_(parse_activation(a.text_or("activation", "none"), known_)),
        parts_(a.texts_or_empty("parts")) {}
  std::string_view kind() const override { return "linear"; }
  int reusable_input() const override { return 3; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    if (!known_)
      return failure(ErrorCode::kBadInput, "unknown activation; expected none, relu, gelu or swish");
    DUET_TRY(expect_count(in, 2, 4));
    DUET_TRY(expect_tensor(in[0], "x", DType::kF32, 2));
    DUET_TRY(expect_panels(in[1], "W"));
    DUET_TRY(expect_dim(in[0], "x", 1, in[1].spec->shape[1]));
    const Dim& n = in[1].spec->shape[0];
    if (in.size() > 2 && in[2].spec) {
      DUET_TRY(expect_tensor(in[2], "bias", DType::kF32, 1));
      DUET_TRY(expect_dim(in[2], "bias", 0, n));
    }
    if (in.size() > 3 && in[3].spec) {
      DUET_TRY(expect_tensor(in[3], "residual", DType::kF32, 2));
      DUET_TRY(expect_dim(in[3], "residual", 0, in[0].spec->shape[0]));
      DUET_TRY(expect_dim(in[3], "residual", 1, n));
    }
    if (!parts_.empty() && n.value() % static_cast<int64_t>(parts_.size()) != 0)
      return failure(ErrorCode::kBadInput, "{} outputs cannot be split into {} parts", n.value(),
                     parts_.size());
    return std::vector<TensorSpec>{{"", DType::kF32, {in[0].spec->shape[0], n}}};
  }

  Cost cost(const Step& s) const override {
    int64_t rows = s.inputs[0].dims[0], n = s.inputs[1].dims[0], k = s.inputs[1].dims[1];
    return {rows * n * k, 4 * (n * k + rows * k + rows * n)};
  }

  Status run(const Step& s, Worker worker) const override {
    const TensorView &x = s.inputs[0], &w = s.inputs[1], &out = s.outputs[0];
    const TensorView bias = s.inputs.size() > 2 ? s.inputs[2] : TensorView();
    const TensorView residual = s.inputs.size() > 3 ? s.inputs[3] : TensorView();
    int64_t n = w.dims[0], k = w.dims[1];
    auto [begin, end] = worker.share((n + kPanelWidth - 1) / kPanelWidth);
    if (begin == end) return {};
    int64_t first = begin * kPanelWidth;
    kernels::LinearArgs args;
    args.x = x.as<const float>();
    args.x_stride = k;
    args.panels = w.as<const float>() + first * k;
    args.bias = bias ? bias.as<const float>() + first : nullptr;
    args.residual = residual ? residual.as<const float>() + first : nullptr;
    args.residual_stride = n;
    args.out = out.as<float>() + first;
    args.out_stride = n;
    args.rows = x.dims[0];
    args.k = k;
    args.n = std::min(n, end * kPanelWidth) - first;
    args.activation = activation_;
    kernels::kernels().linear(args);
    return {};
  }

  Status decompose(const Step& s, Primitives& p) const override {
    auto y = p.matmul(p.input(s.inputs[0]), p.transpose(p.input_panels(s.inputs[1])));
    if (s.inputs.size() > 2 && s.inputs[2]) y = p.add(y, p.input(s.inputs[2]));
    int64_t width = parts_.empty() ? 0 : s.inputs[1].dims[0] / static_cast<int64_t>(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i)
      p.name(p.slice(y, 1, static_cast<int64_t>(i) * width, static_cast<int64_t>(i + 1) * width), parts_[i]);
    if (parts_.empty()) p.name(y, std::string(s.name));
    if (activation_ != kernels::Activation::kNone) {
      y = activate(p, y);
      p.name(y, sibling(s.name, "activation_fn"));
    }
    if (s.inputs.size() > 3 && s.inputs[3]) y = p.add(y, p.input(s.inputs[3]));
    p.store(y, s.outputs[0]);
    return {};
  }

 private:
  Primitives::Value activate(Primitives& p, Primitives::Value x) const {
    auto one = p.constant(1);
    switch (activation_) {
      case kernels::Activation::kNone:
        return x;
      case kernels::Activation::kRelu:
        return p.maximum(x, 0);
      case kernels::Activation::kGelu:
        return p.mul(p.mul(x, p.constant(0.5f)),
                     p.add(p.erf(p.mul(x, p.constant(0.70710678118654752f))), one));
      case kernels::Activation::kSwish:
        return p.mul(x, p.reciprocal(p.add(p.exp(p.negate(x)), one)));
    }
    return x;
  }

  bool known_ = true;
  kernels::Activation activation_;
  std::vector<std::string> parts_;
};

// norm(x [rows, d], gamma [d], beta [d]?; epsilon) -> (x - mean) / sqrt(variance + epsilon) * gamma + beta
class Norm : public Operator {
 public:
  explicit Norm(AttributeReader& a) : epsilon_(static_cast<float>(a.number("epsilon"))) {}
  std::string_view kind() const override { return "norm"; }
  int reusable_input() const override { return 0; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 2, 3));
    DUET_TRY(expect_tensor(in[0], "x", DType::kF32, 2));
    for (size_t i = 1; i < in.size(); ++i) {
      if (i == 2 && !in[i].spec) continue;
      DUET_TRY(expect_tensor(in[i], i == 1 ? "gamma" : "beta", DType::kF32, 1));
      DUET_TRY(expect_dim(in[i], i == 1 ? "gamma" : "beta", 0, in[0].spec->shape[1]));
    }
    return std::vector<TensorSpec>{{"", DType::kF32, in[0].spec->shape}};
  }
  Cost cost(const Step& s) const override { return {0, 2 * static_cast<int64_t>(s.outputs[0].bytes())}; }

  Status run(const Step& s, Worker worker) const override {
    int64_t d = s.inputs[0].dims[1];
    auto [begin, end] = worker.share(d == 0 ? 0 : s.inputs[0].dims[0]);
    const float* beta = s.inputs.size() > 2 ? s.inputs[2].as<const float>() : nullptr;
    kernels::kernels().norm(s.inputs[0].as<const float>() + begin * d, end - begin, d,
                            s.inputs[1].as<const float>(), beta, epsilon_,
                            s.outputs[0].as<float>() + begin * d);
    return {};
  }

  Status decompose(const Step& s, Primitives& p) const override {
    auto x = p.input(s.inputs[0]);
    auto share = p.constant(1.0f / static_cast<float>(s.inputs[0].dims[1]));
    auto centred = p.subtract(x, p.mul(p.sum_columns(x), share));
    auto variance = p.mul(p.sum_columns(p.mul(centred, centred)), share);
    auto y = p.mul(centred, p.rsqrt(p.add(variance, p.constant(epsilon_))));
    y = p.mul(y, p.input(s.inputs[1]));
    if (s.inputs.size() > 2 && s.inputs[2]) y = p.add(y, p.input(s.inputs[2]));
    p.name(y, std::string(s.name));
    p.store(y, s.outputs[0]);
    return {};
  }

 private:
  float epsilon_;
};

template <class T>
std::shared_ptr<const Operator> make(AttributeReader& a) {
  return std::make_shared<T>(a);
}

constexpr OperatorRow kTable[] = {{"embed", make<Embed>}, {"linear", make<Linear>}, {"norm", make<Norm>}};

}  // namespace

std::span<const OperatorRow> layer_operators() { return kTable; }

}  // namespace duet::model
