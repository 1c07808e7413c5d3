// What softmax weights are relative to.
//
// Weights are 2^(score - reference): a line's reference is the maximum at the time when a score last
// exceeded it by more than 2^8, so sums are seldom rescaled. Weights stay below 2^8 and sums far below
// f32's bounds, and the reference cancels out of the result.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

inline constexpr float kNoKey = -__builtin_huge_valf();  // the score of a hidden key
inline constexpr float kReferenceSlack = 8;              // log2

/// What a row's outputs are multiplied by where a sink joins its weights; lse2 of its keys alone.
__device__ inline float sink_factor(float sink, float lse2) {
  // No key and a sink of -inf make a NaN, and the minimum a number of it; the outputs are 0 then.
  return 1.f / (1.f + fminf(exp2_fast(sink * 1.4426950408889634f - lse2), -kNoKey));
}

}  // namespace lathe::cuda
