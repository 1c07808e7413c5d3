// A consumer's stages in uniform registers, from which products take their descriptors: to move
// descriptors there takes longer than the products of few tokens. The compiler uses such registers
// where it can see that a value is the same in all lanes, and that all lanes of a warp are there.
// So branches on the way depend on warp_value()s.
#pragma once

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/matmul/matmul_config.cuh"

namespace lathe::cuda {

template <class T>
class MatmulRing {
 public:
  /// weights, tokens: addresses of the warpgroup's in stage 0.
  __device__ MatmulRing(const MatmulShared<T>& s, std::uint32_t weights, std::uint32_t tokens,
                        const MatmulStage<T>& stage)
      : full_(warp_value(s.full(0))),
        weights_(warp_value(tile_low_word(weights, 1024))),
        tokens_(warp_value(tile_low_word(tokens, 1024))),
        index_(static_cast<std::uint32_t>(warp_value(stage.index))),
        parity_(warp_value(stage.parity)) {}

  __device__ std::uint32_t index() const { return index_; }
  __device__ MatmulStage<T> stage() const { return {static_cast<int>(index_), parity_}; }
  __device__ void wait_full() const { barrier_wait(full_ + 8 * index_, parity_); }
  __device__ std::uint32_t empty() const { return full_ + 8 * (T::kStages + index_); }
  /// The stage's weights and tokens from `bytes` on, a multiple of 16.
  __device__ std::uint64_t weights(std::uint32_t bytes) const {
    return tile_of_low_word(weights_ + step() + bytes / 16, 1024);
  }
  __device__ std::uint64_t tokens(std::uint32_t bytes) const {
    return tile_of_low_word(tokens_ + step() + bytes / 16, 1024);
  }
  __device__ void next() {
    parity_ ^= index_ + 1 == T::kStages ? 1 : 0;
    index_ = index_ + 1 == T::kStages ? 0 : index_ + 1;
  }

 private:
  __device__ std::uint32_t step() const { return index_ * (T::kStageBytes / 16); }

  std::uint32_t full_, weights_, tokens_;  // of stage 0: a barrier, and low words of descriptors
  std::uint32_t index_, parity_;
};

}  // namespace lathe::cuda
