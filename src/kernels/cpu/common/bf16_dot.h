// For files with functions in the dot instruction of bf16 pairs (AVX512_BF16).
//
// The instructions are for functions between LATHE_BF16_DOT_BEGIN and LATHE_BF16_DOT_END alone,
// behind cpu_has_bf16_dot() (kernels/cpu/matmul/matmul_bf16.h): flags for the whole file would also
// compile inline functions of headers so, which the linker may then choose for all callers. Highway
// 1.0.3 has no name for the dot product.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define LATHE_BF16_DOT 1
#define LATHE_BF16_DOT_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
#define LATHE_BF16_DOT_PRAGMA(...) _Pragma(#__VA_ARGS__)
#define LATHE_BF16_DOT_SPELL(...) LATHE_BF16_DOT_PRAGMA(__VA_ARGS__)
#if defined(__clang__)
#define LATHE_BF16_DOT_BEGIN \
  LATHE_BF16_DOT_SPELL(      \
      clang attribute push(__attribute__((target(LATHE_BF16_DOT_TARGET))), apply_to = function))
#define LATHE_BF16_DOT_END LATHE_BF16_DOT_PRAGMA(clang attribute pop)
#else
#define LATHE_BF16_DOT_BEGIN              \
  LATHE_BF16_DOT_PRAGMA(GCC push_options) \
  LATHE_BF16_DOT_SPELL(GCC target(LATHE_BF16_DOT_TARGET))
#define LATHE_BF16_DOT_END LATHE_BF16_DOT_PRAGMA(GCC pop_options)
// The header's undefined vectors, inlined, are reported (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif
