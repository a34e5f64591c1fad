// Attention without padding and without masks: attend_ragged over the tokens of a call (encoder),
// attend_cached over keys and values in blocks of a pool (decoder), cache_write that fills the pool.
// cache_layout.h says how pools and tables lie.
#include <algorithm>
#include <cmath>

#include "model/cache_layout.h"
#include "model/kernels/kernels.h"
#include "model/operators/operator.h"
#include "model/primitives.h"

namespace duet::model {
namespace {

float head_scale(int64_t head_size) { return 1.0f / std::sqrt(static_cast<float>(head_size)); }

Primitives::Value attend_head(Primitives& p, Primitives::Value q, Primitives::Value k, Primitives::Value v,
                              float scale) {
  return p.matmul(p.softmax(p.mul(p.matmul(q, p.transpose(k)), p.constant(scale))), v);
}

// attend_ragged(qkv [tokens, 3 d], starts i32[rows], lengths i32[rows]; heads) -> f32 [tokens, d]:
// every token attends to all tokens of its own row.
class AttendRagged : public Operator {
 public:
  explicit AttendRagged(AttributeReader& a) : heads_(a.integer("heads", 1, 1 << 20)) {}
  std::string_view kind() const override { return "attend_ragged"; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 3, 3));
    DUET_TRY(expect_tensor(in[0], "qkv", DType::kF32, 2));
    DUET_TRY(expect_tensor(in[1], "starts", DType::kI32, 1));
    DUET_TRY(expect_tensor(in[2], "lengths", DType::kI32, 1));
    DUET_TRY(expect_dim(in[2], "lengths", 0, in[1].spec->shape[0]));
    const Dim& width = in[0].spec->shape[1];
    if (width.kind() != Expression::Kind::kInteger || width.value() % (3 * heads_) != 0)
      return failure(ErrorCode::kBadInput, "input qkv has shape {}: width not divisible by 3 x {} heads",
                     shape_text(in[0].spec->shape), heads_);
    return std::vector<TensorSpec>{{"", DType::kF32, {in[0].spec->shape[0], Dim(width.value() / 3)}}};
  }

  // Per worker: keys of one head, transposed, in blocks; scores of one query; block pointers.
  uint64_t scratch_bytes(const Step& s, int workers) const override {
    return static_cast<uint64_t>(workers) * worker_bytes(s);
  }

  Cost cost(const Step& s) const override {
    int64_t d = s.outputs[0].dims[1], macs = 0;
    for (int64_t r = 0; s.inputs[2].data && r < s.inputs[2].dims[0]; ++r) {
      int64_t n = s.inputs[2].as<int32_t>()[r];
      macs += 2 * n * n * d;
    }
    return {macs, static_cast<int64_t>(s.inputs[0].bytes() + s.outputs[0].bytes())};
  }

  Status run(const Step& s, Worker worker) const override {
    int64_t d = s.outputs[0].dims[1], head_size = d / heads_, stride = 3 * d;
    int64_t capacity = blocks_of(s.inputs[0].dims[0]);
    std::byte* scratch = s.scratch + static_cast<uint64_t>(worker.index) * worker_bytes(s);
    auto* keys = reinterpret_cast<float*>(scratch);  // [block][head_size][16]
    auto* scores = keys + capacity * head_size * kBlockTokens;
    auto** key_blocks = reinterpret_cast<const float**>(scores + capacity * kBlockTokens);
    auto** value_blocks = key_blocks + capacity;
    auto [begin, end] = worker.share(s.inputs[1].dims[0] * heads_);
    for (int64_t item = begin; item < end; ++item) {
      int64_t row = item / heads_, head = item % heads_;
      int64_t start = s.inputs[1].as<int32_t>()[row], length = s.inputs[2].as<int32_t>()[row];
      DUET_TRY(check_row(s, row));
      const float* query = s.inputs[0].as<const float>() + start * stride + head * head_size;
      for (int64_t t = 0; t < length; ++t)
        for (int64_t i = 0; i < head_size; ++i)
          keys[(t / kBlockTokens * head_size + i) * kBlockTokens + t % kBlockTokens] =
              query[t * stride + d + i];
      for (int64_t t = length; t % kBlockTokens != 0; ++t)
        for (int64_t i = 0; i < head_size; ++i)
          keys[(t / kBlockTokens * head_size + i) * kBlockTokens + t % kBlockTokens] = 0;
      for (int64_t b = 0; b < blocks_of(length); ++b) {
        key_blocks[b] = keys + b * head_size * kBlockTokens;
        value_blocks[b] = query + 2 * d + b * kBlockTokens * stride;
      }
      kernels::AttendArgs args{query,     key_blocks, value_blocks,          kBlockTokens, stride,
                               head_size, length,     head_scale(head_size), scores,       nullptr};
      for (int64_t t = 0; t < length; ++t) {
        args.query = query + t * stride;
        args.out = s.outputs[0].as<float>() + (start + t) * d + head * head_size;
        kernels::kernels().attend(args);
      }
    }
    return {};
  }

