// For files with functions that use AVX-512's dot instructions: of bf16 pairs (AVX512_BF16) or of
// 8-bit integers (AVX512_VNNI).
//
// Put such functions between LATHE_TARGET_BEGIN(LATHE_BF16_DOT), or LATHE_INT8_DOT, and
// LATHE_TARGET_END, and call them only if cpu_has_bf16_dot() (kernels/cpu/matmul/matmul_bf16.h), or
// cpu_has_int8_dot() (matmul_int8.h). Compiler flags for the whole file would also apply to inline
// functions of headers, and the linker could choose those copies for all callers. Highway 1.0.3 has
// no operation for these instructions.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
// The target of each instruction; not defined where the compiler has none.
#define LATHE_BF16_DOT "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
#define LATHE_INT8_DOT "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
// With lookups of bytes in tables of 128 (AVX512_VBMI).
#define LATHE_INT8_VBMI "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma"

#define LATHE_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define LATHE_TARGET_BEGIN(target_) \
  LATHE_PRAGMA(clang attribute push(__attribute__((target(target_))), apply_to = function))
#define LATHE_TARGET_END LATHE_PRAGMA(clang attribute pop)
#else
#define LATHE_TARGET_BEGIN(target_) \
  LATHE_PRAGMA(GCC push_options)    \
  LATHE_PRAGMA(GCC target(target_))
#define LATHE_TARGET_END LATHE_PRAGMA(GCC pop_options)
// GCC reports the intrinsics' deliberately undefined vectors as uninitialised (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif
