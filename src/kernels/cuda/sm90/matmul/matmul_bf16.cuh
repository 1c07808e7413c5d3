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
    if constexpr (Consumer::Tile::kTails) {
      const int boxes = c.list.boxes(w);
      if (boxes == 1) return sum_columns<64>(c, part);
      if constexpr (Consumer::Tile::kTokens == 256) {
        if (boxes == 2) return sum_columns<128>(c, part);
        if (boxes == 3) return sum_columns<128, 64>(c, part);
      }
    }
    if constexpr (Consumer::Tile::kTokens == 192) {
      sum_columns<128, 64>(c, part);
    } else {
      sum_columns<Consumer::Tile::kTokens>(c, part);
    }
  }

 private:
  /// The same for the first kFirst tokens of the tile and the kSecond after them. The sums of the
  /// others are 0.
  template <int kFirst, int kSecond = 0, class Consumer>
  static __device__ __forceinline__ void sum_columns(Consumer& c, const MatmulPart& part) {
    int last = -1;  // the stage that unfinished wgmmas read
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      c.wait_full();
      const std::uint64_t a = tile_descriptor(c.weights(), 1024);
      const std::uint64_t b = tile_descriptor(c.tokens(), 1024);
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const bool add = k > 0 || chunk > part.begin;
        multiply<0, kFirst>(c.acc, a, b, k, add);
        if constexpr (kSecond > 0) multiply<kFirst, kSecond>(c.acc, a, b, k, add);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0) c.release(last);
      last = c.stage.index;
      c.stage.next();
    }
    wgmma_wait<0>();
    wgmma_pin(c.acc);
    LATHE_UNROLL
    for (int i = (kFirst + kSecond) / 2; i < Consumer::kValues; ++i) c.acc[i] = 0;
    if (last >= 0) c.release(last);
  }
  template <int kBegin, int kTokens, int kValues>
  static __device__ __forceinline__ void multiply(float (&acc)[kValues], std::uint64_t a,
                                                  std::uint64_t b, int k, bool add) {
    mma_m64_bf16(reinterpret_cast<float(&)[kTokens / 2]>(acc[kBegin / 2]), descriptor_at(a, 32 * k),
                 descriptor_at(b, static_cast<std::uint32_t>(kBegin * 128 + 32 * k)), add);
  }
};

}  // namespace lathe::cuda
