// The recurrence row by row, for steps with few rows of each request. A block has 32 columns of a
// head's S in registers, which it reads and writes once.
#pragma once

#include "kernels/cuda/sm90/delta/delta_rows.cuh"

namespace lathe::cuda {

inline constexpr int kRecurrenceThreads = 128, kRecurrenceColumns = 32;

/// What a row needs, in shared memory.
struct RecurrenceRow {
  float q[kDeltaMostKeys], k[kDeltaMostKeys];
  float fade[kDeltaMostKeys], faded[kDeltaMostKeys];  // e^g; k e^g
  float v[kRecurrenceColumns];
  float squares[2][4];                 // of q and k, a warp each
  float known[4][kRecurrenceColumns];  // k^T S, a warp each
  float sums[4][kRecurrenceColumns];   // q^T S, a warp each
};

/// Convolution, norms and gates of row t, by all threads.
__device__ inline void prepare_row(const DeltaParams& p, const DeltaRequest& r, std::int64_t t,
                                   std::int64_t head, std::int64_t column, RecurrenceRow& row) {
  const auto tid = static_cast<int>(threadIdx.x);
  const std::int64_t key_head = head / (p.heads / p.key_heads);
  const bool mine = tid < p.dk;
  float q = 0, k = 0;
  if (mine) {
    q = delta_convolve(p, r, t, key_head * p.dk + tid);
    k = delta_convolve(p, r, t, (p.key_heads + key_head) * p.dk + tid);
  }
  if (tid < kRecurrenceColumns && column + tid < p.dv) {
    const std::int64_t keys = 2 * std::int64_t{p.key_heads} * p.dk;
    row.v[tid] = delta_convolve(p, r, t, keys + head * p.dv + column + tid);
  }
  float of_q = q * q, of_k = k * k;
  LATHE_UNROLL
  for (int d = 16; d > 0; d /= 2) {
    of_q += shuffle_xor(of_q, d);
    of_k += shuffle_xor(of_k, d);
  }
  if (tid % 32 == 0) row.squares[0][tid / 32] = of_q, row.squares[1][tid / 32] = of_k;
  sync_block();
  if (mine) {
    of_q = of_k = 0;
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) of_q += row.squares[0][w], of_k += row.squares[1][w];
    const std::int64_t channel = p.per_channel ? head * p.dk + tid : head;
    const float f = p.decay[(r.first + t) * p.decay_stride + channel];
    const float fade = expf(delta_gate(p, f, head, channel));
    k /= sqrtf(of_k + 1e-6f);
    row.q[tid] = q / sqrtf((of_q + 1e-6f) * static_cast<float>(p.dk));
    row.k[tid] = k;
    row.fade[tid] = fade;
    row.faded[tid] = k * fade;
  }
  sync_block();
}

/// Adds up the sums of the 4 threads of a warp, and of the 4 warps, for each column.
__device__ inline void add_up(float (&v)[4], float (&room)[4][kRecurrenceColumns]) {
  const auto tid = static_cast<int>(threadIdx.x);
  LATHE_UNROLL
  for (int c = 0; c < 4; ++c) {
    v[c] += shuffle_xor(v[c], 8);
    v[c] += shuffle_xor(v[c], 16);
  }
  if (tid % 32 < 8) {
    LATHE_UNROLL
    for (int c = 0; c < 4; ++c) room[tid / 32][tid % 32 * 4 + c] = v[c];
  }
  sync_block();
}
__device__ inline float sum_of_warps(const float (&room)[4][kRecurrenceColumns], int column) {
  return (room[0][column] + room[1][column]) + (room[2][column] + room[3][column]);
}

/// Grid: tiles of columns, heads, requests.
static __global__ void __launch_bounds__(kRecurrenceThreads)
    delta_rows_kernel(const __grid_constant__ DeltaParams p) {
  __shared__ RecurrenceRow row;
  let_next_begin();
  wait_for_previous();
  const std::int64_t request = blockIdx.z, head = blockIdx.y;
  const DeltaRequest r = delta_request(p, request);
  if (r.count == 0) return;
  const auto tid = static_cast<int>(threadIdx.x);
  const std::int64_t column = std::int64_t{blockIdx.x} * kRecurrenceColumns;
  // The thread's part of S: rows group + 16 i, four columns.
  const int group = tid / 8, quad = tid % 8 * 4, parts = p.dk / 16;
  const bool inside = column + quad < p.dv;
  const std::int64_t at = head * p.dk * p.dv + group * std::int64_t{p.dv} + column + quad;
  const std::int64_t step = std::int64_t{16} * p.dv;
  float s[kDeltaMostKeys / 16][4];
  LATHE_UNROLL
  for (int i = 0; i < kDeltaMostKeys / 16; ++i) {
    float4 v = {};
    if (r.before != nullptr && i < parts && inside) {
      v = *reinterpret_cast<const float4*>(r.before + at + i * step);
    }
    s[i][0] = v.x, s[i][1] = v.y, s[i][2] = v.z, s[i][3] = v.w;
  }
  for (std::int64_t t = 0; t < r.count; ++t) {
    prepare_row(p, r, t, head, column, row);
    float known[4] = {}, sums[4] = {};
    LATHE_UNROLL
    for (int i = 0; i < kDeltaMostKeys / 16; ++i) {
      if (i >= parts) break;
      const float k = row.faded[group + 16 * i];
      LATHE_UNROLL
      for (int c = 0; c < 4; ++c) known[c] = fmaf(k, s[i][c], known[c]);
    }
    add_up(known, row.known);
    const float beta = delta_sigmoid(p.beta[(r.first + t) * p.beta_stride + head]);
    float delta[4];
    LATHE_UNROLL
    for (int c = 0; c < 4; ++c) {
      delta[c] = inside ? beta * (row.v[quad + c] - sum_of_warps(row.known, quad + c)) : 0;
    }
    float* const left = left_state(p, r, request, r.cached + t);
    LATHE_UNROLL
    for (int i = 0; i < kDeltaMostKeys / 16; ++i) {
      if (i >= parts) break;
      const int key = group + 16 * i;
      LATHE_UNROLL
      for (int c = 0; c < 4; ++c) {
        s[i][c] = fmaf(row.k[key], delta[c], row.fade[key] * s[i][c]);
        sums[c] = fmaf(row.q[key], s[i][c], sums[c]);
      }
      if (left != nullptr && inside) {
        *reinterpret_cast<float4*>(left + at + i * step) = {s[i][0], s[i][1], s[i][2], s[i][3]};
      }
    }
    add_up(sums, row.sums);
    if (tid < kRecurrenceColumns && column + tid < p.dv) {
      p.out[(r.first + t) * p.out_stride + head * p.dv + column + tid] =
          to_bf16(sum_of_warps(row.sums, tid));
    }
  }
}

}  // namespace lathe::cuda
