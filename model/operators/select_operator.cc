// select_argmax(x [rows, k], W [n, k] in panels, bias [n]?, forced i32[rows]?; suppress)
//   -> ids i32[rows], scores f32[rows]: the most likely output and its natural-log probability.
// Logits are never written as a whole: the outputs are worked off in chunks of 256, each leaving a row's
// maximum, its sum of exponentials and its best id; the chunks are combined in order. Ties go to the lowest
// id. Suppressed ids cannot win but count in the probability; a forced id >= 0 wins whatever its logit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "model/kernels/kernels.h"
#include "model/operators/operator.h"
#include "model/primitives.h"

namespace duet::model {
namespace {

constexpr int64_t kChunk =
    256;  // outputs: at k = 512 their weights are 512 KB, which stay in L2 for all rows
constexpr int64_t kRowTile = 64;  // rows whose logits of a chunk are held at once: 64 KB

struct Partial {
  float max, sum;  // over the chunk, suppressed ids included
  float best;      // among those not suppressed
  int32_t id;
  float forced;  // logit of the forced id, if it lies in this chunk
};

int64_t chunks_of(int64_t n) { return (n + kChunk - 1) / kChunk; }

class SelectArgmax : public Operator {
 public:
  explicit SelectArgmax(AttributeReader& a) : suppress_(a.integers_or_empty("suppress")) {}
  std::string_view kind() const override { return "select_argmax"; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 2, 4));
    DUET_TRY(expect_tensor(in[0], "x", DType::kF32, 2));
    DUET_TRY(expect_panels(in[1], "W"));
    DUET_TRY(expect_dim(in[0], "x", 1, in[1].spec->shape[1]));
    int64_t n = in[1].spec->shape[0].value();
    if (n < 1 || n > INT32_MAX) return failure(ErrorCode::kBadInput, "{} outputs to choose from", n);
    for (int64_t id : suppress_)
      if (id < 0 || id >= n)
        return failure(ErrorCode::kBadInput, "suppressed id {}, expected 0 to {}", id, n - 1);
    if (in.size() > 2 && in[2].spec) {
      DUET_TRY(expect_tensor(in[2], "bias", DType::kF32, 1));
      DUET_TRY(expect_dim(in[2], "bias", 0, in[1].spec->shape[0]));
    }
    if (in.size() > 3 && in[3].spec) {
      DUET_TRY(expect_tensor(in[3], "forced", DType::kI32, 1));
      DUET_TRY(expect_dim(in[3], "forced", 0, in[0].spec->shape[0]));
    }
    const Dim& rows = in[0].spec->shape[0];
    return std::vector<TensorSpec>{{"", DType::kI32, {rows}}, {"", DType::kF32, {rows}}};
  }

  uint64_t scratch_bytes(const Step& s, int workers) const override {
    return partial_bytes(s) + static_cast<uint64_t>(workers) * tile_bytes(s);
  }

  Cost cost(const Step& s) const override {
    int64_t rows = s.inputs[0].dims[0], n = s.inputs[1].dims[0], k = s.inputs[1].dims[1];
    return {rows * n * k, 4 * (n * k + rows * k)};
  }

