// Layouts and places of the rotary part for tests of rope_quantize_write() on every device.
#pragma once

#include <cstdint>

#include "layout/rope/rope_write.h"

namespace lathe {

struct RopeCase {
  const char* layout;
  std::int32_t dim;  // of the table; 0: no table
  RopePlace place;
};

inline constexpr RopeCase kRopeCases[] = {
    {"mla_bf16", 64, RopePlace::last},
    {"mla_fp8", 64, RopePlace::last},
    {"mla_fp8_block", 64, RopePlace::last},
    {"mla_fp8_block(scale=raw_f32)", 64, RopePlace::last},
    {"mla_fp8_block(nope=256,rope=0)", 0, RopePlace::last},
    {"mla_fp4", 64, RopePlace::last},
    {"mla_fp4(nope=48,rope=16)", 16, RopePlace::last},
    {"v4_fp8", 64, RopePlace::last},
    {"index_fp8", 64, RopePlace::first},
    {"index_fp8", 64, RopePlace::last},
    {"index_fp8(dim=80)", 48, RopePlace::first},
    {"index_fp8(scale=raw_f32)", 0, RopePlace::first},
};

}  // namespace lathe
