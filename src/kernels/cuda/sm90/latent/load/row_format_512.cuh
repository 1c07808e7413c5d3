// The format of an fp8 cached row where the key is the value: 512 wide, without RoPE.
#pragma once

#include "kernels/cuda/sm90/latent/load/row_format.cuh"

namespace lathe::cuda {

struct Fp8BlockFormat512 {  // mla_fp8_block without RoPE
  static constexpr int kFp8 = 8, kWide = 0;
  static constexpr int kRowBytes = 528, kWideAt = 0, kPitch = 528;
  static constexpr int kScales = 4, kScaleTiles = 2, kScalesAt = Fp8BlockFormat::kScalesAt;
  /// row: address in shared memory.
  static __device__ float scale(std::uint32_t row, int which) {
    return Fp8BlockFormat::scale(row, which);
  }
  static constexpr bool kScalesApart = false;
};
static_assert(is_format_of<Fp8BlockFormat512>(CacheLayout(LayoutKind::mla_fp8_block,
                                                          {.nope = 512})));

}  // namespace lathe::cuda
