// Every kernel table beside a plain double-precision reference, and beside each other: the same bits,
// whatever the instruction set, the rows of a call or the workers that share it. Operands end at a page that
// may not be touched.
#include "model/kernels/kernels.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace duet::model::kernels {
namespace {

constexpr double kEpsilon = 0x1p-24;   // half a unit in the last place of a float near 1: one rounding
constexpr double kExpError = 1.56e-7;  // relative; derived above TheErrorOfExpStaysBelowItsBound
constexpr double kErfError = 6e-7;     // absolute: 1.5e-7 of the formula, the rest of its roundings
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Activation kActivations[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                                       Activation::kSwish};

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> all;
  for (auto* table = available_kernels(); *table; ++table) all.push_back(*table);
  return all;
}

// Floats whose last byte is the last one before a page that faults when it is touched.
class Guarded {
 public:
  explicit Guarded(size_t count, float fill = 0) : count_(count) {
    size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    size_t used = (count * sizeof(float) + page - 1) / page * page;
    mapped_ = used + page;
    base_ = static_cast<char*>(
        ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || ::mprotect(base_ + used, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<float*>(base_ + used - count * sizeof(float));
    std::fill_n(data_, count, fill);
  }
  explicit Guarded(const std::vector<float>& values) : Guarded(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  Guarded(Guarded&& other) noexcept
      : count_(other.count_),
        mapped_(other.mapped_),
        base_(std::exchange(other.base_, nullptr)),
        data_(other.data_) {}
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (base_) ::munmap(base_, mapped_);
  }

  float* data() { return data_; }
  const float* data() const { return data_; }
  size_t size() const { return count_; }
  float& operator[](size_t i) { return data_[i]; }
  float operator[](size_t i) const { return data_[i]; }

 private:
  size_t count_, mapped_ = 0;
  char* base_ = nullptr;
  float* data_ = nullptr;
};

uint32_t bits(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}

// Equal bits; of a NaN only that it is one (its payload is the processor's choice).
testing::AssertionResult same(const float* a, const float* b, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (bits(a[i]) != bits(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i])))
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
  return testing::AssertionSuccess();
}

enum class Values { kOrdinary, kExtreme, kWithNan };

std::vector<float> random_values(std::mt19937& random, size_t count, Values kind = Values::kOrdinary) {
  static constexpr float kExtremes[] = {0.0f,   -0.0f, 1e-40f,  -1e-45f,     1.17549435e-38f, 3e38f,
                                        -3e38f, 1e20f, -1e-20f, 16777217.0f, kInfinity,       -kInfinity};
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) {
    v = normal(random);
    if (kind != Values::kOrdinary && random() % 4 == 0) v = kExtremes[random() % std::size(kExtremes)];
    if (kind == Values::kWithNan && random() % 64 == 0) v = kNan;
  }
  return values;
}

double activate_exactly(double x, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Activation::kSwish:
      return x / (1 + std::exp(-x));
  }
  return x;
}

// How far a kernel's activation of a number within `error` of x may be from the exact one. Slopes are
// below 1.13.
double activation_error(double x, double error, Activation activation) {
  double y = std::abs(activate_exactly(x, activation));
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return error;
    case Activation::kGelu:
      return 1.13 * error + std::abs(x) / 2 * kErfError + 3 * kEpsilon * y;
    case Activation::kSwish:
      return 1.13 * error + (kExpError + 3 * kEpsilon) * y + 1e-30;
  }
  return error;
}

// ---- linear
// ---------------------------------------------------------------------------------------------------------

struct LinearCase {
  int64_t rows, k, n;
  bool bias = false, residual = false, in_place = false;
  Activation activation = Activation::kNone;
  int64_t gap = 0;  // unused floats between rows
  Values values = Values::kOrdinary;
};

std::ostream& operator<<(std::ostream& out, const LinearCase& c) {
  return out << c.rows << " rows, k " << c.k << ", n " << c.n << (c.bias ? ", bias" : "")
             << (c.residual ? c.in_place ? ", residual in place" : ", residual" : "") << ", activation "
             << static_cast<int>(c.activation) << ", gap " << c.gap << ", values "
             << static_cast<int>(c.values);
}

constexpr float kCanary = 1234.5f;

class LinearOperands {
 public:
  LinearOperands(const LinearCase& c, uint32_t seed)
      : case_(c),
        x_stride_(c.k + c.gap),
        n_stride_(c.n + c.gap),
        random_(seed),
        x_(random_values(random_, extent(c.rows, x_stride_, c.k), c.values)),
        weights_(random_values(random_, static_cast<size_t>(c.n * c.k), c.values)),
        bias_(random_values(random_, static_cast<size_t>(c.n), c.values)),
        residual_(random_values(random_, extent(c.rows, n_stride_, c.n), c.values)),
        panels_(static_cast<size_t>((c.n + 15) / 16 * c.k * 16)) {
    for (int64_t i = 0; i < c.n; ++i)
      for (int64_t j = 0; j < c.k; ++j)
        panels_[static_cast<size_t>((i / 16 * c.k + j) * 16 + i % 16)] =
            weights_[static_cast<size_t>(i * c.k + j)];
  }

  // The result of outputs first..first + n of rows row..row + rows, in an array as large as the whole output.
  void run(const KernelTable& table, Guarded& out, int64_t row, int64_t rows, int64_t first,
           int64_t n) const {
    LinearArgs args;
    args.x = x_.data() + row * x_stride_;
    args.x_stride = x_stride_;
    args.panels = panels_.data() + first * case_.k;
    args.bias = case_.bias ? bias_.data() + first : nullptr;
    args.out = out.data() + row * n_stride_ + first;
    args.out_stride = n_stride_;
    args.residual = nullptr;
    args.residual_stride = 0;
    if (case_.residual) {
      const Guarded& residual = case_.in_place ? out : residual_;
      args.residual = residual.data() + row * n_stride_ + first;
      args.residual_stride = n_stride_;
    }
    args.rows = rows;
    args.k = case_.k;
    args.n = n;
    args.activation = case_.activation;
    table.linear(args);
  }

  Guarded fresh_output() const {
    Guarded out(residual_.size(), kCanary);
    if (case_.in_place) std::copy_n(residual_.data(), residual_.size(), out.data());
    return out;
  }
  Guarded run(const KernelTable& table) const {
    Guarded out = fresh_output();
    run(table, out, 0, case_.rows, 0, case_.n);
    return out;
  }

  void expect_near_reference(const Guarded& out) const {
    for (int64_t r = 0; r < case_.rows; ++r) {
      for (int64_t i = 0; i < case_.n; ++i) {
        double sum = 0, magnitude = 0;
        for (int64_t j = 0; j < case_.k; ++j) {
          double product = double{x_[static_cast<size_t>(r * x_stride_ + j)]} *
                           double{weights_[static_cast<size_t>(i * case_.k + j)]};
          sum += product;
          magnitude += std::abs(product);
        }
        if (case_.bias) {
          sum += double{bias_[static_cast<size_t>(i)]};
          magnitude += std::abs(double{bias_[static_cast<size_t>(i)]});
        }
        // k fused steps and the bias each round a partial sum, which is at most `magnitude`.
        double error = static_cast<double>(case_.k + 1) * kEpsilon * magnitude * 1.01;
        double expected = activate_exactly(sum, case_.activation);
        error = activation_error(sum, error, case_.activation);
        auto at = static_cast<size_t>(r * n_stride_ + i);
        if (case_.residual) {
          expected += double{residual_[at]};
          error += kEpsilon * (std::abs(expected) + error);
        }
        ASSERT_NEAR(double{out[at]}, expected, error + 1e-44) << "row " << r << " output " << i;
      }
    }
  }

  void expect_gaps_untouched(const Guarded& out) const {
    for (size_t i = 0; i < out.size(); ++i) {
      if (static_cast<int64_t>(i) % n_stride_ < case_.n) continue;
      ASSERT_EQ(bits(out[i]), bits(case_.in_place ? residual_[i] : kCanary))
          << "element " << i << " lies between rows";
    }
  }

 private:
  static size_t extent(int64_t rows, int64_t stride, int64_t width) {
    return static_cast<size_t>((rows - 1) * stride + width);
  }

  LinearCase case_;
  int64_t x_stride_, n_stride_;
  std::mt19937 random_;
  Guarded x_, weights_, bias_, residual_, panels_;
};

LinearCase random_linear(std::mt19937& random) {
  LinearCase c;
  c.rows = 1 + random() % 17;
  c.k = 1 + random() % 70;
  c.n = 1 + random() % 100;
  c.bias = random() % 2;
  c.residual = random() % 2;
  c.in_place = c.residual && random() % 2;
  c.activation = kActivations[random() % 4];
  c.gap = random() % 3 ? 0 : random() % 20;
  return c;
}

