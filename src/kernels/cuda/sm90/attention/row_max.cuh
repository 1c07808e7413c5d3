// Row max and rescaling of the accumulator.
//
// P is 2^(score - row max). A row max is raised only when a score exceeds it by more than 2^24, so
// the accumulator is rarely rescaled, however widely scores spread. P in bf16 has the range of f32,
// the accumulator does not overflow, and the row max cancels out of the result.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/common/lse_form.h"

namespace lathe::cuda {

inline constexpr float kNoKey = -__builtin_huge_valf();  // the score of a masked key
inline constexpr float kRowMaxSlack = 24;                // log2

/// Factor of an M row's outputs with a sink; lse2: of its keys alone.
__device__ inline float sink_factor(float sink, float lse2) {
  // Without keys, a sink of -inf gives NaN. fminf drops it, and the outputs are 0.
  return 1.f / (1.f + fminf(exp2_fast(sink * 1.4426950408889634f - lse2), -kNoKey));
}

/// The LSE to store for lse2, which is kNoKey where an M row has no keys.
__device__ inline float stored_lse(const LseForm& form, float lse2) {
  return lse2 == kNoKey ? form.empty : lse2 * form.unit;
}

/// Raises the row maxes of M rows that have outgrown them, with A and B swapped: an M row's scores
/// d are spread over all warps of a group. wgmma must have finished. Group has acc[tiles][],
/// row_sum[][2]; column(warp, m_row), the address of a warp's maximum; raised(m_row, was), the new
/// row max; and sync() of the group.
template <class Group, int kScores>
__device__ void raise_row_max(Group& g, const float (&d)[kScores]) {
  LATHE_UNROLL
  for (int j = 0; j < Group::kEights; ++j) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
      for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
      if (g.lane < 4) store_float(g.column(g.warp, g.m_row(j, i)), m * g.p.scale);
    }
  }
  g.sync();
  LATHE_UNROLL
  for (int j = 0; j < Group::kEights; ++j) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float was = load_float(g.row_max(g.m_row(j, i))), m = g.raised(g.m_row(j, i), was);
      if (m == was) continue;
      // From -inf there is nothing to scale: the accumulator is 0.
      const float factor = exp2_fast(was - m);
      g.row_sum[j][i] *= factor;
      LATHE_UNROLL
      for (auto& tile : g.acc) {
        tile[4 * j + i] *= factor;
        tile[4 * j + 2 + i] *= factor;
      }
    }
  }
  g.sync();
  const int m_row = g.warp * 32 + g.lane;
  if (m_row < Group::kMRows) {
    store_float(g.row_max(m_row), g.raised(m_row, load_float(g.row_max(m_row))));
  }
  g.sync();
}

}  // namespace lathe::cuda
