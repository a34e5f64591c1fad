// The kernels for AVX2 with FMA: 16 lanes are two registers.
#include <immintrin.h>

#include <cstdint>

#include "model/kernels/kernels.h"

namespace duet::model::kernels {
extern const KernelTable kAvx2Kernels;
namespace {

struct Lanes {
  __m256 low, high;
};
constexpr int kTileRows = 3;  // 3 x 2 x 2 registers of sums, 4 of weights: all 16
constexpr int kTilePanels = 2;

alignas(32) constexpr int32_t kMaskTable[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
// A mask with its first n lanes set, n clamped to 0..8.
inline __m256i below(int64_t n) {
  n = n < 0 ? 0 : n > 8 ? 8 : n;
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMaskTable + 8 - n));
}
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Lanes load_partial(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, below(n)),
          n > 8 ? _mm256_maskload_ps(p + 8, below(n - 8)) : _mm256_setzero_ps()};
}
inline void store(float* p, Lanes a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
inline void store_partial(float* p, Lanes a, int64_t n) {
  _mm256_maskstore_ps(p, below(n), a.low);
  if (n > 8) _mm256_maskstore_ps(p + 8, below(n - 8), a.high);
}
inline Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes maximum(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Lanes minimum(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Lanes square_root(Lanes a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
inline Lanes round_even(Lanes a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kMode), _mm256_round_ps(a.high, kMode)};
}
inline __m256 to_power(__m256 a, __m256 n) {
  __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23))));
}
inline Lanes to_power(Lanes a, Lanes n) { return {to_power(a.low, n.low), to_power(a.high, n.high)}; }
inline __m256 copy_sign(__m256 magnitude, __m256 sign) {
  __m256 bit = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}
inline Lanes copy_sign(Lanes a, Lanes s) { return {copy_sign(a.low, s.low), copy_sign(a.high, s.high)}; }
inline Lanes first_lanes(Lanes a, Lanes b, int64_t n) {
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(below(n))),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(below(n - 8)))};
}

#include "model/kernels/kernels_impl.h"

}  // namespace

const KernelTable kAvx2Kernels = {"avx2", linear, norm, attend, max_sum_exp, exp_all, activate_all};

}  // namespace duet::model::kernels