  Status decompose(const Step& s, Primitives& p) const override {
    int64_t d = s.outputs[0].dims[1], head_size = d / heads_;
    auto qkv = p.input(s.inputs[0]);
    std::vector<Primitives::Value> rows;
    for (int64_t r = 0; r < s.inputs[1].dims[0]; ++r) {
      int64_t start = s.inputs[1].as<int32_t>()[r], length = s.inputs[2].as<int32_t>()[r];
      DUET_TRY(check_row(s, r));
      auto tokens = p.slice(qkv, 0, start, start + length);
      std::vector<Primitives::Value> heads;
      for (int64_t h = 0; h < heads_; ++h) {
        auto part = [&](int64_t i) {
          return p.slice(tokens, 1, i * d + h * head_size, i * d + (h + 1) * head_size);
        };
        heads.push_back(attend_head(p, part(0), part(1), part(2), head_scale(head_size)));
      }
      rows.push_back(p.concat(heads, 1));
    }
    p.store(p.concat(rows, 0), s.outputs[0]);
    return {};
  }

 private:
  static Status check_row(const Step& s, int64_t row) {
    int64_t start = s.inputs[1].as<int32_t>()[row], length = s.inputs[2].as<int32_t>()[row],
            tokens = s.inputs[0].dims[0];
    if (start < 0 || length < 1 || start + length > tokens)
      return failure(ErrorCode::kUsage,
                     "{}: row {} begins at {} and has {} tokens, which lie outside the {} given", s.name, row,
                     start, length, tokens);
    return {};
  }
  // From the sizes of the call, so that a smaller call stays within what the largest one was given.
  uint64_t worker_bytes(const Step& s) const {
    auto head_size = s.outputs[0].dims[1] / heads_;
    auto blocks = static_cast<uint64_t>(blocks_of(s.inputs[0].dims[0]));
    uint64_t bytes = blocks * (static_cast<uint64_t>(head_size + 1) * kBlockTokens * 4 + 2 * sizeof(void*));
    return (bytes + 63) / 64 * 64;
  }
  int64_t heads_;
};

Status expect_pool(const OperandSpec& pool, const Dim*& d) {
  DUET_TRY(expect_tensor(pool, "pool", DType::kF32, 4));
  const Shape& shape = pool.spec->shape;
  if (shape[1] != Dim(2) || shape[3] != Dim(kBlockTokens) || shape[2].kind() != Expression::Kind::kInteger)
    return failure(ErrorCode::kBadInput, "input pool ({}) has shape {}, expected [blocks, 2, d, {}]",
                   pool.spec->name, shape_text(shape), kBlockTokens);
  d = &shape[2];
  return {};
}

Status expect_columns(const OperandSpec& x, const char* role, int64_t column, int64_t columns) {
  const Dim& width = x.spec->shape[1];
  if (width.kind() != Expression::Kind::kInteger || width.value() < column + columns)
    return failure(ErrorCode::kBadInput, "input {} ({}) has shape {}, expected at least {} columns", role,
                   x.spec->name, shape_text(x.spec->shape), column + columns);
  return {};
}

// The block of token t of a slot. Errors: kUsage when state that a caller restored is out of range.
Result<int64_t> find_block(const Step& s, const TensorView& table, const TensorView& pool, int64_t slot,
                           int64_t token) {
  if (slot < 0 || slot >= table.dims[0] || token < 0 || token / kBlockTokens >= table.dims[1])
    return failure(ErrorCode::kUsage, "{}: slot {} token {} lies outside the block table", s.name, slot,
                   token);
  int64_t block = table.as<const int32_t>()[slot * table.dims[1] + token / kBlockTokens];
  if (block < 0 || block >= pool.dims[0])
    return failure(ErrorCode::kUsage, "{}: slot {} token {} is in block {}, expected 0 to {}", s.name, slot,
                   token, block, pool.dims[0] - 1);
  return block;
}

