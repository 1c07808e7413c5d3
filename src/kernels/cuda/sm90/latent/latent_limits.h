// What the latent kernels of Hopper accept: their checks and what they declare to the planner
// (kernels/ sm90.cc) follow from it. It needs no toolkit.
#pragma once

#include <cstdint>

#include "attn/problem.h"
#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kLatentRope = 64;
inline constexpr std::int32_t kLatentValue = 512;  // width of a value
inline constexpr std::int32_t kLatentHeads = 128;  // at most

/// Width of a key without its rope: V4's keys are whole values.
constexpr std::int32_t latent_nope(ProblemKind kind) {
  return kind == ProblemKind::window_compressed ? kLatentValue - kLatentRope : kLatentValue;
}

/// Layouts that are read in place, in bf16 or f16 products.
constexpr EnumSet<LayoutKind> latent_layouts(ProblemKind kind) {
  if (kind == ProblemKind::window_compressed) return {LayoutKind::v4_fp8, LayoutKind::mla_bf16};
  return {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block};
}
/// fp8 products, for an e4m3 q on pages of mla_fp8: by page table they have so many tokens, a power
/// of two; by index lists any number.
inline constexpr std::int32_t kLatentFp8Page = 16;  // at least
constexpr bool latent_fp8_page(std::int32_t tokens) {
  return tokens >= kLatentFp8Page && (tokens & (tokens - 1)) == 0;
}

/// The scale of scores (those of keys and of an e4m3 q included), and that of keys alone: f32
/// accumulators hold what they make of e4m3's elements.
inline constexpr double kLatentLeastScale = 0x1p-100, kLatentMostScale = 0x1p60;

/// A piece of a batch-invariant cut. Shorter ones cost items and partials, longer ones balance.
inline constexpr std::int64_t kLatentFixedKeys = 4096;
inline constexpr int kLatentFixedPieces = 8;  // of a work tile, at most
inline constexpr int kLatentFixedBlocks = 8;  // M blocks of a work tile that is cut, at most
inline constexpr int kLatentBlockRows = 64;   // M rows of a block, at most

/// Limit of partials, beyond which cut_latent() splits no further, and of staged pages.
inline constexpr std::int64_t kLatentPartialBytes = std::int64_t{128} << 20;

}  // namespace lathe::cuda
