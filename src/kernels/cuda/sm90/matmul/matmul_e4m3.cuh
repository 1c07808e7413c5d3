// e4m3 weights and tokens: wgmma reads both operands from shared memory.
//
// Hopper accumulates e4m3 products with about 14 bits, so each 128 elements of K are summed
// separately. That sum is multiplied by the weight's and the token's scale and added to the total
// in f32.
#pragma once

#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/matmul_scales.cuh"

namespace lathe::cuda {

struct MatmulE4m3 {
  static constexpr int kChunk = 128;
  static constexpr int kWeightRowBytes = 128;
  static constexpr int kWeightStep = 128;
  static constexpr int kTokenBoxes = 1;
  static constexpr bool kTwoLevels = true;
  static constexpr bool kTokenScales = true;
  static constexpr bool kTokensOnM = false;
  static constexpr bool kTails = false;
  static constexpr int kPackedRow = 0;  // bytes of a row's packed scales in a chunk
  static constexpr int kDepth = 1;
  static constexpr bool kFactor = false;

  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork& w,
                                                  const MatmulPart& part) {
    constexpr int kEights = Consumer::kValues / 4;
    LATHE_UNROLL
    for (float& v : c.acc) v = 0;
    if constexpr (kEights <= 8) return sum_by_two(c, w, part);
    const MatmulFactors factors(c.p, w, c.first_row(w) + c.warp * 16 + c.lane / 4);
    float low = factors.at(0, part.begin), high = factors.at(1, part.begin);
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      float sum[Consumer::kValues];
      c.wait_full();
      const std::uint64_t a = tile_descriptor(c.weights(), 1024);
      const std::uint64_t b = tile_descriptor(c.tokens(), 1024);
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        mma_m64_e4m3(sum, descriptor_at(a, 32 * k), descriptor_at(b, 32 * k), k > 0);
      }
      wgmma_commit();
      // While the wgmmas run: loads the tokens' scales, and the weights' scales of the next chunk.
      float2 x[kEights];
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) x[j] = c.token_scales(w, j);
      const std::int32_t next = chunk + 1 < part.end ? chunk + 1 : chunk;
      const float next_low = factors.at(0, next), next_high = factors.at(1, next);
      wgmma_wait<0>();
      wgmma_pin(sum);
      c.release(c.stage.index);
      c.stage.next();
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        c.acc[4 * j] = fmaf(sum[4 * j], low * x[j].x, c.acc[4 * j]);
        c.acc[4 * j + 1] = fmaf(sum[4 * j + 1], low * x[j].y, c.acc[4 * j + 1]);
        c.acc[4 * j + 2] = fmaf(sum[4 * j + 2], high * x[j].x, c.acc[4 * j + 2]);
        c.acc[4 * j + 3] = fmaf(sum[4 * j + 3], high * x[j].y, c.acc[4 * j + 3]);
      }
      low = next_low;
      high = next_high;
    }
  }

 private:
  struct Scale {
    float low, high;  // of a thread's two rows
  };
  template <class Consumer>
  using Sum = float[Consumer::kValues];

  /// sum_part() for up to 64 tokens. A chunk's sum takes longer than the weights of fewer rows to
  /// arrive, and registers are left for a second one: the next chunk is multiplied while a chunk's
  /// sum is scaled and added.
  template <class Consumer>
  static __device__ __forceinline__ void sum_by_two(Consumer& c, const MatmulWork& w,
                                                    const MatmulPart& part) {
    if (part.begin >= part.end) return;
    Sum<Consumer> a, b;
    auto stage = c.stage;  // of the chunk that is multiplied; c.stage is the one that is added
    std::int32_t chunk = part.begin;
    if (c.scales.first != chunk) c.load_scales(w, chunk, part.end, c.scales);
    multiply(c, stage, a);
    LATHE_ROLLED
    for (; chunk + 2 < part.end; chunk += 2) {
      stage.next();
      multiply(c, stage, b);
      add<1>(c, w, scale_of(c, chunk), a);
      stage.next();
      multiply(c, stage, a);
      add<1>(c, w, scale_of(c, chunk + 1), b);
      if (chunk + 2 - c.scales.first == MatmulWarpScales::kChunks) {
        c.load_scales(w, chunk + 2, part.end, c.scales);
      }
    }
    if (chunk + 1 < part.end) {
      stage.next();
      multiply(c, stage, b);
      add<1>(c, w, scale_of(c, chunk), a);
      add<0>(c, w, scale_of(c, chunk + 1), b);
    } else {
      add<0>(c, w, scale_of(c, chunk), a);
    }
  }
  template <class Consumer>
  static __device__ __forceinline__ Scale scale_of(const Consumer& c, std::int32_t chunk) {
    return {c.scales.at(0, chunk), c.scales.at(1, chunk)};
  }
  /// Begins the products of a stage's chunk.
  template <class Consumer, class Stage>
  static __device__ __forceinline__ void multiply(Consumer& c, const Stage& stage,
                                                  Sum<Consumer>& sum) {
    barrier_wait(c.s.full(stage.index), stage.parity);
    const std::uint64_t a = tile_descriptor(c.weights(stage.index), 1024);
    const std::uint64_t b = tile_descriptor(c.s.tokens(stage.index), 1024);
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      mma_m64_e4m3(sum, descriptor_at(a, 32 * k), descriptor_at(b, 32 * k), k > 0);
    }
    wgmma_commit();
  }
  /// acc += sum times the scales of c.stage's chunk, whose place is free then. Waits until kLeft
  /// chunks are being multiplied.
  template <int kLeft, class Consumer>
  static __device__ __forceinline__ void add(Consumer& c, const MatmulWork& w, const Scale& scale,
                                             Sum<Consumer>& sum) {
    constexpr int kEights = Consumer::kValues / 4;
    float2 x[kEights];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) x[j] = c.token_scales(w, j);
    wgmma_wait<kLeft>();
    wgmma_pin(sum);
    c.release(c.stage.index);
    c.stage.next();
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      const float low_x = scale.low * x[j].x, low_y = scale.low * x[j].y;
      const float high_x = scale.high * x[j].x, high_y = scale.high * x[j].y;
      c.acc[4 * j] = fmaf(sum[4 * j], low_x, c.acc[4 * j]);
      c.acc[4 * j + 1] = fmaf(sum[4 * j + 1], low_y, c.acc[4 * j + 1]);
      c.acc[4 * j + 2] = fmaf(sum[4 * j + 2], high_x, c.acc[4 * j + 2]);
      c.acc[4 * j + 3] = fmaf(sum[4 * j + 3], high_y, c.acc[4 * j + 3]);
    }
  }
};

/// The same sums for pairs of tiles and scales of blocks, by MatmulManyConsumer.
struct MatmulE4m3Many : MatmulE4m3 {
  static constexpr bool kTokensOnM = true;
  static constexpr bool kTails = true;
};

}  // namespace lathe::cuda
