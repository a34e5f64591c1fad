// Every operator: the fast kernel beside the decomposition into primitives, the same bits for any number of
// workers, and what infer() and make_operator() refuse. The state operators' bookkeeping has a file of its
// own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "model/operators/operator.h"
#include "model/primitives.h"
#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

constexpr double kEpsilon = 0x1p-24;  // one rounding of a float near 1
constexpr double kExpError = 1.56e-7;

using Bytes = std::vector<std::byte>;

template <class T>
Bytes to_bytes(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

struct Operand {
  std::string role;
  DType dtype = DType::kF32;
  Shape shape;  // symbolic, for infer()
  std::vector<int64_t> dims;
  Bytes data;
  bool optional = false;
  bool omitted = false;  // an optional one that this case leaves out
  bool any_dtype = false;
  std::set<size_t> free_dims;  // may be anything, alone
  bool shared = false;
  bool panels = false;
};

struct Case {
  std::string kind;
  Attributes attributes;
  std::vector<Operand> operands;
  std::map<std::string, int64_t> sizes;  // of the symbols
  double tolerance = 0;                  // of f32 outputs; integers are always compared exactly
};

std::mt19937& random_bits() {
  static std::mt19937 random(1);
  return random;
}

std::vector<float> normal(int64_t count, float size = 1) {
  std::normal_distribution<float> distribution(0, size);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = distribution(random_bits());
  return values;
}

int64_t dice(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random_bits()() % static_cast<uint64_t>(most - least + 1));
}

std::vector<int32_t> integers(int64_t count, int64_t least, int64_t most) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (int32_t& v : values) v = static_cast<int32_t>(dice(least, most));
  return values;
}

double largest_norm(const std::vector<float>& rows, int64_t columns) {
  double most = 0;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(columns)) {
    double squares = 0;
    for (size_t i = at; i < at + static_cast<size_t>(columns); ++i)
      squares += double{rows[i]} * double{rows[i]};
    most = std::max(most, std::sqrt(squares));
  }
  return most;
}
double largest(const std::vector<float>& values) {
  double most = 0;
  for (float v : values) most = std::max(most, std::abs(double{v}));
  return most;
}

// Adds operands; dimensions are numbers or symbols of the case.
class CaseBuilder {
 public:
  CaseBuilder(std::string kind, Attributes attributes = {}) {
    case_.kind = std::move(kind);
    case_.attributes = std::move(attributes);
  }
  CaseBuilder& size(const std::string& symbol, int64_t value) {
    case_.sizes[symbol] = value;
    return *this;
  }
  template <class T>
  Operand& add(const std::string& role, Shape shape, const std::vector<T>& values) {
    Operand operand;
    operand.role = role;
    operand.dtype = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
    int64_t elements = 1;
    for (const Dim& dim : shape) {
      operand.dims.push_back(dim.kind() == Expression::Kind::kInteger ? dim.value()
                                                                      : case_.sizes.at(dim.symbol()));
      elements *= operand.dims.back();
    }
    if (elements != static_cast<int64_t>(values.size())) std::abort();
    operand.shape = std::move(shape);
    operand.data = to_bytes(values);
    case_.operands.push_back(std::move(operand));
    return case_.operands.back();
  }
  template <class T>
  void optional(const std::string& role, Shape shape, const std::vector<T>& values, bool given) {
    Operand& operand = add(role, std::move(shape), values);
    operand.optional = true;
    operand.omitted = !given;
  }
  Operand& panels(const std::string& role, int64_t n, int64_t k, const std::vector<float>& rows) {
    std::vector<float> packed(static_cast<size_t>((n + 15) / 16 * 16 * k));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j)
        packed[static_cast<size_t>((i / 16 * k + j) * 16 + i % 16)] = rows[static_cast<size_t>(i * k + j)];
    Operand& operand = add(role, {n, k}, rows);
    operand.data = to_bytes(packed);
    operand.panels = true;
    return operand;
  }
  Case done(double tolerance = 0) {
    case_.tolerance = tolerance;
    return std::move(case_);
  }

 private:
  Case case_;
};

Case fill_case() {
  CaseBuilder b("fill", {{"value", 2.0}});
  Operand& o = b.size("n", 7).add("buffer", {"n", 3}, normal(21));
  o.shared = o.any_dtype = true;
  o.free_dims = {0, 1};
  return b.done();
}

Case write_block_case() {
  CaseBuilder b("write_block");
  b.size("n", 3);
  b.add("x", {"n", 2, 4}, normal(24)).free_dims = {0, 1, 2};
  Operand& o = b.add("buffer", {5, 3, 6}, normal(90));
  o.shared = true;
  o.free_dims = {0, 1, 2};
  return b.done();
}

Case add_case() {
  int64_t n = dice(1, 40);
  CaseBuilder b("add");
  b.size("n", n);
  b.add("a", {"n", 5}, normal(5 * n));
  b.add("b", {"n", 5}, normal(5 * n));
  return b.done();
}

