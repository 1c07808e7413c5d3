// What Hopper's latent kernels accept. The checks of their arguments and their entry in the planner
// (kernels/cuda/register.cc) both use these values. Needs no CUDA toolkit.
#pragma once

#include <cstdint>

#include "attn/problem.h"
#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kLatentRope = 64;
inline constexpr std::int32_t kLatentValue = 512;  // width of a value
inline constexpr std::int32_t kLatentHeads = 128;  // most query heads

/// Width of a key without RoPE. A window_compressed key is as wide as its value, RoPE included.
constexpr std::int32_t latent_nope(ProblemKind kind) {
  return kind == ProblemKind::window_compressed ? kLatentValue - kLatentRope : kLatentValue;
}

/// Layouts that the bf16 and f16 kernels read in place.
inline constexpr EnumSet<LayoutKind> kLatentLayouts = {
    LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block, LayoutKind::v4_fp8};
constexpr EnumSet<LayoutKind> latent_layouts(ProblemKind kind) {
  return kLatentLayouts & layouts_of(kind);
}
/// Page sizes that the fp8 kernels (e4m3 q, mla_fp8 cache) accept with a page table: a power of
/// two, at least kLatentFp8Page tokens. With index lists, any size.
inline constexpr std::int32_t kLatentFp8Page = 16;
constexpr bool latent_fp8_page(std::int32_t tokens) {
  return tokens >= kLatentFp8Page && (tokens & (tokens - 1)) == 0;
}

/// Range of problem.scale * key_scale * q_scale, and of key_scale alone. Within it, the f32
/// accumulators cannot overflow on e4m3 elements.
inline constexpr double kLatentLeastScale = 0x1p-100, kLatentMostScale = 0x1p60;

/// Keys of one split of a batch-invariant schedule. Shorter splits cost more work items and
/// partials; longer ones balance the blocks less well.
inline constexpr std::int64_t kLatentFixedKeys = 4096;
inline constexpr int kLatentFixedPieces = 8;  // most splits of a work tile
inline constexpr int kLatentFixedBlocks = 8;  // most M blocks of a work tile that is split
inline constexpr int kLatentBlockRows = 64;   // most M rows of an M block

/// Most bytes of partials (cut_latent() splits no further beyond it), and of staged pages.
inline constexpr std::int64_t kLatentPartialBytes = std::int64_t{128} << 20;

}  // namespace lathe::cuda
