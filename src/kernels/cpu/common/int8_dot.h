// For files with functions that use the dot instruction for 8-bit integers (AVX512_VNNI): as
// kernels/cpu/common/bf16_dot.h, with LATHE_INT8_DOT_BEGIN and LATHE_INT8_DOT_END. Call them only
// if cpu_has_int8_dot() (kernels/cpu/matmul/matmul_int8.h).
#pragma once

#include "kernels/cpu/common/bf16_dot.h"

#ifdef LATHE_BF16_DOT
#define LATHE_INT8_DOT 1
#define LATHE_INT8_DOT_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
#if defined(__clang__)
#define LATHE_INT8_DOT_BEGIN \
  LATHE_BF16_DOT_SPELL(      \
      clang attribute push(__attribute__((target(LATHE_INT8_DOT_TARGET))), apply_to = function))
#define LATHE_INT8_DOT_END LATHE_BF16_DOT_PRAGMA(clang attribute pop)
#else
#define LATHE_INT8_DOT_BEGIN              \
  LATHE_BF16_DOT_PRAGMA(GCC push_options) \
  LATHE_BF16_DOT_SPELL(GCC target(LATHE_INT8_DOT_TARGET))
#define LATHE_INT8_DOT_END LATHE_BF16_DOT_PRAGMA(GCC pop_options)
#endif
#endif
