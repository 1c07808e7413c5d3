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

/// Raises the references of lines that have outgrown them, where a line's scores d lie in all warps of a group and lines
/// on the N side; the products must be done. Group: sums[8][], total[][2] and where they are told; column(warp, line),
/// where a warp's maximum goes; raised(line, was), the reference after all of them; sync() of the group.
template <class Group, int kScores>
__device__ void raise_references(Group& g, const float (&d)[kScores]) {
  LATHE_UNROLL
  for (int j = 0; j < Group::kEights; ++j) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
      for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
      if (g.lane < 4) store_float(g.column(g.warp, g.line(j, i)), m * g.p.scale);
    }
  }
  g.sync();
  LATHE_UNROLL
  for (int j = 0; j < Group::kEights; ++j) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float was = load_float(g.reference(g.line(j, i))), m = g.raised(g.line(j, i), was);
      if (m == was) continue;
      // From -inf there is nothing to scale; the sums are 0.
      const float factor = exp2_fast(was - m);
      g.total[j][i] *= factor;
      LATHE_UNROLL
      for (int t = 0; t < 8; ++t) {
        g.sums[t][4 * j + i] *= factor;
        g.sums[t][4 * j + 2 + i] *= factor;
      }
    }
  }
  g.sync();
  if (g.warp == 0 && g.lane < Group::kLines) {
    store_float(g.reference(g.lane), g.raised(g.lane, load_float(g.reference(g.lane))));
  }
  g.sync();
}

}  // namespace lathe::cuda
