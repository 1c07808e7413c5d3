// Weights of 8 and 4 bits with bf16 tokens: codes are converted to bf16, exactly, in the registers
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
/// Two e2m1 of a byte, low nibble first, times the bf16 in both halves of `scale`: exact for powers
/// of two up to 2^118.
__device__ inline std::uint32_t bf16_of_e2m1x2(std::uint32_t codes, std::uint32_t scale) {
  const std::uint32_t apart = codes | codes << 12;  // bits 0 to 3 and 16 to 19
  const std::uint32_t small = (apart & 0x00080008u) << 12 | (apart & 0x00070007u) << 6;
  return multiply_bf16x2(multiply_bf16x2(small, 0x7e807e80u), scale);  // 2^126
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
  static constexpr int kPackedBytes = 0;  // of weight scales in a stage
  static constexpr bool kFactor = false;

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

/// MXFP4: e2m1 with a scale per 32 elements of a row. Conversion takes longer than memory needs to
/// deliver the codes. So with few tokens, a chunk's codes are loaded to registers while the wgmmas
/// of the previous chunk run; with many tokens there are no registers for that. Scales are always
/// loaded one chunk ahead.
struct MatmulE2m1Weights {
  static constexpr int kChunk = 128;
  static constexpr int kWeightRowBytes = 64;
  static constexpr int kWeightStep = 64;
  static constexpr int kTokenBoxes = 2;
  static constexpr bool kTwoLevels = false;
  static constexpr bool kTokenScales = false;
  static constexpr int kPackedBytes = 0;  // of weight scales in a stage
  static constexpr bool kFactor = false;
  static constexpr int kSteps = kChunk / 16;

  /// Loads the codes of step k of the stage: bytes of rows g and g + 8, then the same 8 elements
  /// further on.
  template <class Consumer>
  static __device__ __forceinline__ void load(const Consumer& c, int k, std::uint32_t (&codes)[4]) {
    const int g = c.lane / 4;
    const std::uint32_t at =
        c.weights() + static_cast<std::uint32_t>((c.warp * 16 + g) * 64 + (c.lane & 3) +
                                                 (k / 2 ^ (g / 2 & 3)) * 16 + k % 2 * 8);
    codes[0] = load_shared_u8(at);
    codes[1] = load_shared_u8(at + 512);
    codes[2] = load_shared_u8(at + 4);
    codes[3] = load_shared_u8(at + 516);
  }

  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork& w,
                                                  const MatmulPart& part) {
    constexpr bool kAhead = Consumer::kValues <= 16;
    const MatmulMxScales scales(c.p, w, c.first_row(w) + c.warp * 16 + c.lane / 4);
    std::uint32_t codes[kSteps][4];
    const auto load_chunk = [&] {
      c.wait_full();
      if constexpr (kAhead) {
        LATHE_UNROLL
        for (int k = 0; k < kSteps; ++k) load(c, k, codes[k]);
      }
    };
    uint2 next_scales = scales.of_chunk(part.begin);
    load_chunk();
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      const uint2 scale = next_scales;
      const bool more = chunk + 1 < part.end;
      if (more) next_scales = scales.of_chunk(chunk + 1);
      LATHE_UNROLL
      for (int k = 0; k < kSteps; ++k) {
        if constexpr (!kAhead) load(c, k, codes[k]);
        const std::uint32_t low = MatmulMxScales::as_bf16x2(scale.x, k / 2);
        const std::uint32_t high = MatmulMxScales::as_bf16x2(scale.y, k / 2);
        const std::uint32_t a[4] = {
            bf16_of_e2m1x2(codes[k][0], low), bf16_of_e2m1x2(codes[k][1], high),
            bf16_of_e2m1x2(codes[k][2], low), bf16_of_e2m1x2(codes[k][3], high)};
        wgmma_fence();
        mma_m64_bf16_rows(c.acc, a, c.token_step(k), k > 0 || chunk > part.begin);
      }
      wgmma_commit();
      const int taken = c.stage.index;
      c.stage.next();
      if (kAhead && more) load_chunk();
      wgmma_wait<0>();
      wgmma_pin(c.acc);
      c.release(taken);
      if (!kAhead && more) load_chunk();
    }
  }
};

}  // namespace lathe::cuda
