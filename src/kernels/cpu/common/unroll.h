// Unrolls the loop that follows: loops over registers must, or the arrays of vectors would live in
// memory.
#pragma once

#ifdef __clang__
#define LATHE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATHE_UNROLL _Pragma("GCC unroll 8")
#endif