// Every n and every k and every number of rows at least once, the rest by chance.
std::vector<LinearCase> linear_cases() {
  std::mt19937 random(1);
  std::vector<LinearCase> cases;
  auto add = [&](auto set) {
    LinearCase c = random_linear(random);
    set(c);
    cases.push_back(c);
  };
  for (int64_t n = 1; n <= 100; ++n) add([&](LinearCase& c) { c.n = n; });
  for (int64_t n = 1; n <= 200; n += 13) add([&](LinearCase& c) { c.n = n, c.rows = 1; });
  for (int64_t k = 1; k <= 70; ++k) add([&](LinearCase& c) { c.k = k; });
  for (int64_t rows = 1; rows <= 17; ++rows)
    for (int i = 0; i < 8; ++i)
      add([&](LinearCase& c) { c.rows = rows, c.activation = kActivations[i % 4]; });
  return cases;
}

TEST(LinearKernels, AgreeWithDoublePrecision) {
  for (const LinearCase& c : linear_cases()) {
    LinearOperands operands(c, 2);
    for (const KernelTable* table : tables()) {
      SCOPED_TRACE(testing::Message() << table->name << ": " << c);
      Guarded out = operands.run(*table);
      operands.expect_near_reference(out);
      operands.expect_gaps_untouched(out);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(LinearKernels, AreTheSameBitsOnEveryInstructionSet) {
  for (Values values : {Values::kOrdinary, Values::kExtreme, Values::kWithNan}) {
    for (LinearCase c : linear_cases()) {
      c.values = values;
      LinearOperands operands(c, 3);
      Guarded portable = operands.run(*tables()[0]);
      for (const KernelTable* table : tables())
        ASSERT_TRUE(same(portable.data(), operands.run(*table).data(), portable.size()))
            << table->name << ": " << c;
    }
  }
}

TEST(LinearKernels, GiveEachRowWhatItGetsAlone) {
  for (const LinearCase& c : linear_cases()) {
    LinearOperands operands(c, 4);
    for (const KernelTable* table : tables()) {
      Guarded together = operands.run(*table), apart = operands.fresh_output();
      for (int64_t row = 0; row < c.rows; ++row) operands.run(*table, apart, row, 1, 0, c.n);
      ASSERT_EQ(0, std::memcmp(together.data(), apart.data(), together.size() * sizeof(float)))
          << table->name << ": " << c;
    }
  }
}

TEST(LinearKernels, DoNotDependOnHowPanelsAreSharedOut) {
  for (const LinearCase& c : linear_cases()) {
    LinearOperands operands(c, 5);
    int64_t panels = (c.n + 15) / 16;
    for (const KernelTable* table : tables()) {
      Guarded whole = operands.run(*table);
      for (int64_t workers = 2; workers <= 5; ++workers) {
        Guarded shared = operands.fresh_output();
        for (int64_t w = 0; w < workers; ++w) {
          int64_t first = panels * w / workers * 16, end = std::min(c.n, panels * (w + 1) / workers * 16);
          if (first < end) operands.run(*table, shared, 0, c.rows, first, end - first);
        }
        ASSERT_EQ(0, std::memcmp(whole.data(), shared.data(), whole.size() * sizeof(float)))
            << table->name << ", " << workers << " workers: " << c;
      }
    }
  }
}

TEST(LinearKernels, LetNansThrough) {
  for (const KernelTable* table : tables()) {
    for (Activation activation : {Activation::kNone, Activation::kGelu, Activation::kSwish}) {
      for (int where = 0; where < 3; ++where) {
        std::vector<float> x(40, 1.0f), panels(3 * 20 * 16, 0.5f), bias(40, 0.25f), out(2 * 40);
        size_t nan_row = 2, nan_output = 40;
        if (where == 0) x[20 + 7] = kNan, nan_row = 1;                          // row 1
        if (where == 1) panels[(20 + 3) * 16 + 5] = kNan, nan_output = 16 + 5;  // output 21
        if (where == 2) bias[39] = kNan, nan_output = 39;
        table->linear(
            {x.data(), 20, panels.data(), bias.data(), nullptr, 0, out.data(), 40, 2, 20, 40, activation});
        for (size_t r = 0; r < 2; ++r)
          for (size_t i = 0; i < 40; ++i)
            EXPECT_EQ(std::isnan(out[r * 40 + i]), r == nan_row || i == nan_output)
                << table->name << " " << r << " " << i;
      }
    }
  }
}

// ---- The fused multiply-add
// -------------------------------------------------------------------------------------------

// a * b[i] + c[i] by every table: x = (1, a), weights c and b. (The chain begins with 0 + 1 * c, so that c =
// -0 becomes 0.)
void expect_fused(float a, const std::vector<float>& b, const std::vector<float>& c) {
  size_t n = b.size();
  ASSERT_EQ(n % 16, 0u);
  std::vector<float> panels(2 * n), out(n);
  for (size_t i = 0; i < n; ++i) {
    panels[i / 16 * 32 + i % 16] = c[i];
    panels[i / 16 * 32 + 16 + i % 16] = b[i];
  }
  float x[2] = {1, a};
  auto width = static_cast<int64_t>(n);
  for (const KernelTable* table : tables()) {
    table->linear(
        {x, 2, panels.data(), nullptr, nullptr, 0, out.data(), width, 1, 2, width, Activation::kNone});
    for (size_t i = 0; i < n; ++i) {
      float expected = std::fma(a, b[i], c[i] + 0.0f);
      if (std::isnan(expected) && std::isnan(out[i])) continue;
      ASSERT_EQ(bits(out[i]), bits(expected)) << table->name << ": " << std::hexfloat << a << " * " << b[i]
                                              << " + " << c[i] << " = " << out[i] << ", not " << expected;
    }
  }
}

float random_bits(std::mt19937& random) {
  auto b = static_cast<uint32_t>(random());
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

TEST(FusedMultiplyAdd, RoundsOnceForAMillionRandomTriples) {
  std::mt19937 random(6);
  constexpr size_t kBatch = 4096;
  std::vector<float> b(kBatch), c(kBatch);
  for (int batch = 0; batch < 256; ++batch) {
    float a = random_bits(random);
    for (size_t i = 0; i < kBatch; ++i) b[i] = random_bits(random), c[i] = random_bits(random);
    expect_fused(a, b, c);
    if (HasFatalFailure()) return;
  }
}

// The cases where rounding the product, or rounding twice, shows: sums that nearly cancel, and sums that lie
// exactly or almost half-way between two floats, subnormal ones included.
TEST(FusedMultiplyAdd, RoundsOnceForAMillionAdversarialTriples) {
  std::mt19937 random(7);
  constexpr size_t kBatch = 4096;
  std::vector<float> b(kBatch), c(kBatch);
  for (int batch = 0; batch < 256; ++batch) {
    // Few significant bits make exact ties likely.
    int significant = batch % 2 ? 24 : 2 + static_cast<int>(random() % 11);
    auto number = [&](int least, int most) {
      auto mantissa = static_cast<float>((1u << (significant - 1)) + random() % (1u << (significant - 1)));
      return std::ldexp(
          random() % 2 ? mantissa : -mantissa,
          least + static_cast<int>(random() % static_cast<unsigned>(most - least + 1)) - significant);
    };
    bool tiny = batch % 4 >= 2;  // results near the subnormal numbers
    float a = tiny ? number(-70, -60) : number(-3, 3);
    for (size_t i = 0; i < kBatch; ++i) {
      b[i] = tiny ? number(-75, -55) : number(-3, 3);
      float product = a * b[i];
      switch (random() % 4) {
        case 0:
          c[i] = -product;
          break;
        case 1:
          c[i] = std::nextafter(-product, random() % 2 ? kInfinity : -kInfinity);
          break;
        case 2:
          c[i] = std::ldexp(random() % 2 ? 1.0f : -1.0f,
                            std::ilogb(product) + 23 + static_cast<int>(random() % 4));
          break;
        default:
          c[i] = std::nextafter(std::ldexp(product, 24 + static_cast<int>(random() % 3)),
                                random() % 2 ? kInfinity : 0.0f);
      }
    }
    expect_fused(a, b, c);
    if (HasFatalFailure()) return;
  }
}

// (1 + x)(1 - x) = 1 - x^2 beside a number whose last place is twice as large: a hair below half-way. A sum
// rounded to double first lands on the half-way point itself and then goes to the even neighbour, which is
// wrong every other time.
TEST(FusedMultiplyAdd, RoundsOnceAHairFromHalfWay) {
  std::mt19937 random(16);
  constexpr size_t kBatch = 4096;
  std::vector<float> b(kBatch), c(kBatch);
  for (int batch = 0; batch < 64; ++batch) {
    int p = 12 + batch % 12;     // x = 2^-p; 2 p >= 30 is what double cannot hold
    bool tiny = batch % 3 == 0;  // sums among the subnormal numbers
    float x = std::ldexp(random() % 2 ? 1.0f : -1.0f, -p), a = std::ldexp(1 + x, tiny ? -70 : 3);
    for (size_t i = 0; i < kBatch; ++i) {
      int exponent = tiny ? -80 : static_cast<int>(random() % 60) - 30;
      b[i] = std::ldexp(random() % 2 ? 1 - x : x - 1, exponent);
      auto mantissa = static_cast<float>(tiny ? random() % (1u << 23) : (1u << 23) + random() % (1u << 23));
      c[i] = std::ldexp(random() % 2 ? mantissa : -mantissa,
                        tiny ? -149 : exponent + 3 + 1);  // last place: twice the product
    }
    expect_fused(a, b, c);
    if (HasFatalFailure()) return;
  }
}

// ---- norm
// -----------------------------------------------------------------------------------------------------------

TEST(NormKernels, AgreeWithDoublePrecisionAndEachOtherRowByRow) {
  std::mt19937 random(8);
  for (int64_t columns = 1; columns <= 140; columns += columns < 70 ? 1 : 7) {
    for (bool with_beta : {false, true}) {
      int64_t rows = 1 + static_cast<int64_t>(random() % 5);
      auto width = static_cast<size_t>(columns);
      Guarded x(random_values(random, static_cast<size_t>(rows) * width)),
          gamma(random_values(random, width)), beta(random_values(random, width));
      for (size_t i = 0; i < width; ++i) x[i] = x[i] * 0.01f + 3;  // a row far from zero
      Guarded first(x.size());
      const float epsilon = 1e-5f;
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(testing::Message() << table->name << ", " << columns << " columns");
        Guarded out(x.size(), kCanary), in_place(x.size()), apart(x.size());
        table->norm(x.data(), rows, columns, gamma.data(), with_beta ? beta.data() : nullptr, epsilon,
                    out.data());
        std::copy_n(x.data(), x.size(), in_place.data());
        table->norm(in_place.data(), rows, columns, gamma.data(), with_beta ? beta.data() : nullptr, epsilon,
                    in_place.data());
        for (int64_t r = 0; r < rows; ++r)
          table->norm(x.data() + r * columns, 1, columns, gamma.data(), with_beta ? beta.data() : nullptr,
                      epsilon, apart.data() + r * columns);
        ASSERT_TRUE(same(out.data(), in_place.data(), out.size())) << "in place";
        ASSERT_TRUE(same(out.data(), apart.data(), out.size())) << "row by row";
        if (table == tables()[0]) std::copy_n(out.data(), out.size(), first.data());
        ASSERT_TRUE(same(first.data(), out.data(), out.size())) << "unlike portable";
        for (int64_t r = 0; r < rows; ++r) {
          const float* row = x.data() + r * columns;
          double mean = 0, variance = 0, largest = 0;
          for (size_t i = 0; i < width; ++i)
            mean += double{row[i]}, largest = std::max(largest, std::abs(double{row[i]}));
          mean /= static_cast<double>(columns);
          for (size_t i = 0; i < width; ++i) variance += (double{row[i]} - mean) * (double{row[i]} - mean);
          variance /= static_cast<double>(columns);
          double scale = 1 / std::sqrt(variance + double{epsilon});
          // The mean of n numbers in 16 lanes: n/16 + 4 roundings of partial sums, one of the quotient; then
          // every deviation is off by that much, and the scale by a few roundings and twice the relative
          // error of deviations.
          double depth = static_cast<double>(columns) / 16 + 6;
          double mean_error = depth * kEpsilon * largest;
          double relative = (depth + 6) * kEpsilon + mean_error * mean_error * scale * scale +
                            2 * mean_error * scale * kEpsilon;
          for (size_t i = 0; i < width; ++i) {
            double y = (double{row[i]} - mean) * scale * double{gamma[i]},
                   b = with_beta ? double{beta[i]} : 0.0;
            double error = std::abs(y) * relative +
                           (mean_error + kEpsilon * largest) * scale * std::abs(double{gamma[i]}) * 1.01 +
                           kEpsilon * std::abs(y + b);
            ASSERT_NEAR(double{out[static_cast<size_t>(r) * width + i]}, y + b, error)
                << "row " << r << " column " << i;
          }
        }
      }
    }
  }
}

TEST(NormKernels, AreTheSameBitsOnExtremeNumbers) {
  std::mt19937 random(9);
  for (int64_t columns : {1, 15, 16, 17, 33, 64, 100}) {
    Guarded x(random_values(random, static_cast<size_t>(20 * columns), Values::kWithNan));
    Guarded gamma(random_values(random, static_cast<size_t>(columns), Values::kExtreme));
    Guarded first(x.size());
    tables()[0]->norm(x.data(), 20, columns, gamma.data(), gamma.data(), 1e-5f, first.data());
    for (const KernelTable* table : tables()) {
      Guarded out(x.size());
      table->norm(x.data(), 20, columns, gamma.data(), gamma.data(), 1e-5f, out.data());
      ASSERT_TRUE(same(first.data(), out.data(), out.size())) << table->name << " " << columns;
    }
  }
}

// ---- attend
// -----------------------------------------------------------------------------------------------------------

// Keys and values in blocks of 16, each block at the end of a page of its own.
struct AttendOperands {
  AttendOperands(std::mt19937& random, int64_t size, int64_t count, int64_t gap)
      : head_size(size),
        keys(count),
        key_stride(16 + gap),
        value_stride(size + gap),
        query(random_values(random, static_cast<size_t>(size))) {
    for (int64_t first = 0; first < keys; first += 16) {
      int64_t used = std::min<int64_t>(16, keys - first);
      // All 16 places of a key block are memory, of a value block only those used.
      key_blocks.emplace_back(random_values(random, static_cast<size_t>((head_size - 1) * key_stride + 16)));
      value_blocks.emplace_back(
          random_values(random, static_cast<size_t>((used - 1) * value_stride + head_size)));
      for (int64_t d = 0; d < head_size; ++d)  // behind the last key: whatever the cache held before
        for (int64_t t = used; t < 16; ++t)
          key_blocks.back()[static_cast<size_t>(d * key_stride + t)] = t % 2 ? kNan : kInfinity;
    }
  }

  Guarded run(const KernelTable& table) const {
    std::vector<const float*> key_pointers, value_pointers;
    for (size_t b = 0; b < key_blocks.size(); ++b) {
      key_pointers.push_back(key_blocks[b].data());
      value_pointers.push_back(value_blocks[b].data());
    }
    Guarded out(static_cast<size_t>(head_size), kCanary), scores(key_blocks.size() * 16, kNan);
    table.attend({query.data(), key_pointers.data(), value_pointers.data(), key_stride, value_stride,
                  head_size, keys, scale, scores.data(), out.data()});
    return out;
  }

  void expect_near_reference(const Guarded& out) const {
    std::vector<double> score(static_cast<size_t>(keys)), weight(score.size());
    double magnitude = 0, top = -INFINITY, sum = 0;
    for (int64_t t = 0; t < keys; ++t) {
      double total = 0, absolute = 0;
      for (int64_t d = 0; d < head_size; ++d) {
        double product =
            double{query[static_cast<size_t>(d)]} *
            double{key_blocks[static_cast<size_t>(t / 16)][static_cast<size_t>(d * key_stride + t % 16)]};
        total += product;
        absolute += std::abs(product);
      }
      score[static_cast<size_t>(t)] = total * double{scale};
      magnitude = std::max(magnitude, absolute * double{scale});
      top = std::max(top, score[static_cast<size_t>(t)]);
    }
    for (size_t t = 0; t < score.size(); ++t) sum += weight[t] = std::exp(score[t] - top);
    // A score is off by head_size + 1 roundings, score - top by twice that and one more; a weight by that and
    // by exp's error; the sums by their length.
    double relative = 2 * (static_cast<double>(head_size + 2) * kEpsilon * magnitude) +
                      2 * kEpsilon * std::abs(top) + 2 * kExpError +
                      static_cast<double>(2 * keys + 8) * kEpsilon;
    for (int64_t d = 0; d < head_size; ++d) {
      double expected = 0, absolute = 0;
      for (int64_t t = 0; t < keys; ++t) {
        double v =
            double{value_blocks[static_cast<size_t>(t / 16)][static_cast<size_t>(t % 16 * value_stride + d)]};
        expected += weight[static_cast<size_t>(t)] / sum * v;
        absolute += weight[static_cast<size_t>(t)] / sum * std::abs(v);
      }
      ASSERT_NEAR(double{out[static_cast<size_t>(d)]}, expected, 2 * relative * absolute)
          << "dimension " << d;
    }
  }

  int64_t head_size, keys, key_stride, value_stride;
  float scale = 0.25f;
  Guarded query;
  std::vector<Guarded> key_blocks, value_blocks;
};

TEST(AttendKernels, AgreeWithDoublePrecisionAndEachOtherAndDoNotSeeBehindTheLastKey) {
  std::mt19937 random(10);
  for (int64_t head_size = 1; head_size <= 80; ++head_size) {
    for (int i = 0; i < 12; ++i) {
      int64_t keys = i < 6 ? 1 + static_cast<int64_t>(random() % 70) : (head_size * 6 + i) % 70 + 1;
      AttendOperands operands(random, head_size, keys, i % 3 ? 0 : 5);
      Guarded portable = operands.run(*tables()[0]);
      for (const KernelTable* table : tables()) {
        SCOPED_TRACE(testing::Message()
                     << table->name << ", head size " << head_size << ", " << keys << " keys");
        Guarded out = operands.run(*table);
        operands.expect_near_reference(out);
        ASSERT_TRUE(same(portable.data(), out.data(), out.size()));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttendKernels, GiveTheValueOfTheOnlyKeyThatMatters) {
  std::mt19937 random(11);
  AttendOperands operands(random, 16, 40, 0);
  for (size_t d = 0; d < 16; ++d) operands.query[d] = 100;
  for (auto& block : operands.key_blocks)
    for (size_t i = 0; i < block.size(); ++i)
      if (!(i % 16 >= 8 && &block == &operands.key_blocks.back())) block[i] = -1;
  for (size_t d = 0; d < 16; ++d) operands.key_blocks[1][d * 16 + 3] = 1;  // key 19
  for (const KernelTable* table : tables()) {
    Guarded out = operands.run(*table);
    for (size_t d = 0; d < 16; ++d)
      EXPECT_FLOAT_EQ(out[d], operands.value_blocks[1][3 * 16 + d]) << table->name;
  }
}

TEST(AttendKernels, AreTheSameBitsOnExtremeNumbers) {
  std::mt19937 random(12);
  for (int i = 0; i < 300; ++i) {
    AttendOperands operands(random, 1 + static_cast<int64_t>(random() % 80),
                            1 + static_cast<int64_t>(random() % 70), 0);
    auto spoil = [&](Guarded& values) {
      auto extremes = random_values(random, values.size(), i % 2 ? Values::kWithNan : Values::kExtreme);
      std::copy(extremes.begin(), extremes.end(), values.data());
    };
    spoil(operands.query);
    for (auto& block : operands.key_blocks) spoil(block);
    for (auto& block : operands.value_blocks) spoil(block);
    Guarded portable = operands.run(*tables()[0]);
    for (const KernelTable* table : tables())
      ASSERT_TRUE(same(portable.data(), operands.run(*table).data(), portable.size()))
          << table->name << " case " << i;
  }
}

// ---- Elementwise, and sums of exponentials
// ----------------------------------------------------------------------------

TEST(MaxSumExpKernels, AgreeWithDoublePrecisionAndEachOther) {
  std::mt19937 random(13);
  for (size_t n = 1; n <= 300; n += n < 70 ? 1 : 23) {
    Guarded x(random_values(random, n));
    for (size_t i = 0; i < n; ++i) x[i] = x[i] * 5 - 40;
    double top = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; ++i) top = std::max(top, double{x[i]});
    for (size_t i = 0; i < n; ++i) sum += std::exp(double{x[i]} - top);
    float first_sum = 0;
    for (const KernelTable* table : tables()) {
      float max = 0, total = 0;
      table->max_sum_exp(x.data(), static_cast<int64_t>(n), &max, &total);
      EXPECT_EQ(double{max}, top) << table->name << " " << n;
      // x - max rounds: an absolute error of 2^-24 times a difference of less than 64; then exp and the sum.
      double relative = 64 * kEpsilon + kExpError + (static_cast<double>(n) / 16 + 5) * kEpsilon;
      EXPECT_NEAR(double{total}, sum, relative * sum) << table->name << " " << n;
      if (table == tables()[0]) first_sum = total;
      EXPECT_EQ(bits(first_sum), bits(total)) << table->name << " " << n;
    }
  }
}

TEST(MaxSumExpKernels, TakeInfinitiesForWhatTheyAre) {
  for (const KernelTable* table : tables()) {
    std::vector<float> x(37, -kInfinity);
    x[20] = 2.5f;
    float max = 0, sum = 0;
    table->max_sum_exp(x.data(), 37, &max, &sum);
    EXPECT_EQ(max, 2.5f) << table->name;
    EXPECT_FLOAT_EQ(sum, 1) << table->name;
  }
}

// Relative to e^r >= 0.707, r = x - n ln 2: the last step of the polynomial rounds a number below 1.42 to
// 2^-24 (8.4e-8 where it is worst), the one before adds 0.35 of a rounding (3e-8), all others 5e-9; the two
// steps that give r round numbers below 0.5 to 2^-26 (2 * 1.5e-8, a relative error of the result); the Taylor
// series leaves 0.3466^8 / 8! / 0.707 = 7.3e-9; the two parts of ln 2 leave 127 * 6e-12. That is 1.56e-7 if
// all the worst places met; they do not: e^r >= 1 halves the first.
TEST(ExpKernels, TheErrorOfExpStaysBelowItsBound) {
  double worst = 0;
  for (const KernelTable* table : tables()) {
    std::vector<float> x, y;
    for (double v = -87.3; v < 88.0; v += 175.3 / (1 << 22)) x.push_back(static_cast<float>(v));
    for (float v = 1e-38f; v < 1; v *= 1.001f) x.push_back(v), x.push_back(-v);
    y.resize(x.size());
    table->exp(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      double exact = std::exp(double{x[i]});
      worst = std::max(worst, std::abs(double{y[i]} - exact) / exact);
    }
  }
  EXPECT_LT(worst, kExpError);
  std::cout << "largest relative error of exp: " << worst << std::endl;
}

TEST(ExpKernels, StayAtTheirEndsAndLetNansThrough) {
  for (const KernelTable* table : tables()) {
    float x[] = {0, -0.0f, -87.3f, -88, -1e30f, -kInfinity, 88, 89, kInfinity, kNan, 1e-45f};
    float y[11];
    table->exp(x, 11, y);
    EXPECT_EQ(y[0], 1) << table->name;
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[3], y[2]);
    EXPECT_EQ(y[4], y[2]);
    EXPECT_EQ(y[5], y[2]);
    EXPECT_GE(y[2], std::numeric_limits<float>::min());
    EXPECT_EQ(y[7], y[6]);
    EXPECT_EQ(y[8], y[6]);
    EXPECT_TRUE(std::isfinite(y[8]));
    EXPECT_TRUE(std::isnan(y[9]));
    EXPECT_EQ(y[10], 1);
  }
}

TEST(ElementwiseKernels, AreTheSameBitsOnEveryInstructionSetAndLength) {
  std::mt19937 random(14);
  for (size_t n = 1; n <= 3000; n = n < 70 ? n + 1 : n * 2 + 1) {
    Guarded x(random_values(random, n, n % 2 ? Values::kWithNan : Values::kExtreme)), first(n), out(n);
    if (n > 1000)
      for (size_t i = 0; i < n; ++i) x[i] = random_bits(random);
    for (const KernelTable* table : tables()) {
      auto count = static_cast<int64_t>(n);
      table->exp(x.data(), count, out.data());
      tables()[0]->exp(x.data(), count, first.data());
      ASSERT_TRUE(same(first.data(), out.data(), n)) << table->name << " exp of " << n;
      for (Activation activation : kActivations) {
        table->activate(x.data(), count, activation, out.data());
        tables()[0]->activate(x.data(), count, activation, first.data());
        ASSERT_TRUE(same(first.data(), out.data(), n))
            << table->name << " activation " << static_cast<int>(activation) << " of " << n;
      }
    }
  }
}

TEST(ActivationKernels, StayWithinTheirErrorOfTheExactFunctions) {
  std::vector<float> x, y;
  for (float v = -80; v <= 80; v += 0.001f) x.push_back(v);
  y.resize(x.size());
  for (const KernelTable* table : tables()) {
    for (Activation activation : kActivations) {
      double worst = 0;
      table->activate(x.data(), static_cast<int64_t>(x.size()), activation, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        double exact = activate_exactly(double{x[i]}, activation), error = std::abs(double{y[i]} - exact);
        ASSERT_LE(error, activation_error(double{x[i]}, 0, activation)) << table->name << " of " << x[i];
        worst = std::max(worst, error / (1 + std::abs(double{x[i]})));
      }
      if (table == tables()[0])
        std::cout << "activation " << static_cast<int>(activation) << ": largest error, in 1 + |x|: " << worst
                  << std::endl;
    }
  }
}

TEST(PortableLog, AgreesWithTheLibrary) {
  std::mt19937_64 random(15);
  for (int i = 0; i < 100000; ++i) {
    double x = std::exp(static_cast<double>(random() % 2000000) / 2000 - 500), exact = std::log(x);
    ASSERT_NEAR(portable_log(x), exact, 4e-16 * std::max(1.0, std::abs(exact))) << x;
  }
  EXPECT_EQ(portable_log(0), -INFINITY);
  EXPECT_EQ(portable_log(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(portable_log(-1)));
  EXPECT_EQ(portable_log(1), 0);
}

}  // namespace
}  // namespace duet::model::kernels
