// The kernels in plain C++, for every processor; the compiler may use what its target has.
#include <cstdint>

#include "model/kernels/kernels.h"

namespace duet::model::kernels {
extern const KernelTable kPortableKernels;
namespace {

// Four floats each, so that a compiler maps them to SSE2 or NEON registers.
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t QuadInt __attribute__((vector_size(16)));
struct Lanes {
  Quad q[4];
};
constexpr int kTileRows = 3;
constexpr int kTilePanels = 1;

template <class F>
inline Lanes each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
inline Quad load_quad(const float* p) {
  Quad q;
  __builtin_memcpy(&q, p, sizeof q);
  return q;
}
inline Lanes load(const float* p) {
  return each([&](int i) { return load_quad(p + 4 * i); });
}
inline void store(float* p, Lanes a) { __builtin_memcpy(p, &a, sizeof a); }
inline Lanes zero() { return Lanes{}; }
inline Lanes load_partial(const float* p, int64_t n) {
  if (n >= 16) return load(p);
  float lane[16] = {};
  for (int64_t i = 0; i < n; ++i) lane[i] = p[i];
  return load(lane);
}
inline void store_partial(float* p, Lanes a, int64_t n) {
  float lane[16];
  store(lane, a);
  for (int64_t i = 0; i < n && i < 16; ++i) p[i] = lane[i];
}
inline Lanes broadcast(float x) {
  return each([&](int) { return Quad{x, x, x, x}; });
}
inline Lanes add(Lanes a, Lanes b) {
  return each([&](int i) { return a.q[i] + b.q[i]; });
}
inline Lanes sub(Lanes a, Lanes b) {
  return each([&](int i) { return a.q[i] - b.q[i]; });
}
inline Lanes mul(Lanes a, Lanes b) {
  return each([&](int i) { return a.q[i] * b.q[i]; });
}
inline Lanes div(Lanes a, Lanes b) {
  return each([&](int i) { return a.q[i] / b.q[i]; });
}

#if defined(__FMA__) || defined(__aarch64__)
inline float fused_scalar(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
// a * b + c rounded once, without the instruction: the product is exact in double; the sum is rounded to odd
// there (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008), so that the second
// rounding is right.
inline float fused_scalar(float a, float b, float c) {
  double product = static_cast<double>(a) * b, addend = c;
  double sum = product + addend;
  double part = sum - product;
  double error = (product - (sum - part)) + (addend - part);
  int64_t bits;
  __builtin_memcpy(&bits, &sum, sizeof bits);
  constexpr int64_t kExponent = int64_t{0x7ff} << 52;
  if (error != 0 && (bits & 1) == 0 && (bits & kExponent) != kExponent)
    bits += (error > 0) == (sum > 0) ? 1 : -1;
  __builtin_memcpy(&sum, &bits, sizeof sum);
  return static_cast<float>(sum);
}
#endif
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  return each([&](int i) {
    Quad r;
    for (int j = 0; j < 4; ++j) r[j] = fused_scalar(a.q[i][j], b.q[i][j], c.q[i][j]);
    return r;
  });
}
inline Quad choose(QuadInt mask, Quad a, Quad b) {
  return (Quad)(((QuadInt)a & mask) | ((QuadInt)b & ~mask));
}
inline Lanes maximum(Lanes a, Lanes b) {
  return each([&](int i) { return choose(a.q[i] > b.q[i], a.q[i], b.q[i]); });
}
inline Lanes minimum(Lanes a, Lanes b) {
  return each([&](int i) { return choose(a.q[i] < b.q[i], a.q[i], b.q[i]); });
}
inline Lanes square_root(Lanes a) {
  return each([&](int i) {
    Quad r;
    for (int j = 0; j < 4; ++j) r[j] = __builtin_sqrtf(a.q[i][j]);
    return r;
  });
}
// Right for |a| < 2^22, which exp's argument keeps.
inline Lanes round_even(Lanes a) {
  Lanes magic = broadcast(12582912.0f);
  return sub(add(a, magic), magic);
}
inline Lanes to_power(Lanes a, Lanes n) {
  return each([&](int i) {
    QuadInt exponent;
    for (int j = 0; j < 4; ++j) {
      float whole = n.q[i][j];
      exponent[j] = (whole == whole ? static_cast<int32_t>(whole) + 127 : 127) * (1 << 23);
    }
    return a.q[i] * (Quad)exponent;
  });
}
inline Lanes copy_sign(Lanes magnitude, Lanes sign) {
  QuadInt bit = {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN};
  return each([&](int i) { return choose(bit, sign.q[i], magnitude.q[i]); });
}
inline Lanes first_lanes(Lanes a, Lanes b, int64_t n) {
  return each([&](int i) {
    auto at = static_cast<int32_t>(n > 16 ? 16 : n);
    QuadInt index = {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3};
    return choose(index < QuadInt{at, at, at, at}, a.q[i], b.q[i]);
  });
}

#include "model/kernels/kernels_impl.h"

}  // namespace

const KernelTable kPortableKernels = {"portable", linear, norm, attend, max_sum_exp, exp_all, activate_all};

}  // namespace duet::model::kernels
