// What the expanding kernels of Hopper accept: their checks and what they declare to the planner
// (kernels/cuda/register.cc) follow from it. It needs no toolkit.
#pragma once

#include <cstdint>

#include "base/enum.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kRaggedNopeHeads[] = {128, 192};   // with a rope of 64 behind
inline constexpr std::int32_t kRaggedValueHeads[] = {128, 256};  // of values
inline constexpr std::int32_t kRaggedNope = 512;                 // of a latent

inline constexpr EnumSet<LayoutKind> kRaggedLayouts = {LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                                       LayoutKind::mla_fp8_block};

/// Latents, slots, and expanded keys and values take no more (attn/expansion.h).
inline constexpr std::int64_t kRaggedWorkspaceBytes = std::int64_t{640} << 20;

/// A pass has as few heads as give each block so many tiles: few, so that L2 keeps what M block
/// after M block reads, and enough to be worth a pass's launches.
inline constexpr std::int64_t kRaggedPassTiles = 120;

/// Rows of a request from which on expanding its keys pays, measured on an H100: a further row
/// costs 1.75 us over 8192 keys of 128 heads, 3.24 us with absorbed attention, after 0.94 ms for
/// the keys.
inline constexpr std::int64_t kRaggedLeastRows = 640;

}  // namespace lathe::cuda
