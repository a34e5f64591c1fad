// Chooses the kernel table once, by what the processor and the operating system allow.
#include "model/kernels/kernels.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

namespace duet::model::kernels {

extern const KernelTable kPortableKernels;
#ifdef DUET_X86_KERNELS
extern const KernelTable kAvx2Kernels, kAvx512Kernels;
#endif

namespace {

struct Available {
  const KernelTable* tables[4] = {};
  Available() {
    int n = 0;
    tables[n++] = &kPortableKernels;
#ifdef DUET_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables[n++] = &kAvx2Kernels;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("fma"))
      tables[n++] = &kAvx512Kernels;
#endif
  }
};

struct Choice {
  const KernelTable* table = nullptr;
  std::string problem;
  Choice() {
    const char* forced = std::getenv("DUET_ISA");
    std::string known;
    for (auto* t = available_kernels(); *t; ++t) {
      known += (known.empty() ? "" : ", ") + std::string((*t)->name);
      if (!forced || !*forced || std::strcmp(forced, (*t)->name) == 0) table = *t;
    }
    if (!table) {
      problem = "DUET_ISA is \"" + std::string(forced) + "\"; this processor runs: " + known;
      table = &kPortableKernels;
    }
  }
};

const Choice& choice() {
  static const Choice kChoice;
  return kChoice;
}

std::atomic<const KernelTable*> g_forced{nullptr};

}  // namespace

const KernelTable* const* available_kernels() {
  static const Available kAvailable;
  return kAvailable.tables;
}

const KernelTable& kernels() {
  const KernelTable* forced = g_forced.load(std::memory_order_relaxed);
  return forced ? *forced : *choice().table;
}

const char* forced_isa_problem() { return choice().problem.empty() ? nullptr : choice().problem.c_str(); }

void force_kernels(const KernelTable& table) { g_forced = &table; }

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh((m - 1) / (m + 1)), |argument| <= 0.1716: the
// series to the power 19 leaves less than 1e-16.
double portable_log(double x) {
  if (!(x > 0)) return x == 0 ? -__builtin_inf() : __builtin_nan("");
  if (x > 1.7976931348623157e308) return x;
  int e = 0;
  double m = __builtin_frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
  for (int k = 19; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  return e * 0.69314718055994530942 + 2 * t * sum;
}

}  // namespace duet::model::kernels