Case gather_rows_case(bool of_integers) {
  CaseBuilder b("gather_rows");
  b.size("m", 9);
  if (of_integers)
    b.add("x", {6}, integers(6, -100, 100)).free_dims = {0};
  else
    b.add("x", {6, 5}, normal(30)).free_dims = {0, 1};
  b.add("rows", {"m"}, integers(9, 0, 5)).free_dims = {0};
  return b.done();
}

Case ragged_index_case() {
  CaseBuilder b("ragged_index", {{"tokens", std::string("tokens")}});
  auto lengths = integers(6, 1, 9);
  int64_t total = 0;
  for (int32_t l : lengths) total += l;
  b.size("rows", 6).size("tokens", total);
  b.add("lengths", {"rows"}, lengths).free_dims = {0};
  return b.done();
}

Case embed_case() {
  int64_t tokens = dice(1, 20), vocabulary = dice(1, 50), d = 2 * dice(1, 20), positions = dice(1, 30);
  CaseBuilder b("embed", {{"scale", 3.3}});
  b.size("tokens", tokens);
  auto table = normal(vocabulary * d), places = normal(positions * d);
  b.add("ids", {"tokens"}, integers(tokens, 0, vocabulary - 1));
  b.add("positions", {"tokens"}, integers(tokens, 0, positions - 1));
  b.panels("W", vocabulary, d, table).free_dims = {0};
  b.add("P", {positions, d}, places).free_dims = {0};
  return b.done(2 * kEpsilon * (3.3 * largest(table) + largest(places)) * 1.01);
}

Case linear_case(const std::string& activation, bool bias, bool residual) {
  int64_t rows = dice(1, 17), k = dice(1, 70), n = dice(1, 100);
  CaseBuilder b("linear", {{"activation", activation}});
  b.size("rows", rows);
  auto x = normal(rows * k), w = normal(n * k), bias_values = normal(n), residual_values = normal(rows * n);
  b.add("x", {"rows", k}, x);
  b.panels("W", n, k, w);
  // Both paths: k + 1 roundings of sums below |x| |w| + bias, then the activation's error (see kernels_test),
  // the residual.
  double size = largest_norm(x, k) * largest_norm(w, k) + (bias ? largest(bias_values) : 0);
  double error = static_cast<double>(k + 2) * kEpsilon * size;
  if (activation != "none") error = 1.13 * error + size * (6e-7 + kExpError + 12 * kEpsilon);
  error += 2 * kEpsilon * (size + largest(residual_values));
  b.optional("bias", {n}, bias_values, bias);
  b.optional("residual", {"rows", n}, residual_values, residual);
  Case c = b.done(error);
  if (!residual) c.operands[0].free_dims = {0};
  if (!residual && !bias) c.operands[1].free_dims = {0};
  return c;
}

Case norm_case(bool with_beta) {
  int64_t rows = dice(1, 9), d = dice(2, 70);
  CaseBuilder b("norm", {{"epsilon", 1e-5}});
  b.size("rows", rows);
  auto x = normal(rows * d), gamma = normal(d), beta = normal(d);
  b.add("x", {"rows", d}, x).free_dims = {0};
  b.add("gamma", {d}, gamma);
  b.optional("beta", {d}, beta, with_beta);
  // Normalised numbers are below sqrt(d); means and variances take d roundings at most in the reference, d /
  // 16 in kernels. A row whose own spread is small magnifies the error of its mean.
  double spread = 1e30;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < d; ++i)
      mean += double{x[static_cast<size_t>(r * d + i)]} / static_cast<double>(d);
    for (int64_t i = 0; i < d; ++i) squares += std::pow(double{x[static_cast<size_t>(r * d + i)]} - mean, 2);
    spread = std::min(spread, std::sqrt(squares / static_cast<double>(d) + 1e-5));
  }
  double depth = static_cast<double>(d) / 16 + 12;
  double error =
      depth * kEpsilon * (largest(x) / spread + std::sqrt(static_cast<double>(d))) * largest(gamma) * 2 +
      kEpsilon * largest(beta);
  return b.done(error);
}

// The error of attention: scores of head_size products, their exponentials, weighted means of values.
double attend_error(const std::vector<float>& q, int64_t head_size, double scale, double key_norm,
                    double value, int64_t keys) {
  double score = largest_norm(q, head_size) * key_norm * scale;
  double weight = (2 * static_cast<double>(head_size + 4) * kEpsilon) * score + kExpError +
                  static_cast<double>(2 * keys + 12) * kEpsilon;
  return 2 * weight * value;
}

