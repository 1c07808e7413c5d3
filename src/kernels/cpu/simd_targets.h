// Which SIMD targets the CPU kernels leave out. Before the first header of Highway.
#pragma once

// Vectors of unknown size cannot be elements of register blocks; Arm also has NEON.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