// cache_write(x [tokens, ...], slots i32[tokens], positions i32[tokens], table, pool!; column): x's columns
// [column, column + d) are keys, the next d values; each goes to its slot's block.
class CacheWrite : public Operator {
 public:
  explicit CacheWrite(AttributeReader& a) : column_(a.integer("column", 0, 1 << 24)) {}
  std::string_view kind() const override { return "cache_write"; }
  std::vector<int> written_inputs() const override { return {4}; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 5, 5));
    DUET_TRY(expect_tensor(in[0], "x", DType::kF32, 2));
    DUET_TRY(expect_tensor(in[1], "slots", DType::kI32, 1));
    DUET_TRY(expect_dim(in[1], "slots", 0, in[0].spec->shape[0]));
    DUET_TRY(expect_tensor(in[2], "positions", DType::kI32, 1));
    DUET_TRY(expect_dim(in[2], "positions", 0, in[0].spec->shape[0]));
    DUET_TRY(expect_tensor(in[3], "table", DType::kI32, 2));
    const Dim* d = nullptr;
    DUET_TRY(expect_pool(in[4], d));
    DUET_TRY(expect_columns(in[0], "x", column_, 2 * d->value()));
    return std::vector<TensorSpec>();
  }
  Cost cost(const Step& s) const override { return {0, 16 * s.inputs[0].dims[0] * s.inputs[4].dims[2]}; }

  Status run(const Step& s, Worker worker) const override {
    const TensorView &x = s.inputs[0], &pool = s.inputs[4];
    int64_t d = pool.dims[2];
    auto [begin, end] = worker.share(x.dims[0]);
    for (int64_t t = begin; t < end; ++t) {
      int64_t position = s.inputs[2].as<int32_t>()[t];
      DUET_ASSIGN(int64_t block, find_block(s, s.inputs[3], pool, s.inputs[1].as<int32_t>()[t], position));
      const float* from = x.as<const float>() + t * x.dims[1] + column_;
      float* keys = pool.as<float>() + block * 2 * d * kBlockTokens + position % kBlockTokens;
      float* values = pool.as<float>() + (block * 2 + 1) * d * kBlockTokens + position % kBlockTokens * d;
      for (int64_t i = 0; i < d; ++i) keys[i * kBlockTokens] = from[i];
      for (int64_t i = 0; i < d; ++i) values[i] = from[d + i];
    }
    return {};
  }
  Status decompose(const Step& s, Primitives&) const override {
    return run(s, {});
  }  // a scatter, whatever the order

 private:
  int64_t column_;
};

