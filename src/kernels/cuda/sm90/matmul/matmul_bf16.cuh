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
  static constexpr int kPackedRow = 0;  // bytes of a row's packed scales in a chunk
  static constexpr int kDepth = 1;
  static constexpr bool kFactor = false;

  /// acc = the sum over a part of K. A stage's wgmmas run while the warpgroup waits for the next
  /// stage.
  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork&,
                                                  const MatmulPart& part) {
    int last = -1;  // the stage that unfinished wgmmas read
    LATHE_ROLLED
    for (std::int32_t chunk = part.begin; chunk < part.end; ++chunk) {
      c.wait_full();
      const std::uint64_t a = tile_descriptor(c.weights(), 1024);
      const std::uint64_t b = tile_descriptor(c.tokens(), 1024);
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        mma_m64_bf16(c.acc, descriptor_at(a, 32 * k), descriptor_at(b, 32 * k),
                     k > 0 || chunk > part.begin);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (last >= 0) c.release(last);
      last = c.stage.index;
      c.stage.next();
    }
    wgmma_wait<0>();
    wgmma_pin(c.acc);
    if (last >= 0) c.release(last);
  }
};

}  // namespace lathe::cuda
