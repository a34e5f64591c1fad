// The kernels: pure functions over pointers and strides, one table per instruction set. All of them give the
// same bits: every float operation is an IEEE operation on one of 16 lanes, in an order that does not depend
// on the instruction set, the number of rows or the number of threads. Included by files with instruction-set
// flags: no standard header beyond <cstdint> may come in here.
#pragma once

#include <cstdint>

namespace duet::model::kernels {

enum class Activation : int32_t { kNone, kRelu, kGelu, kSwish };

struct LinearArgs {
  const float* x;         // [rows, k], row stride x_stride
  int64_t x_stride;       // in floats
  const float* panels;    // [panel][k][16]: the first panel to compute
  const float* bias;      // [n] or null
  const float* residual;  // [rows, n] or null, row stride residual_stride; may be `out` itself
  int64_t residual_stride;
  float* out;  // [rows, n], row stride out_stride
  int64_t out_stride;
  int64_t rows, k;
  int64_t n;  // outputs wanted from `panels` on; the last panel may be partly used
  Activation activation;
};

// Attention of one query over n keys in blocks of 16.
struct AttendArgs {
  const float* query;                // [head_size]
  const float* const* key_blocks;    // per block: [head_size][16], row stride key_stride
  const float* const* value_blocks;  // per block: [16][head_size], row stride value_stride
  int64_t key_stride, value_stride;
  int64_t head_size, keys;
  float scale;
  float* scores;  // scratch, keys rounded up to 16
  float* out;     // [head_size]
};

struct KernelTable {
  const char* name;
  // out = activation(x * W + bias) + residual. Each output is one fused chain over k from 0.
  void (*linear)(const LinearArgs&);
  // out[row] = (x - mean) / sqrt(variance + epsilon) * gamma + beta; beta may be null; out may be x.
  void (*norm)(const float* x, int64_t rows, int64_t columns, const float* gamma, const float* beta,
               float epsilon, float* out);
  void (*attend)(const AttendArgs&);
  // max and sum of exp(x - max) over n values: sum over lane i mod 16, then the lanes in one order.
  void (*max_sum_exp)(const float* x, int64_t n, float* max, float* sum);
  // The exp that every kernel uses, elementwise: for combining partial results, and for tests.
  void (*exp)(const float* x, int64_t n, float* out);
  void (*activate)(const float* x, int64_t n, Activation activation, float* out);
};

// The table in use: the best that this processor runs, or the one that DUET_ISA names ("portable", "avx2",
// "avx512"). Chosen once; `forced_isa_problem()` says what is wrong with DUET_ISA, null when nothing is.
const KernelTable& kernels();
const char* forced_isa_problem();
// All tables that this processor can run, portable first. Ends with a null.
const KernelTable* const* available_kernels();

// For tests: uses `table` from now on, by all sessions of the process.
void force_kernels(const KernelTable& table);

// Natural logarithm of a positive number in double arithmetic of its own, so that it is the same everywhere.
double portable_log(double x);

}  // namespace duet::model::kernels
