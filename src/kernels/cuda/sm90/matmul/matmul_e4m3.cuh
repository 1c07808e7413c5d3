// e4m3 weights and tokens: wgmma reads both operands from shared memory.
//
// Hopper accumulates e4m3 products with about 14 bits, so each 128 elements of K are summed
// separately. That sum is multiplied by the weight's and the token's scale and added to the total
// in f32.
#pragma once

#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/matmul_ring.cuh"
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
    auto ring = c.ring();
    LATHE_ROLLED
    for (std::int32_t left = warp_value(part.end - part.begin); left > 0; --left) {
      const std::int32_t next = part.end - (left > 1 ? left - 1 : 1);
      float sum[Consumer::kValues];
      multiply(ring, sum);
      // While the wgmmas run: loads the tokens' scales, and the weights' scales of the next chunk.
      float2 x[kEights];
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) x[j] = c.token_scales(w, ring.index(), j);
      const float next_low = factors.at(0, next), next_high = factors.at(1, next);
      wgmma_wait<0>();
      wgmma_pin(sum);
      c.release(ring.empty());
      ring.next();
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
    c.stage = ring.stage();
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
    auto ahead = c.ring(), ring = ahead;
    std::int32_t chunk = part.begin;
    if (c.scales.first != chunk) c.load_scales(w, chunk, part.end, c.scales);
    multiply(ahead, a);
    ahead.next();
    LATHE_ROLLED
    for (std::int32_t left = warp_value(part.end - chunk - 1); left > 1; left -= 2, chunk += 2) {
      multiply(ahead, b);
      ahead.next();
      add<1>(c, w, ring, scale_of(c, chunk), a);
      multiply(ahead, a);
      ahead.next();
      add<1>(c, w, ring, scale_of(c, chunk + 1), b);
      if (chunk + 2 - c.scales.first == MatmulWarpScales::kChunks) {
        c.load_scales(w, chunk + 2, part.end, c.scales);
      }
    }
    if (warp_value(part.end - chunk) > 1) {
      multiply(ahead, b);
      ahead.next();
      add<1>(c, w, ring, scale_of(c, chunk), a);
      add<0>(c, w, ring, scale_of(c, chunk + 1), b);
    } else {
      add<0>(c, w, ring, scale_of(c, chunk), a);
    }
    c.stage = ring.stage();
  }
  template <class Consumer>
  static __device__ __forceinline__ Scale scale_of(const Consumer& c, std::int32_t chunk) {
    return {c.scales.at(0, chunk), c.scales.at(1, chunk)};
  }
  /// Begins the products of a stage's chunk.
  template <class T, int kValues>
  static __device__ __forceinline__ void multiply(const MatmulRing<T>& at, float (&sum)[kValues]) {
    at.wait_full();
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const auto step = static_cast<std::uint32_t>(32 * k);
      mma_m64_e4m3(sum, at.weights(step), at.tokens(step), k > 0);
    }
    wgmma_commit();
  }
  /// acc += sum times the scales of a stage's chunk, whose place is free then. Waits until kLeft
  /// chunks are being multiplied.
  template <int kLeft, class Consumer>
  static __device__ __forceinline__ void add(Consumer& c, const MatmulWork& w,
                                             MatmulRing<typename Consumer::Tile>& at,
                                             const Scale& scale, Sum<Consumer>& sum) {
    constexpr int kEights = Consumer::kValues / 4;
    float2 x[kEights];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) x[j] = c.token_scales(w, at.index(), j);
    wgmma_wait<kLeft>();
    wgmma_pin(sum);
    c.release(at.empty());
    at.next();
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

/// Of 33 to 64 tokens: each of kWarpgroups has all tokens and kTileRows weight rows.
template <int kTileRows, int kWarpgroups>
struct MatmulE4m3Shared : MatmulE4m3Many {
  static constexpr int kRows = kTileRows, kSharers = kWarpgroups;
};

}  // namespace lathe::cuda
