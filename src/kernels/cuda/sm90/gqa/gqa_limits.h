// What the grouped-query kernels of Hopper accept: their checks and what they declare to the
// planner (kernels/cuda/register.cc) follow from it. It needs no toolkit.
#pragma once

#include <cstdint>

#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kGqaHeadDims[] = {64, 128, 256};  // of keys and of values
inline constexpr std::int32_t kGqaPages[] = {16, 32, 64, 128};  // tokens
inline constexpr std::int32_t kGqaHeads = 1024;                 // at most

inline constexpr EnumSet<LayoutKind> kGqaLayouts = {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8};

/// Partials take no more: two of each resident block (gqa_params.h) of 128 M rows of 256, with the
/// work list.
inline constexpr std::int64_t kGqaPartialBytes = std::int64_t{36} << 20;

}  // namespace lathe::cuda