Case attend_ragged_case() {
  int64_t heads = dice(1, 4), head_size = dice(1, 40), d = heads * head_size, rows = dice(1, 5), tokens = 0;
  std::vector<int32_t> lengths = integers(rows, 1, 40), starts;
  int32_t most = 0;
  for (int32_t l : lengths)
    starts.push_back(static_cast<int32_t>(tokens)), tokens += l, most = std::max(most, l);
  CaseBuilder b("attend_ragged", {{"heads", heads}});
  b.size("tokens", tokens).size("rows", rows);
  auto qkv = normal(tokens * 3 * d);
  b.add("qkv", {"tokens", 3 * d}, qkv).free_dims = {0};
  b.add("starts", {"rows"}, starts);
  b.add("lengths", {"rows"}, lengths);
  double norm = largest_norm(qkv, head_size);
  return b.done(
      attend_error(qkv, head_size, 1 / std::sqrt(static_cast<double>(head_size)), norm, largest(qkv), most));
}

// A table whose slots hold blocks of their own, in no order.
std::vector<int32_t> table_of_blocks(int64_t slots, int64_t per_slot, int64_t blocks) {
  std::vector<int32_t> all(static_cast<size_t>(blocks));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  std::shuffle(all.begin(), all.end(), random_bits());
  all.resize(static_cast<size_t>(slots * per_slot));
  return all;
}

Case cache_write_case() {
  int64_t d = dice(1, 30), tokens = dice(1, 12), slots = 13, per_slot = 3;
  CaseBuilder b("cache_write", {{"column", int64_t{2}}});
  b.size("tokens", tokens).size("slots", slots).size("blocks", 50);
  std::vector<int32_t> rows;
  for (int64_t t = 0; t < tokens; ++t) rows.push_back(static_cast<int32_t>(t));
  b.add("x", {"tokens", 3 + 2 * d}, normal(tokens * (3 + 2 * d)));
  b.add("slots", {"tokens"}, rows);
  b.add("positions", {"tokens"}, integers(tokens, 0, 47));
  b.add("table", {"slots", per_slot}, table_of_blocks(slots, per_slot, 50)).free_dims = {0, 1};
  Operand& pool = b.add("pool", {"blocks", 2, d, 16}, normal(50 * 2 * d * 16));
  pool.shared = true;
  pool.free_dims = {0};
  return b.done();
}

Case attend_cached_case(int64_t extra) {
  int64_t heads = dice(1, 4), head_size = dice(1, 40), d = heads * head_size, tokens = dice(1, 12), slots = 6,
          per_slot = 4;
  CaseBuilder b("attend_cached", {{"heads", heads}, {"column", int64_t{3}}, {"extra", extra}});
  b.size("tokens", tokens).size("slots", slots).size("blocks", 30);
  auto q = normal(tokens * (d + 4)), pool = normal(30 * 2 * d * 16);
  b.add("q", {"tokens", d + 4}, q);
  b.add("slots", {"tokens"}, integers(tokens, 0, slots - 1));
  b.add("lengths", {"tokens"}, integers(tokens, 1 - extra, per_slot * 16 - extra));
  b.add("table", {"slots", per_slot}, table_of_blocks(slots, per_slot, 30)).free_dims = {0, 1};
  b.add("pool", {"blocks", 2, d, 16}, pool).free_dims = {0};
  double root = std::sqrt(static_cast<double>(head_size)) * largest(pool);
  std::vector<float> whole(static_cast<size_t>(head_size), static_cast<float>(largest(q)));
  return b.done(attend_error(whole, head_size, 1 / std::sqrt(static_cast<double>(head_size)), root,
                             largest(pool), per_slot * 16));
}

Case select_argmax_case(bool with_forced) {
  int64_t rows = dice(1, 70), k = dice(1, 40), n = dice(20, 700);
  CaseBuilder b("select_argmax", {{"suppress", std::vector<int64_t>{3, 7, n - 1}}});
  b.size("rows", rows);
  auto x = normal(rows * k), w = normal(n * k), bias = normal(n);
  auto forced = integers(rows, 0, n - 1);
  for (size_t i = 0; i < forced.size(); i += 2) forced[i] = -1;
  b.add("x", {"rows", k}, x);
  b.panels("W", n, k, w);
  b.optional("bias", {n}, bias, true);
  b.optional("forced", {"rows"}, forced, with_forced);
  double size = largest_norm(x, k) * largest_norm(w, k) + largest(bias);
  double error = 2 * static_cast<double>(k + 3) * kEpsilon * size + kExpError * 2 +
                 static_cast<double>(n / 16 + 8) * kEpsilon + 2 * kEpsilon * size;
  Case c = b.done(error);
  if (!with_forced) c.operands[0].free_dims = {0};
  return c;
}