  Status run(const Step& s, Worker worker) const override {
    int64_t n = s.inputs[1].dims[0], chunks = chunks_of(n);
    auto* partials = reinterpret_cast<Partial*>(s.scratch);
    auto* logits = reinterpret_cast<float*>(s.scratch + partial_bytes(s) +
                                            static_cast<uint64_t>(worker.index) * tile_bytes(s));
    auto [begin, end] = worker.share(chunks);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      int64_t first = chunk * kChunk, width = std::min(kChunk, n - first);
      for (int64_t row = 0; row < s.inputs[0].dims[0]; row += kRowTile) {
        int64_t rows = std::min(kRowTile, s.inputs[0].dims[0] - row);
        compute_logits(s, row, rows, first, width, logits);
        for (int64_t r = 0; r < rows; ++r)
          partials[(row + r) * chunks + chunk] = summarize(s, row + r, first, width, logits + r * kChunk);
      }
    }
    return {};
  }

  bool finishes() const override { return true; }
  Status finish(const Step& s) const override {
    int64_t n = s.inputs[1].dims[0], chunks = chunks_of(n);
    const auto* partials = reinterpret_cast<const Partial*>(s.scratch);
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r) {
      const Partial* row = partials + r * chunks;
      int32_t forced = forced_id(s, r);
      Partial total = row[0];
      for (int64_t c = 1; c < chunks; ++c) {
        if (row[c].best > total.best) total.best = row[c].best, total.id = row[c].id;
        float top = row[c].max > total.max ? row[c].max : total.max;
        float shifts[2] = {total.max - top, row[c].max - top}, factors[2];
        kernels::kernels().exp(shifts, 2, factors);
        total.sum = total.sum * factors[0] + row[c].sum * factors[1];
        total.max = top;
      }
      float logit = forced >= 0 ? row[forced / kChunk].forced : total.best;
      double log_sum = static_cast<double>(total.max) + kernels::portable_log(static_cast<double>(total.sum));
      s.outputs[0].as<int32_t>()[r] = forced >= 0 ? forced : total.id;
      s.outputs[1].as<float>()[r] = static_cast<float>(static_cast<double>(logit) - log_sum);
    }
    return {};
  }

  Status decompose(const Step& s, Primitives& p) const override {
    auto logits = p.matmul(p.input(s.inputs[0]), p.transpose(p.input_panels(s.inputs[1])));
    p.name(logits, std::string(s.name));
    if (s.inputs.size() > 2 && s.inputs[2]) logits = p.add(logits, p.input(s.inputs[2]));
    p.name(logits, "logits");
    auto values = p.read(logits);
    int64_t n = s.inputs[1].dims[0];
    for (int64_t r = 0; r < s.inputs[0].dims[0]; ++r) {
      const float* row = values.data() + r * n;
      float max = *std::max_element(row, row + n);
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]) - static_cast<double>(max));
      int64_t id = forced_id(s, r);
      if (id < 0) {
        for (int64_t i = 0; i < n; ++i)
          if (!suppressed(i) && (id < 0 || row[i] > row[id])) id = i;
        id = std::max<int64_t>(id, 0);
      }
      s.outputs[0].as<int32_t>()[r] = static_cast<int32_t>(id);
      s.outputs[1].as<float>()[r] =
          static_cast<float>(static_cast<double>(row[id]) - static_cast<double>(max) - std::log(sum));
    }
    return {};
  }

 private:
  static uint64_t partial_bytes(const Step& s) {
    auto bytes =
        static_cast<uint64_t>(s.inputs[0].dims[0] * chunks_of(s.inputs[1].dims[0])) * sizeof(Partial);
    return (bytes + 63) / 64 * 64;
  }
  static uint64_t tile_bytes(const Step& s) {
    return static_cast<uint64_t>(std::min(kRowTile, s.inputs[0].dims[0]) * kChunk) * 4;
  }
  bool suppressed(int64_t id) const {
    return std::find(suppress_.begin(), suppress_.end(), id) != suppress_.end();
  }
  static int32_t forced_id(const Step& s, int64_t row) {
    if (s.inputs.size() < 4 || !s.inputs[3]) return -1;
    int32_t id = s.inputs[3].as<int32_t>()[row];
    return id < s.inputs[1].dims[0] ? id : -1;
  }

  static void compute_logits(const Step& s, int64_t row, int64_t rows, int64_t first, int64_t width,
                             float* logits) {
    int64_t k = s.inputs[1].dims[1];
    kernels::LinearArgs args;
    args.x = s.inputs[0].as<const float>() + row * k;
    args.x_stride = k;
    args.panels = s.inputs[1].as<const float>() + first * k;
    args.bias = s.inputs.size() > 2 && s.inputs[2] ? s.inputs[2].as<const float>() + first : nullptr;
    args.residual = nullptr;
    args.residual_stride = 0;
    args.out = logits;
    args.out_stride = kChunk;
    args.rows = rows;
    args.k = k;
    args.n = width;
    args.activation = kernels::Activation::kNone;
    kernels::kernels().linear(args);
  }

  Partial summarize(const Step& s, int64_t row, int64_t first, int64_t width, float* logits) const {
    Partial partial{};
    kernels::kernels().max_sum_exp(logits, width, &partial.max, &partial.sum);
    int32_t forced = forced_id(s, row);
    if (forced >= first && forced < first + width) partial.forced = logits[forced - first];
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    partial.best = partial.max;
    bool any = false;
    for (int64_t id : suppress_) {
      if (id < first || id >= first + width) continue;
      logits[id - first] = kLowest;
      any = true;
    }
    if (any) partial.best = *std::max_element(logits, logits + width);
    const float* found = std::find(logits, logits + width, partial.best);
    partial.id = static_cast<int32_t>(first + (found == logits + width ? 0 : found - logits));
    return partial;
  }

  std::vector<int64_t> suppress_;
};

std::shared_ptr<const Operator> make(AttributeReader& a) { return std::make_shared<SelectArgmax>(a); }
constexpr OperatorRow kTable[] = {{"select_argmax", make}};

}  // namespace

std::span<const OperatorRow> select_operators() { return kTable; }

}  // namespace duet::model
