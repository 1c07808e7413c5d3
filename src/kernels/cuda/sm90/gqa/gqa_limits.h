// What Hopper's grouped-query kernels accept. The checks of their arguments and their entry in the
// planner (kernels/cuda/register.cc) both use these values. Needs no CUDA toolkit.
#pragma once

#include <cstdint>

#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kGqaHeadDims[] = {64, 128, 256, 512};  // of keys and of values
inline constexpr std::int32_t kGqaPages[] = {16, 32, 64, 128};       // tokens
inline constexpr std::int32_t kGqaHeads = 1024;                      // most query heads

inline constexpr EnumSet<LayoutKind> kGqaLayouts = {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8};

/// Most bytes of partials and the work list: two partials of each resident block (gqa_params.h), of
/// 128 M rows x 256 dims.
inline constexpr std::int64_t kGqaPartialBytes = std::int64_t{36} << 20;

}  // namespace lathe::cuda