// Slots 0 and 2 decode, 1 and 3 are free; blocks 0..4 are held, 5 and 6 were given back, 7 on are fresh.
Case state_case(const std::string& kind, Attributes attributes,
                const std::vector<std::pair<std::string, std::vector<int32_t>>>& own) {
  CaseBuilder b(kind, std::move(attributes));
  b.size("rows", static_cast<int64_t>(own[0].second.size())).size("slots", 4).size("blocks", 12);
  for (size_t i = 0; i < own.size(); ++i) {
    Operand& o = b.add(own[i].first, {"rows"}, own[i].second);
    o.optional = own[i].first == "added";
    if (own.size() == 1) o.free_dims = {0};
  }
  auto state = [&](const char* role, Shape shape, const std::vector<int32_t>& values,
                   std::set<size_t> free = {}) {
    Operand& o = b.add(role, std::move(shape), values);
    o.shared = true;
    o.free_dims = std::move(free);
  };
  state("status", {"slots"}, {1, 0, 1, 0});
  state("positions", {"slots"}, {16, 0, 3, 0});
  state("limits", {"slots"}, {30, 0, 4, 0});
  state("source_lengths", {"slots"}, {17, 0, 5, 0});
  state("tokens", {"slots"}, {8, 0, 9, 0});
  state("self_table", {"slots", 2}, {0, 0, 0, 0, 3, 0, 0, 0}, {1});
  state("cross_table", {"slots", 2}, {1, 2, 0, 0, 4, 0, 0, 0}, {1});
  state("free_blocks", {"blocks"}, {5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {0});
  state("pool_state", {2}, {2, 7});
  return b.done();
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = {
      fill_case(),         write_block_case(), gather_rows_case(false), gather_rows_case(true),
      ragged_index_case(), cache_write_case()};
  for (int i = 0; i < 12; ++i) {
    cases.push_back(add_case());
    cases.push_back(embed_case());
    cases.push_back(attend_ragged_case());
    cases.push_back(cache_write_case());
    cases.push_back(attend_cached_case(i % 2));
    cases.push_back(norm_case(i % 2));
    cases.push_back(select_argmax_case(i % 2));
    for (const char* activation : {"none", "relu", "gelu", "swish"})
      cases.push_back(linear_case(activation, i % 2, i % 3));
  }
  cases.push_back(state_case("open_slots", {},
                             {{"slots", {3, 0}},
                              {"source_lengths", {20, 1}},
                              {"target_limits", {20, 32}},
                              {"prompt_lengths", {1, 17}}}));
  cases.push_back(state_case("extend_slots", {}, {{"slots", {0, 2}}}));
  cases.push_back(state_case("release_slots", {}, {{"slots", {2, 1}}}));
  cases.push_back(
      state_case("forced_tokens", {{"token", int64_t{5}}}, {{"slots", {0, 2}}, {"added", {1, 1}}}));
  cases.push_back(
      state_case("advance", {{"end", int64_t{0}}}, {{"slots", {0, 2}}, {"ids", {3, 4}}, {"added", {1, 1}}}));
  return cases;
}

std::shared_ptr<const Operator> make(const Case& c) {
  auto op = make_operator(c.kind, c.attributes);
  EXPECT_TRUE(op) << (op ? "" : op.error().message);
  return op ? *op : nullptr;
}

// What infer() sees of a case.
struct Specs {
  explicit Specs(const Case& c) : specs(c.operands.size()), constants(c.operands.size()) {
    for (size_t i = 0; i < specs.size(); ++i) {
      const Operand& o = c.operands[i];
      specs[i] = {o.role, o.dtype, o.shape};
      static_cast<TensorSpec&>(constants[i]) = specs[i];
      constants[i].layout = Layout::kPanels;
      operands.push_back({o.omitted ? nullptr : &specs[i], o.shared, o.panels ? &constants[i] : nullptr});
    }
  }
  std::vector<TensorSpec> specs;
  std::vector<Constant> constants;
  std::vector<OperandSpec> operands;
};

// Memory that starts on a cache line and is exactly as long as asked for.
class Memory {
 public:
  explicit Memory(size_t bytes)
      : size_(bytes), data_(static_cast<std::byte*>(::operator new(bytes + 1, std::align_val_t(64)))) {
    std::memset(data_, 0xff, bytes);  // NaNs: nothing may depend on what was there
  }
  Memory(const Bytes& bytes) : Memory(bytes.size()) {
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  Memory(Memory&& other) noexcept : size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  ~Memory() { ::operator delete(data_, std::align_val_t(64)); }
  std::byte* data() { return data_; }
  Bytes bytes() const { return {data_, data_ + size_}; }

 private:
  size_t size_;
  std::byte* data_;
};

struct Outcome {
  Status status;
  std::vector<Bytes> operands, outputs;
  std::vector<DType> dtypes;  // of the outputs
};

constexpr int kReference = 0;

Outcome run(const Case& c, int workers) {
  auto op = make(c);
  Specs specs(c);
  auto inferred = op->infer(specs.operands);
  EXPECT_TRUE(inferred) << c.kind << ": " << (inferred ? "" : inferred.error().message);
  if (!inferred) return {tl::make_unexpected(inferred.error()), {}, {}, {}};
  std::vector<Memory> memory, output_memory;
  std::vector<TensorView> inputs, outputs;
  auto view = [](std::byte* data, DType dtype, const std::vector<int64_t>& dims) {
    TensorView v{data, dtype, static_cast<int>(dims.size()), {}};
    std::copy(dims.begin(), dims.end(), v.dims);
    return v;
  };
  for (const Operand& o : c.operands) {
    memory.emplace_back(o.data);
    inputs.push_back(o.omitted ? TensorView() : view(memory.back().data(), o.dtype, o.dims));
  }
  Outcome outcome;
  for (const TensorSpec& spec : *inferred) {
    std::vector<int64_t> dims;
    for (const Dim& dim : spec.shape)
      dims.push_back(dim.kind() == Expression::Kind::kInteger ? dim.value() : c.sizes.at(dim.symbol()));
    TensorView v = view(nullptr, spec.dtype, dims);
    output_memory.emplace_back(v.bytes());
    v.data = output_memory.back().data();
    outputs.push_back(v);
    outcome.dtypes.push_back(spec.dtype);
  }
  Step step{inputs, outputs, nullptr, "test.layer"};
  if (workers == kReference) {
    ReferencePrimitives primitives;
    outcome.status = op->decompose(step, primitives);
  } else {
    Memory scratch(op->scratch_bytes(step, workers));
    step.scratch = scratch.data();
    for (int w = 0; w < (op->parallel() ? workers : 1) && outcome.status; ++w)
      outcome.status = op->run(step, {w, workers});
    if (op->finishes() && outcome.status) outcome.status = op->finish(step);
  }
  for (Memory& m : memory) outcome.operands.push_back(m.bytes());
  for (Memory& m : output_memory) outcome.outputs.push_back(m.bytes());
  return outcome;
}

std::string kinds_of(const std::vector<Case>& cases) {
  std::set<std::string> kinds;
  for (const Case& c : cases) kinds.insert(c.kind);
  return fmt::format("{}", fmt::join(kinds, " "));
}

TEST(Operators, AllHaveATestCase) {
  auto known = operator_kinds();
  EXPECT_EQ(kinds_of(all_cases()),
            fmt::format("{}", fmt::join(std::set<std::string>(known.begin(), known.end()), " ")));
}

TEST(Operators, AgreeWithTheirDecompositionsAndDoNotDependOnTheNumberOfWorkers) {
  for (const Case& c : all_cases()) {
    SCOPED_TRACE(c.kind);
    Outcome reference = run(c, kReference), one = run(c, 1);
    ASSERT_TRUE(reference.status) << reference.status.error().message;
    ASSERT_TRUE(one.status) << one.status.error().message;
    for (int workers : {2, 3, 7}) {
      Outcome several = run(c, workers);
      ASSERT_TRUE(several.status);
      EXPECT_EQ(one.outputs, several.outputs) << workers << " workers";
      EXPECT_EQ(one.operands, several.operands) << workers << " workers";
    }
    EXPECT_EQ(reference.operands, one.operands) << "state";
    for (size_t i = 0; i < c.operands.size(); ++i) {
      if (c.operands[i].shared) continue;
      EXPECT_EQ(c.operands[i].data, one.operands[i]) << c.operands[i].role << " was changed";
    }
    for (size_t i = 0; i < one.outputs.size(); ++i) {
      if (one.dtypes[i] != DType::kF32 || c.tolerance == 0) {
        EXPECT_EQ(reference.outputs[i], one.outputs[i]) << "output " << i;
        continue;
      }
      std::vector<float> a(one.outputs[i].size() / 4), b(a.size());
      std::memcpy(a.data(), one.outputs[i].data(), a.size() * 4);
      std::memcpy(b.data(), reference.outputs[i].data(), b.size() * 4);
      for (size_t j = 0; j < a.size(); ++j)
        ASSERT_NEAR(a[j], b[j], c.tolerance) << "output " << i << " element " << j;
    }
  }
}

TEST(Operators, ChangeOnlyTheInputsThatTheySayTheyWrite) {
  for (const Case& c : all_cases()) {
    auto written = make(c)->written_inputs();
    for (int i : written) EXPECT_TRUE(c.operands.at(static_cast<size_t>(i)).shared) << c.kind << " " << i;
    if (c.kind == "forced_tokens") continue;  // reads the same state, writes none of it
    for (size_t i = 0; i < c.operands.size(); ++i) {
      bool said = std::find(written.begin(), written.end(), static_cast<int>(i)) != written.end();
      EXPECT_EQ(said, c.operands[i].shared) << c.kind << " " << c.operands[i].role;
    }
  }
}

// Each operand of each operator, spoilt in one way: what infer() refuses, and what it must not refuse.
TEST(Operators, RefuseEachWrongOperand) {
  for (const Case& c : all_cases()) {
    auto op = make(c);
    auto refused = [&](auto spoil) {
      Specs specs(c);
      spoil(specs);
      return !op->infer(specs.operands);
    };
    for (size_t i = 0; i < c.operands.size(); ++i) {
      const Operand& o = c.operands[i];
      if (o.omitted) continue;
      SCOPED_TRACE(c.kind + " " + o.role);
      EXPECT_EQ(!o.optional, refused([&](Specs& s) { s.operands[i].spec = nullptr; })) << "missing";
      for (DType other : {DType::kF64, DType::kU8, DType::kI64})
        EXPECT_EQ(!o.any_dtype, refused([&](Specs& s) { s.specs[i].dtype = other; }))
            << "dtype " << dtype_name(other);
      bool any_rank = c.kind == "fill" || (c.kind == "gather_rows" && i == 0);
      EXPECT_EQ(!any_rank, refused([&](Specs& s) { s.specs[i].shape.push_back(3); })) << "one dimension more";
      if (o.shape.size() > 1) {
        EXPECT_EQ(!any_rank, refused([&](Specs& s) { s.specs[i].shape.pop_back(); })) << "one dimension less";
      }
      for (size_t axis = 0; axis < o.shape.size(); ++axis) {
        bool free = o.free_dims.count(axis) != 0;
        EXPECT_EQ(!free, refused([&](Specs& s) { s.specs[i].shape[axis] = Dim("another"); }))
            << "dimension " << axis;
      }
      if (o.panels) {
        EXPECT_TRUE(refused([&](Specs& s) { s.constants[i].layout = Layout::kRows; })) << "rows, not panels";
        EXPECT_TRUE(refused([&](Specs& s) { s.operands[i].constant = nullptr; })) << "not a constant";
      }
    }
    EXPECT_TRUE(refused([](Specs& s) { s.operands.push_back(s.operands[0]); }))
        << c.kind << ": one operand more";
    EXPECT_TRUE(refused([](Specs& s) { s.operands.clear(); })) << c.kind << ": no operand";
    EXPECT_FALSE(refused([](Specs&) {})) << c.kind;
  }
}

TEST(Operators, SayWhichOperandIsWrongAndHow) {
  Case c = linear_case("none", true, true);
  auto op = make(c);
  Specs specs(c);
  specs.specs[2].dtype = DType::kI64;
  expect_error(op->infer(specs.operands), ErrorCode::kBadInput, {"bias", "i64", "expected f32"});
  specs = Specs(c);
  specs.specs[3].shape[0] = Dim("others");
  specs.operands[3].spec = &specs.specs[3];
  for (size_t i = 0; i < 3; ++i) specs.operands[i].spec = &specs.specs[i];
  expect_error(op->infer(specs.operands), ErrorCode::kBadInput,
               {"residual", "[others, ", "expected rows in dimension 0"});
}

struct AttributeCase {
  const char* kind;
  Attributes attributes;
  std::vector<std::string> parts;  // of the message; empty: it is right
};

TEST(Operators, RefuseMissingSurplusAndUnfitAttributes) {
  using S = std::string;
  const AttributeCase cases[] = {
      {"fill", {}, {"value", "missing"}},
      {"fill", {{"value", S("x")}}, {"value", "wrong type"}},
      {"fill", {{"value", int64_t{3}}}, {}},
      {"fill", {{"value", 1.0}, {"other", 1.0}}, {"unknown attribute other", "value"}},
      {"write_block", {{"axis", int64_t{0}}}, {"unknown attribute axis"}},
      {"add", {{"scale", 1.0}}, {"unknown attribute scale"}},
      {"gather_rows", {{"x", 1.0}}, {"unknown attribute x"}},
      {"ragged_index", {{"tokens", 1.0}}, {"tokens", "wrong type"}},
      {"embed", {}, {"scale", "missing"}},
      {"embed", {{"scale", std::vector<int64_t>{1}}}, {"scale", "wrong type"}},
      {"linear", {{"parts", S("q")}}, {"parts", "wrong type"}},
      {"linear", {{"parts", std::vector<int64_t>{}}}, {}},
      {"linear", {{"parts", std::vector<int64_t>{1}}}, {"parts", "wrong type"}},
      {"linear", {{"activation", 1.0}}, {"activation", "wrong type"}},
      {"linear", {{"activations", S("gelu")}}, {"unknown attribute activations"}},
      {"norm", {}, {"epsilon", "missing"}},
      {"attend_ragged", {}, {"heads", "missing"}},
      {"attend_ragged", {{"heads", int64_t{0}}}, {"heads is 0", "expected 1 to"}},
      {"attend_ragged", {{"heads", 2.0}}, {"heads", "wrong type"}},
      {"cache_write", {}, {"column", "missing"}},
      {"cache_write", {{"column", int64_t{-1}}}, {"column is -1", "expected 0 to"}},
      {"attend_cached", {{"heads", int64_t{1}}, {"extra", int64_t{2}}}, {"extra is 2", "expected 0 to 1"}},
      {"attend_cached", {{"heads", int64_t{1}}}, {}},
      {"open_slots", {{"x", 1.0}}, {"unknown attribute x"}},
      {"extend_slots", {{"x", 1.0}}, {"unknown attribute x"}},
      {"release_slots", {{"x", 1.0}}, {"unknown attribute x"}},
      {"forced_tokens", {}, {"token", "missing"}},
      {"forced_tokens", {{"token", int64_t{-2}}}, {"token is -2", "expected -1 to"}},
      {"advance", {{"end", int64_t{1} << 40}}, {"end is 1099511627776", "expected 0 to 2147483647"}},
      {"select_argmax", {{"suppress", int64_t{3}}}, {"suppress", "wrong type"}},
      {"convolve", {}, {"unknown operator kind \"convolve\"", "linear", "advance"}},
  };
  std::set<std::string> kinds;
  for (const AttributeCase& c : cases) {
    auto op = make_operator(c.kind, c.attributes);
    kinds.insert(c.kind);
    if (!c.parts.empty()) {
      expect_error(op, ErrorCode::kBadInput, c.parts);
    } else {
      EXPECT_TRUE(op) << c.kind << ": " << op.error().message;
    }
  }
  for (const std::string& kind : operator_kinds()) EXPECT_TRUE(kinds.count(kind)) << kind;
}

TEST(Operators, RefuseAttributesThatDoNotFitTheirOperands) {
  Case c = linear_case("tanh", true, true);
  expect_error(make(c)->infer(Specs(c).operands), ErrorCode::kBadInput, {"unknown activation", "gelu"});
  c = select_argmax_case(true);
  c.attributes["suppress"] = std::vector<int64_t>{c.operands[1].dims[0]};
  expect_error(make(c)->infer(Specs(c).operands), ErrorCode::kBadInput, {"suppressed id", "expected 0 to"});
  c = ragged_index_case();
  c.attributes.clear();
  expect_error(make(c)->infer(Specs(c).operands), ErrorCode::kBadInput, {"tokens"});
  c = attend_cached_case(0);
  c.attributes["heads"] = int64_t{1} << 19;
  expect_error(make(c)->infer(Specs(c).operands), ErrorCode::kBadInput, {"not divisible", "heads"});
  c = cache_write_case();
  c.attributes["column"] = int64_t{4};
  expect_error(make(c)->infer(Specs(c).operands), ErrorCode::kBadInput, {"columns"});
}

// ---- Numbers that only a running program knows
// ------------------------------------------------------------------------

template <class T>
void set(Case& c, size_t operand, size_t at, T value) {
  std::memcpy(c.operands[operand].data.data() + at * sizeof(T), &value, sizeof value);
}

struct BadNumber {
  Case c;
  size_t operand, at;
  int32_t value;
  std::string part;  // of the message
};

TEST(Operators, RefuseNumbersThatPointOutsideWhereverTheyComeFrom) {
  std::vector<BadNumber> cases;
  Case ragged = attend_ragged_case();
  for (int32_t value : {-1, 1 << 20, INT32_MIN, INT32_MAX}) {
    cases.push_back({embed_case(), 0, 0, value, fmt::format("token id {}", value)});
    cases.push_back({embed_case(), 1, 0, value, fmt::format("position {}", value)});
    cases.push_back({gather_rows_case(false), 1, 3, value, fmt::format("row 3 is {}", value)});
    cases.push_back({gather_rows_case(true), 1, 3, value, fmt::format("row 3 is {}", value)});
    cases.push_back({ragged_index_case(), 0, 0, value, fmt::format("length {} of row 0", value)});
    cases.push_back({ragged, 1, 0, value, fmt::format("row 0 begins at {}", value)});
    cases.push_back({ragged, 2, 0, value, "row 0"});
    cases.push_back({cache_write_case(), 1, 0, value, fmt::format("slot {}", value)});
    cases.push_back({cache_write_case(), 2, 0, value, fmt::format("token {}", value)});
    cases.push_back({attend_cached_case(0), 1, 0, value, fmt::format("slot {}", value)});
    cases.push_back({attend_cached_case(0), 2, 0, value, "slot"});
    cases.push_back({attend_cached_case(1), 2, 0, value, "slot"});
  }
  for (BadNumber& bad : cases) {
    set(bad.c, bad.operand, bad.at, bad.value);
    for (int workers : {1, 3, kReference}) {
      SCOPED_TRACE(fmt::format("{} {} workers, operand {}", bad.c.kind, workers, bad.operand));
      Outcome outcome = run(bad.c, workers);
      expect_error(outcome.status, ErrorCode::kUsage, {"test.layer", bad.part});
    }
  }
  for (int32_t block : {-1, 30, 50}) {  // a block table that points outside the pool
    for (Case c : {attend_cached_case(0), cache_write_case()}) {
      if (block == 30 && c.kind == "cache_write") continue;
      for (size_t i = 0; i < c.operands[3].data.size() / 4; ++i) set(c, 3, i, block);
      for (int workers : {1, kReference})
        expect_error(run(c, workers).status, ErrorCode::kUsage,
                     {"test.layer", fmt::format("block {}", block)});
    }
  }
}

// ---- Operators whose decomposition is the operator itself: their meaning, spelt out
// -----------------------------------

template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(CacheWrite, PutsKeysInColumnsAndValuesInRowsOfTheSlotsBlock) {
  for (int i = 0; i < 20; ++i) {
    Case c = cache_write_case();
    auto x = values_of<float>(c.operands[0].data), pool = values_of<float>(c.operands[4].data);
    auto slots = values_of<int32_t>(c.operands[1].data), positions = values_of<int32_t>(c.operands[2].data),
         table = values_of<int32_t>(c.operands[3].data);
    auto d = static_cast<size_t>(c.operands[4].dims[2]), width = static_cast<size_t>(c.operands[0].dims[1]);
    for (size_t t = 0; t < slots.size(); ++t) {
      auto block = static_cast<size_t>(table[static_cast<size_t>(slots[t] * 3 + positions[t] / 16)]),
           place = static_cast<size_t>(positions[t] % 16);
      for (size_t j = 0; j < d; ++j) {
        pool[((block * 2 + 0) * d + j) * 16 + place] = x[t * width + 2 + j];
        pool[(block * 2 + 1) * d * 16 + place * d + j] = x[t * width + 2 + d + j];
      }
    }
    EXPECT_EQ(values_of<float>(run(c, 1).operands[4]), pool);
  }
}

TEST(WriteBlock, FillsTheLeadingCornerAndLeavesTheRest) {
  Case c = write_block_case();
  auto x = values_of<float>(c.operands[0].data), buffer = values_of<float>(c.operands[1].data);
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 2; ++j)
      for (size_t k = 0; k < 4; ++k) buffer[(i * 3 + j) * 6 + k] = x[(i * 2 + j) * 4 + k];
  EXPECT_EQ(values_of<float>(run(c, 1).operands[1]), buffer);
}

TEST(RaggedIndex, SaysWhereRowsLie) {
  CaseBuilder b("ragged_index", {{"tokens", std::string("tokens")}});
  b.size("rows", 3).size("tokens", 6);
  b.add("lengths", {"rows"}, std::vector<int32_t>{2, 1, 3});
  Outcome outcome = run(b.done(), 1);
  ASSERT_TRUE(outcome.status);
  using Ints = std::vector<int32_t>;
  EXPECT_EQ(values_of<int32_t>(outcome.outputs[0]), (Ints{0, 2, 3}));
  EXPECT_EQ(values_of<int32_t>(outcome.outputs[1]), (Ints{1, 2, 5}));
  EXPECT_EQ(values_of<int32_t>(outcome.outputs[2]), (Ints{0, 0, 1, 2, 2, 2}));
  EXPECT_EQ(values_of<int32_t>(outcome.outputs[3]), (Ints{0, 1, 0, 0, 1, 2}));
}

TEST(GatherRows, CopiesIntegersAsTheyAre) {
  Case c = gather_rows_case(true);
  auto x = values_of<int32_t>(c.operands[0].data), rows = values_of<int32_t>(c.operands[1].data),
       expected = rows;
  for (size_t i = 0; i < rows.size(); ++i) expected[i] = x[static_cast<size_t>(rows[i])];
  EXPECT_EQ(values_of<int32_t>(run(c, 1).outputs[0]), expected);
}

TEST(WriteBlock, RefusesABlockLargerThanItsBuffer) {
  CaseBuilder b("write_block");
  b.size("n", 6);
  b.add("x", {"n", 2}, normal(12));
  b.add("buffer", {5, 3}, normal(15)).shared = true;
  Case c = b.done();
  Outcome outcome = run(c, 1);
  expect_error(outcome.status, ErrorCode::kUsage, {"dimension 0 is 6", "the buffer has 5"});
  EXPECT_EQ(outcome.operands[1], c.operands[1].data);
}

TEST(SelectArgmax, TakesTheLowestIdOfEqualOnesInAnyChunkAndSkipsSuppressedOnes) {
  for (int64_t n : {1, 16, 300, 600}) {
    CaseBuilder b("select_argmax", {{"suppress", n > 1 ? std::vector<int64_t>{0} : std::vector<int64_t>{}}});
    b.size("rows", 2);
    b.add("x", {"rows", 1}, std::vector<float>{1, 0});
    b.panels("W", n, 1, std::vector<float>(static_cast<size_t>(n), 2.0f));
    Case c = b.done(1e-5);
    for (int workers : {1, 3, kReference}) {
      Outcome outcome = run(c, workers);
      ASSERT_TRUE(outcome.status);
      int32_t ids[2];
      float scores[2];
      std::memcpy(ids, outcome.outputs[0].data(), 8);
      std::memcpy(scores, outcome.outputs[1].data(), 8);
      EXPECT_EQ(ids[0], n > 1);
      EXPECT_EQ(ids[1], n > 1);
      EXPECT_NEAR(scores[0], -std::log(static_cast<double>(n)), 1e-5);
    }
  }
}

}  // namespace
}  // namespace duet::model
