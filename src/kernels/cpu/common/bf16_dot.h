// For files with functions that use the dot instruction for bf16 pairs (AVX512_BF16).
//
// Put such functions between LATHE_BF16_DOT_BEGIN and LATHE_BF16_DOT_END, and call them only if
// cpu_has_bf16_dot() (kernels/cpu/matmul/matmul_bf16.h). Compiler flags for the whole file would
// also apply to inline functions of headers, and the linker could choose those copies for all
// callers. Highway 1.0.3 has no operation for this instruction.
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
// GCC reports the intrinsics' deliberately undefined vectors as uninitialised (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif
