// SIMD targets that are not compiled. Include this before the first header of Highway.
#pragma once

// SVE: vectors of unknown size cannot be members of register blocks; on Arm there is NEON.
// SSSE3: each target is a fifth of these files' compile time, and only the first Core 2, Atom
// before Silvermont, and Bobcat have SSSE3 without SSE4. They use the portable loops.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_SSSE3)
