// Which SIMD targets are left out. Before the first header of Highway.
#pragma once

// SVE: vectors of unknown size cannot be elements of register blocks; Arm also has NEON.
// SSSE3: each target is a fifth of what these files take to compile, and only the first Core 2,
// Atom before Silvermont and Bobcat have it without SSE4. They take the portable loops.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_SSSE3)
