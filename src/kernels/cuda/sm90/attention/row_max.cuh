// Row max and rescale.
//
// P is 2^(score - row max). A row max is the maximum at the time when a score last exceeded it by
// more than 2^24, so the accumulator is rarely rescaled, however far scores spread. bf16 P has the
// range of f32, the accumulator stays within it, and the row max cancels out of the result.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/common/lse_form.h"

namespace lathe::cuda {

inline constexpr float kNoKey = -__builtin_huge_valf();  // the score of a masked key
inline constexpr float kRowMaxSlack = 24;                // log2

/// The factor of an M row's outputs where a sink joins; lse2 of its keys alone.
__device__ inline float sink_factor(float sink, float lse2) {
  // No key and a sink of -inf make a NaN, which the minimum drops; the outputs are 0 then.
  return 1.f / (1.f + fminf(exp2_fast(sink * 1.4426950408889634f - lse2), -kNoKey));
}

/// What is stored of an M row's lse2, which is kNoKey where it has no key.
__device__ inline float stored_lse(const LseForm& form, float lse2) {
  return lse2 == kNoKey ? form.empty : lse2 * form.unit;
}

/// Raises the row maxes of M rows that have outgrown them, with A and B swapped, where an M row's
/// scores d are spread over all warps of a group. The products must be done. Group: acc[tiles][],
/// row_sum[][2]; column(warp, m_row), where a warp's maximum goes; raised(m_row, was), the row max
/// after all of them; sync() of the group.
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
      // From -inf there is nothing to scale; the accumulator is 0.
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
