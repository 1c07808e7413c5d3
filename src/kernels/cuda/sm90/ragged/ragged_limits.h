// What Hopper's kernels with expanded keys accept. The checks of their arguments and their entry in
// the planner (kernels/cuda/register.cc) both use these values. Needs no CUDA toolkit.
#pragma once

#include <cstdint>

#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kRaggedHeads = 128;                // at most
inline constexpr std::int32_t kRaggedRope = 64;                  // RoPE dims of a latent and a key
inline constexpr std::int32_t kRaggedNopeHeads[] = {128, 192};   // key dims without the 64 of RoPE
inline constexpr std::int32_t kRaggedValueHeads[] = {128, 256};  // value dims
inline constexpr std::int32_t kRaggedNope = 512;                 // latent dims

inline constexpr EnumSet<LayoutKind> kRaggedLayouts = {LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                                       LayoutKind::mla_fp8_block};

/// Most bytes of the workspace: latents, slots, and expanded keys and values (attn/expansion.h).
inline constexpr std::int64_t kRaggedWorkspaceBytes = std::int64_t{640} << 20;

/// Work tiles per block in a pass over some of the heads. A pass has the fewest heads that reach
/// it: few heads keep the keys that successive M blocks read in L2; more tiles are worth the
/// launches of a pass.
inline constexpr std::int64_t kRaggedPassTiles = 120;

/// Fewest rows of a request for which expanding its keys pays. Measured on an H200 with 8192 keys
/// and 128 heads: expansion costs 0.95 ms, then 0.9 us a row; absorbed attention costs 3.3 us a
/// row.
inline constexpr std::int64_t kRaggedLeastRows = 448;

}  // namespace lathe::cuda
