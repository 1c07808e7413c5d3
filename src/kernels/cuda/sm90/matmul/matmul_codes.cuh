// Weights of 8 and 4 bits with bf16 tokens: codes become bf16, exactly, in the registers that feed
// wgmma's left operand.
//
// Of a step of 16 k, thread (g = lane / 4, c = lane % 4) holds of rows g and g + 8 the elements
// 2 c, + 1 and 8 + 2 c, + 1. Codes are moved to where bf16 has the low bits of its exponent and the
// high ones of its mantissa; a product with a power of two then sets the exponent right, that of
// subnormal codes too.
#pragma once

#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/matmul_scales.cuh"

namespace lathe::cuda {

/// Two e4m3 that are no NaN, in the low 16 bits, as bf16.
__device__ inline std::uint32_t bf16_of_e4m3x2(std::uint32_t codes) {
  const std::uint32_t high = permute_bytes(codes, 0, 0x1404);  // each in its half's high byte
  const std::uint32_t small = (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
  return multiply_bf16x2(small, 0x7b807b80u);  // 2^120
}
/// Two e2m1 of a byte, the low nibble first, times the bf16 in both halves of `scale`: exact for
/// powers of two up to 2^118.
__device__ inline std::uint32_t bf16_of_e2m1x2(std::uint32_t codes, std::uint32_t scale) {
  const std::uint32_t apart = codes | codes << 12;  // bits 0 to 3 and 16 to 19
  const std::uint32_t small = (apart & 0x00080008u) << 12 | (apart & 0x00070007u) << 6;
  return multiply_bf16x2(multiply_bf16x2(small, 0x7e807e80u), scale);  // 2^126
}

/// e4m3 with a factor for each 128 x 128 of the weight: each 128 of K are summed on their own.
struct MatmulE4m3Weights {
  static constexpr int kChunk = 128;
  static constexpr int kWeightRowBytes = 128;
  static constexpr int kWeightStep = 128;
  static constexpr int kTokenBoxes = 2;
  static constexpr bool kTwoLevels = true;
  static constexpr bool kTokenScales = false;

  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork& w,
                                                  const MatmulPart& part) {
    const MatmulFactors factors(c.p, w, c.first_row(w) + c.warp * 16 + c.lane / 4);
    LATHE_UNROLL
    for (float& v : c.acc) v = 0;
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      const float low = factors.at(0, chunk), high = factors.at(1, chunk);
      float sum[Consumer::kValues];
      c.wait_full();
      const std::uint32_t row =
          c.weights() +
          static_cast<std::uint32_t>((c.warp * 16 + c.lane / 4) * 128 + 2 * (c.lane & 3));
      LATHE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const std::uint32_t at = row + static_cast<std::uint32_t>((k ^ c.lane / 4) * 16);
        const std::uint32_t a[4] = {
            bf16_of_e4m3x2(load_shared_u16(at)), bf16_of_e4m3x2(load_shared_u16(at + 1024)),
            bf16_of_e4m3x2(load_shared_u16(at + 8)), bf16_of_e4m3x2(load_shared_u16(at + 1032))};
        wgmma_fence();
        mma_m64_bf16_rows(sum, a, c.token_step(k), k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(sum);
      c.release(c.stage.index);
      c.stage.next();
      LATHE_UNROLL
      for (int i = 0; i < Consumer::kValues; ++i) {
        c.acc[i] = fmaf(sum[i], (i & 2) == 0 ? low : high, c.acc[i]);
      }
    }
  }
};

/// MXFP4: e2m1 with a scale for each 32 of a row.
struct MatmulE2m1Weights {
  static constexpr int kChunk = 128;
  static constexpr int kWeightRowBytes = 64;
  static constexpr int kWeightStep = 64;
  static constexpr int kTokenBoxes = 2;
  static constexpr bool kTwoLevels = false;
  static constexpr bool kTokenScales = false;

  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork& w,
                                                  const MatmulPart& part) {
    const int g = c.lane / 4;
    const MatmulMxScales scales(c.p, w, c.first_row(w) + c.warp * 16 + g);
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      std::uint32_t scale[2][4];
      LATHE_UNROLL
      for (int i = 0; i < 8; ++i) scale[i / 4][i % 4] = scales.at(i / 4, 4 * chunk + i % 4);
      c.wait_full();
      const std::uint32_t row =
          c.weights() + static_cast<std::uint32_t>((c.warp * 16 + g) * 64 + (c.lane & 3));
      LATHE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const std::uint32_t at =
            row + static_cast<std::uint32_t>((k / 2 ^ (g / 2 & 3)) * 16 + k % 2 * 8);
        const std::uint32_t a[4] = {bf16_of_e2m1x2(load_shared_u8(at), scale[0][k / 2]),
                                    bf16_of_e2m1x2(load_shared_u8(at + 512), scale[1][k / 2]),
                                    bf16_of_e2m1x2(load_shared_u8(at + 4), scale[0][k / 2]),
                                    bf16_of_e2m1x2(load_shared_u8(at + 516), scale[1][k / 2])};
        wgmma_fence();
        mma_m64_bf16_rows(c.acc, a, c.token_step(k), k > 0 || chunk > part.begin);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(c.acc);
      c.release(c.stage.index);
      c.stage.next();
    }
  }
};

}  // namespace lathe::cuda
