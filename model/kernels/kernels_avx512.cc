// The kernels for AVX-512 (F, BW, VL, DQ): 16 lanes are one register.
#include <immintrin.h>

#include <cstdint>

#include "model/kernels/kernels.h"

namespace duet::model::kernels {
extern const KernelTable kAvx512Kernels;
namespace {

using Lanes = __m512;
constexpr int kTileRows = 6;  // 6 x 4 sums, 4 weights and a broadcast value: 29 of 32 registers
constexpr int kTilePanels = 4;

inline __mmask16 below(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
}
inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline Lanes load_partial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(below(n), p); }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a); }
inline void store_partial(float* p, Lanes a, int64_t n) { _mm512_mask_storeu_ps(p, below(n), a); }
inline Lanes broadcast(float x) { return _mm512_set1_ps(x); }
inline Lanes zero() { return _mm512_setzero_ps(); }
inline Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
inline Lanes sub(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
inline Lanes mul(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
inline Lanes div(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
inline Lanes maximum(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
inline Lanes minimum(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }
inline Lanes square_root(Lanes a) { return _mm512_sqrt_ps(a); }
inline Lanes round_even(Lanes a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Lanes to_power(Lanes a, Lanes n) {
  __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  return _mm512_mul_ps(a, _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23))));
}
inline Lanes copy_sign(Lanes magnitude, Lanes sign) {
  __m512i bit = _mm512_set1_epi32(INT32_MIN);
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_andnot_si512(bit, _mm512_castps_si512(magnitude)),
                                             _mm512_and_si512(bit, _mm512_castps_si512(sign))));
}
inline Lanes first_lanes(Lanes a, Lanes b, int64_t n) { return _mm512_mask_blend_ps(below(n), b, a); }

#include "model/kernels/kernels_impl.h"

}  // namespace

const KernelTable kAvx512Kernels = {"avx512", linear, norm, attend, max_sum_exp, exp_all, activate_all};

}  // namespace duet::model::kernels
