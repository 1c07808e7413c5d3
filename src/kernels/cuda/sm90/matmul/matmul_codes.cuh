// e4m3 weights with bf16 tokens: codes are converted to bf16, exactly, in the registers
// of wgmma's A operand.
//
// In a step of 16 elements of K, thread (g = lane / 4, c = lane % 4) holds elements 2 c, + 1 and 8
// + 2 c, + 1 of rows g and g + 8. A code's bits are moved to the low bits of bf16's exponent and
// the high bits of its mantissa; multiplying by a power of two then corrects the exponent, for
// subnormal codes too.
#pragma once

#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/matmul_scales.cuh"

namespace lathe::cuda {

/// Two e4m3 (not NaN) in the low 16 bits, as bf16.
__device__ inline std::uint32_t bf16_of_e4m3x2(std::uint32_t codes) {
  const std::uint32_t high = permute_bytes(codes, 0, 0x1404);  // each code in the high byte of its
                                                               // half
  const std::uint32_t small = (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
  return multiply_bf16x2(small, 0x7b807b80u);  // 2^120
}

/// e4m3 with a scale per 128 x 128 block of the weight: each 128 elements of K are summed
/// separately.
struct MatmulE4m3Weights {
  static constexpr int kChunk = 128;
  static constexpr int kWeightRowBytes = 128;
  static constexpr int kWeightStep = 128;
  static constexpr int kTokenBoxes = 2;
  static constexpr bool kTwoLevels = true;
  static constexpr bool kTokenScales = false;
  static constexpr bool kTokensOnM = false;
  static constexpr bool kTails = false;
  static constexpr int kPackedRow = 0;  // bytes of a row's packed scales in a chunk
  static constexpr int kDepth = 1;
  static constexpr bool kFactor = false;

  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork& w,
                                                  const MatmulPart& part) {
    const MatmulFactors factors(c.p, w, c.first_row(w) + c.warp * 16 + c.lane / 4);
    LATHE_UNROLL
    for (float& v : c.acc) v = 0;
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      const auto scale = [&](int i) {
        if constexpr (!Consumer::kWarpScales) return factors.at(i, chunk);
        return c.scales.at(i, chunk);
      };
      if constexpr (Consumer::kWarpScales) {
        const std::int32_t n = chunk - c.scales.first;
        if ((chunk == part.begin && n != 0) || n == MatmulWarpScales::kChunks) {
          c.load_scales(w, chunk, part.end, c.scales);
        }
      }
      const float low = scale(0), high = scale(1);
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
      c.release(c.s.empty(c.stage.index));
      c.stage.next();
      LATHE_UNROLL
      for (int i = 0; i < Consumer::kValues; ++i) {
        c.acc[i] = fmaf(sum[i], (i & 2) == 0 ? low : high, c.acc[i]);
      }
    }
  }
};

}  // namespace lathe::cuda