// attend_cached(q [tokens, ...], slots i32[tokens], lengths i32[tokens], table, pool; heads, column, extra)
//   -> f32 [tokens, d]: token t attends to the first lengths[t] + extra tokens of its slot; its query lies in
//   q's
// columns [column, column + d). Causal attention of a prompt is a matter of lengths: token t sees t + 1 keys.
class AttendCached : public Operator {
 public:
  explicit AttendCached(AttributeReader& a)
      : heads_(a.integer("heads", 1, 1 << 20)),
        column_(a.integer_or("column", 0, 0, 1 << 24)),
        extra_(a.integer_or("extra", 0, 0, 1)) {}
  std::string_view kind() const override { return "attend_cached"; }

  Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> in) const override {
    DUET_TRY(expect_count(in, 5, 5));
    DUET_TRY(expect_tensor(in[0], "q", DType::kF32, 2));
    DUET_TRY(expect_tensor(in[1], "slots", DType::kI32, 1));
    DUET_TRY(expect_dim(in[1], "slots", 0, in[0].spec->shape[0]));
    DUET_TRY(expect_tensor(in[2], "lengths", DType::kI32, 1));
    DUET_TRY(expect_dim(in[2], "lengths", 0, in[0].spec->shape[0]));
    DUET_TRY(expect_tensor(in[3], "table", DType::kI32, 2));
    const Dim* d = nullptr;
    DUET_TRY(expect_pool(in[4], d));
    DUET_TRY(expect_columns(in[0], "q", column_, d->value()));
    if (d->value() % heads_ != 0)
      return failure(ErrorCode::kBadInput, "width {} is not divisible by {} heads", d->value(), heads_);
    return std::vector<TensorSpec>{{"", DType::kF32, {in[0].spec->shape[0], *d}}};
  }

  uint64_t scratch_bytes(const Step& s, int workers) const override {
    return static_cast<uint64_t>(workers) * worker_bytes(s);
  }

  Cost cost(const Step& s) const override {
    int64_t d = s.outputs[0].dims[1], keys = 0;
    for (int64_t t = 0; s.inputs[2].data && t < s.inputs[2].dims[0]; ++t)
      keys += s.inputs[2].as<int32_t>()[t] + extra_;
    return {2 * keys * d, 8 * keys * d + 2 * static_cast<int64_t>(s.outputs[0].bytes())};
  }

  Status run(const Step& s, Worker worker) const override {
    const TensorView &q = s.inputs[0], &table = s.inputs[3], &pool = s.inputs[4];
    int64_t d = pool.dims[2], head_size = d / heads_, capacity = table.dims[1];
    std::byte* scratch = s.scratch + static_cast<uint64_t>(worker.index) * worker_bytes(s);
    auto* scores = reinterpret_cast<float*>(scratch);
    auto** key_blocks = reinterpret_cast<const float**>(scores + capacity * kBlockTokens);
    auto** value_blocks = key_blocks + capacity;
    auto [begin, end] = worker.share(q.dims[0] * heads_);
    for (int64_t item = begin; item < end; ++item) {
      int64_t t = item / heads_, head = item % heads_;
      int64_t length = s.inputs[2].as<int32_t>()[t] + extra_, slot = s.inputs[1].as<int32_t>()[t];
      DUET_TRY(check_length(s, slot, length));
      for (int64_t b = 0; b < blocks_of(length); ++b) {
        DUET_ASSIGN(int64_t block, find_block(s, table, pool, slot, b * kBlockTokens));
        const float* keys = pool.as<const float>() + block * 2 * d * kBlockTokens;
        key_blocks[b] = keys + head * head_size * kBlockTokens;
        value_blocks[b] = keys + d * kBlockTokens + head * head_size;
      }
      kernels::kernels().attend({q.as<const float>() + t * q.dims[1] + column_ + head * head_size, key_blocks,
                                 value_blocks, kBlockTokens, d, head_size, length, head_scale(head_size),
                                 scores, s.outputs[0].as<float>() + t * d + head * head_size});
    }
    return {};
  }

  Status decompose(const Step& s, Primitives& p) const override {
    const TensorView &table = s.inputs[3], &pool = s.inputs[4];
    int64_t d = pool.dims[2], head_size = d / heads_;
    auto q = p.slice(p.input(s.inputs[0]), 1, column_, column_ + d);
    std::vector<Primitives::Value> rows;
    for (int64_t t = 0; t < s.inputs[0].dims[0]; ++t) {
      int64_t length = s.inputs[2].as<int32_t>()[t] + extra_;
      DUET_TRY(check_length(s, s.inputs[1].as<int32_t>()[t], length));
      std::vector<Primitives::Value> key_parts, value_parts;
      for (int64_t b = 0; b < blocks_of(length); ++b) {
        DUET_ASSIGN(int64_t block,
                    find_block(s, table, pool, s.inputs[1].as<int32_t>()[t], b * kBlockTokens));
        TensorView keys = pool, values = pool;
        keys.data += static_cast<size_t>(block * 2 * d * kBlockTokens) * 4;
        values.data = keys.data + static_cast<size_t>(d * kBlockTokens) * 4;
        keys.rank = values.rank = 2;
        keys.dims[0] = values.dims[1] = d;
        keys.dims[1] = values.dims[0] = kBlockTokens;
        int64_t used = std::min(kBlockTokens, length - b * kBlockTokens);
        key_parts.push_back(p.slice(p.transpose(p.input(keys)), 0, 0, used));
        value_parts.push_back(p.slice(p.input(values), 0, 0, used));
      }
      auto keys = p.concat(key_parts, 0), values = p.concat(value_parts, 0), query = p.slice(q, 0, t, t + 1);
      std::vector<Primitives::Value> heads;
      for (int64_t h = 0; h < heads_; ++h) {
        auto part = [&](Primitives::Value a) { return p.slice(a, 1, h * head_size, (h + 1) * head_size); };
        heads.push_back(attend_head(p, part(query), part(keys), part(values), head_scale(head_size)));
      }
      rows.push_back(p.concat(heads, 1));
    }
    p.store(p.concat(rows, 0), s.outputs[0]);
    return {};
  }

 private:
  static Status check_length(const Step& s, int64_t slot, int64_t length) {
    if (length < 1) return failure(ErrorCode::kUsage, "{}: slot {} has nothing to attend to", s.name, slot);
    return {};
  }
  static uint64_t worker_bytes(const Step& s) {
    uint64_t bytes = static_cast<uint64_t>(s.inputs[3].dims[1]) * (kBlockTokens * 4 + 2 * sizeof(void*));
    return (bytes + 63) / 64 * 64;
  }
  int64_t heads_, column_, extra_;
};

template <class T>
std::shared_ptr<const Operator> make(AttributeReader& a) {
  return std::make_shared<T>(a);
}

constexpr OperatorRow kTable[] = {{"attend_ragged", make<AttendRagged>},
                                  {"cache_write", make<CacheWrite>},
                                  {"attend_cached", make<AttendCached>}};

}  // namespace

std::span<const OperatorRow> attention_operators() { return kTable; }

}  // namespace duet::model
