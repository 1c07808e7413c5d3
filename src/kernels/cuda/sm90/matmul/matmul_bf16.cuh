// bf16 weights: wgmma reads both operands from shared memory.
#pragma once

#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

struct MatmulBf16 {
  static constexpr int kChunk = 64;  // elements of K
  static constexpr int kWeightRowBytes = 128;
  static constexpr int kWeightStep = 64;  // of a chunk, in elements of the tensor map
  static constexpr int kTokenBoxes = 1;
  static constexpr bool kTwoLevels = false;
  static constexpr bool kTokenScales = false;
  static constexpr bool kTokensOnM = false;
  static constexpr bool kTails = true;
  static constexpr int kPackedRow = 0;  // bytes of a row's packed scales in a chunk
  static constexpr int kDepth = 1;
  static constexpr bool kFactor = false;

  /// acc = the sum over a part of K, for the boxes that have tokens. A stage's wgmmas run while the
  /// warpgroup waits for the next stage.
  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork& w,
                                                  const MatmulPart& part) {
    using Tile = typename Consumer::Tile;
    if constexpr (Tile::kTails) {
      const int boxes = warp_value(c.list.boxes(w));
      if constexpr (Tile::kGrouped) {
        if (boxes == 1) return sum_columns<64>(c, part);
      }
      if constexpr (Tile::kTokens > 128) {
        if (boxes <= 2) return sum_columns<128>(c, part);
      }
      if constexpr (Tile::kTall) {
        if (boxes == 3) return sum_columns<128, 64>(c, part);
      } else if constexpr (Tile::kTokens == 256) {
        if (boxes == 3) return sum_columns<192>(c, part);
      }
    }
    // Three warpgroups have no registers for a product of 256 columns.
    if constexpr (Tile::kTall) {
      sum_columns<128, 128>(c, part);
    } else {
      sum_columns<Tile::kTokens>(c, part);
    }
  }

 private:
  /// The same for the first kFirst tokens of the tile and the kSecond after them. The sums of the
  /// others are 0.
  template <int kFirst, int kSecond = 0, class Consumer>
  static __device__ __forceinline__ void sum_columns(Consumer& c, const MatmulPart& part) {
    auto ring = c.ring();
    std::uint32_t last = 0;  // barrier of the stage that unfinished wgmmas read
    LATHE_ROLLED
    for (std::int32_t left = warp_value(part.end - part.begin); left > 0; --left) {
      ring.wait_full();
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const bool add = k > 0 || last != 0;
        multiply<0, kFirst>(c.acc, ring, k, add);
        if constexpr (kSecond > 0) multiply<kFirst, kSecond>(c.acc, ring, k, add);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (last != 0) c.release(last);
      last = ring.empty();
      ring.next();
    }
    wgmma_wait<0>();
    wgmma_pin(c.acc);
    LATHE_UNROLL
    for (int i = (kFirst + kSecond) / 2; i < Consumer::kValues; ++i) c.acc[i] = 0;
    if (last != 0) c.release(last);
    c.stage = ring.stage();
  }
  template <int kBegin, int kTokens, int kValues, class Ring>
  static __device__ __forceinline__ void multiply(float (&acc)[kValues], const Ring& ring, int k,
                                                  bool add) {
    const auto step = static_cast<std::uint32_t>(32 * k);
    mma_m64_bf16(reinterpret_cast<float(&)[kTokens / 2]>(acc[kBegin / 2]), ring.weights(step),
                 ring.tokens(kBegin * 128 + step), add);
  }
};

}  // namespace lathe::cuda
