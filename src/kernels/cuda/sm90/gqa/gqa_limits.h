// What Hopper's grouped-query kernels accept. The checks of their arguments and their entry in the
// planner (kernels/cuda/register.cc) both use these values. Needs no CUDA toolkit.
#pragma once

#include <cstdint>

#include "base/enum.h"
#include "layout/layout.h"

namespace lathe::cuda {

inline constexpr std::int32_t kGqaHeadDims[] = {64, 128, 256, 512};  // of keys and of values
/// Also heads with keys wider than their values.
inline constexpr std::int32_t kGqaWideKey = 192, kGqaWideKeyValue = 128;
inline constexpr std::int32_t kGqaPages[] = {16, 32, 64, 128};  // tokens
inline constexpr std::int32_t kGqaHeads = 1024;                 // most query heads

/// Latents that these kernels attend to as grouped queries of one KV head, in pages of mla_bf16:
/// 256 wide with 32 or 64 dims of RoPE, and 128 with 32. latent/ has those of 512. A page table
/// names the keys, or those of kGqaListedLatent a list of slots for each row.
struct GqaLatent {
  std::int32_t nope, most_rope;
};
inline constexpr GqaLatent kGqaLatents[] = {{256, 64}, {128, 32}};
inline constexpr std::int32_t kGqaListedLatent = 128;
constexpr bool is_gqa_latent(std::int32_t nope, std::int32_t rope) {
  return (rope == 32 || rope == 64) &&
         ((nope == kGqaLatents[0].nope && rope <= kGqaLatents[0].most_rope) ||
          (nope == kGqaLatents[1].nope && rope <= kGqaLatents[1].most_rope));
}

inline constexpr EnumSet<LayoutKind> kGqaLayouts = {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8};

/// Fixed cuts of a batch-invariant call: keys of a piece, about, and most pieces of a request. Only
/// calls are cut in which no request has more rows or M rows of a KV head than this.
inline constexpr std::int32_t kGqaFixedKeys = 2048, kGqaFixedPieces = 8;
inline constexpr std::int32_t kGqaFixedRows = 8, kGqaFixedMRows = 64;

/// Most bytes of partials and the work list without fixed cuts: two partials of each resident block
/// (gqa_params.h), of 128 M rows x 256 dims.
inline constexpr std::int64_t kGqaPartialBytes = std::int64_t{36} << 20;

}  // namespace lathe::cuda
