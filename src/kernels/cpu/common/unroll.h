// Unrolls the loop that follows. Loops over arrays of vectors need it, or the arrays would be in
// memory instead of in registers.
#pragma once

#ifdef __clang__
#define LATHE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LATHE_UNROLL _Pragma("GCC unroll 8")
#endif
