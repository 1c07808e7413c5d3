// The format of a cached row whose key is its value: fp8 without rope.
#pragma once

#include "kernels/cuda/sm90/latent/load/row_format.cuh"

namespace lathe::cuda {

struct Fp8BlockFormat512 {  // mla_fp8_block without rope
  static constexpr int kFp8 = 8, kWide = 0;
  static constexpr int kRowBytes = 528, kWideAt = 0, kPitch = 528;
  static constexpr int kScales = 4, kScaleTiles = 2;
  /// row: in shared memory.
  static __device__ float scale(std::uint32_t row, int which) {
    return Fp8BlockFormat::scale(row, which);
  }
  static constexpr bool kScalesApart = false;
};

}  // namespace lathe::cuda
