// The recurrence row by row, for steps with few rows of each request. A block has 32 columns of a
// head's S in registers, which it reads and writes once.
#pragma once

#include "kernels/cuda/sm90/delta/delta_rows.cuh"

namespace lathe::cuda {

#ifdef __CUDACC__
/// Prefetches `bytes` (a multiple of 16) to L2.
__device__ inline void prefetch_row(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
#else
inline void prefetch_row(const void*, std::uint32_t) {}
#endif

inline constexpr int kRecurrenceThreads = 128, kRecurrenceColumns = 32;
inline constexpr int kSingleBlocks = 6;  // of a multiprocessor, with one row of each request

/// What a row needs, in shared memory. q and k are not normed yet: their factors are.
struct RecurrenceRow {
  float q[kDeltaMostKeys], k[kDeltaMostKeys];
  float fade[kDeltaMostKeys], faded[kDeltaMostKeys];  // e^g; k e^g
  float v[kRecurrenceColumns];
  float squares[2][4];                 // of q and k, a warp each
  float known[4][kRecurrenceColumns];  // k^T S, a warp each
  float sums[4][kRecurrenceColumns];   // q^T S, a warp each
};

/// A channel's convolution, row by row.
struct ChannelWindow {
  float a = 0, b = 0, c = 0;  // the inputs before the next row

  __device__ void load(const DeltaParams& p, const DeltaRequest& r, std::int64_t channel) {
    if (r.before == nullptr) return;
    const float* const old = r.before + delta_matrix_size(p) + channel;
    a = old[0], b = old[p.channels], c = old[2 * p.channels];
  }
  /// silu of the output at the row with input d.
  __device__ float advance(const float4& taps, float d) {
    const float sum = fmaf(taps.w, d, fmaf(taps.z, c, fmaf(taps.y, b, taps.x * a)));
    a = b, b = c, c = d;
    return delta_silu(sum);
  }
};

/// A thread's inputs: a channel of q and one of k; of v, in the first warp; a gate and beta. Loads
/// are one row ahead of their use; the first row's follow the constructor, which reads nothing that
/// this step's launches write.
struct RecurrenceInputs {
  ChannelWindow q, k, v;
  float x_q = 0, x_k = 0, x_v = 0, f = 0, beta = 0;
  std::int32_t q_channel, k_channel, v_channel, gate_channel;
  float a = 0, bias = 0;
  bool of_key, of_value;

  __device__ RecurrenceInputs(const DeltaParams& p, const DeltaRequest& r, std::int32_t head,
                              std::int32_t column) {
    const auto tid = static_cast<int>(threadIdx.x);
    const std::int32_t key_head = head / (p.heads / p.key_heads);
    of_key = tid < p.dk;
    of_value = tid < kRecurrenceColumns && column + tid < p.dv;
    q_channel = key_head * p.dk + tid;
    k_channel = (p.key_heads + key_head) * p.dk + tid;
    v_channel = 2 * p.key_heads * p.dk + head * p.dv + column + tid;
    gate_channel = p.per_channel ? head * p.dk + tid : head;
    if (of_key) {
      q.load(p, r, q_channel);
      k.load(p, r, k_channel);
      a = p.a_log[head];
      bias = p.dt_bias[gate_channel];
    }
    if (of_value) v.load(p, r, v_channel);
  }
  __device__ void load_row(const DeltaParams& p, const DeltaRequest& r, std::int32_t head,
                           std::int64_t t) {
    const float* const x = p.x + (r.first + t) * p.x_stride;
    beta = p.beta[(r.first + t) * p.beta_stride + head];
    if (of_key) {
      x_q = x[q_channel], x_k = x[k_channel];
      f = p.decay[(r.first + t) * p.decay_stride + gate_channel];
    }
    if (of_value) x_v = x[v_channel];
  }
};

__device__ inline float4 load_taps(const DeltaParams& p, std::int32_t channel) {
  return *reinterpret_cast<const float4*>(p.conv + std::int64_t{channel} * kDeltaTaps);
}

/// Convolution and gates of the next row; returns its beta.
__device__ inline float prepare_row(const DeltaParams& p, RecurrenceInputs& in,
                                    RecurrenceRow& row) {
  const auto tid = static_cast<int>(threadIdx.x);
  float q = 0, k = 0;
  if (in.of_key) {
    const float4 of_q = load_taps(p, in.q_channel), of_k = load_taps(p, in.k_channel);
    q = in.q.advance(of_q, in.x_q);
    k = in.k.advance(of_k, in.x_k);
    const float fade = expf(delta_gate(p, in.f + in.bias, expf(in.a)));
    row.q[tid] = q;
    row.k[tid] = k;
    row.fade[tid] = fade;
    row.faded[tid] = k * fade;
  }
  if (in.of_value) row.v[tid] = in.v.advance(load_taps(p, in.v_channel), in.x_v);
  float of_q = q * q, of_k = k * k;
  LATHE_UNROLL
  for (int d = 16; d > 0; d /= 2) {
    of_q += shuffle_xor(of_q, d);
    of_k += shuffle_xor(of_k, d);
  }
  if (tid % 32 == 0) row.squares[0][tid / 32] = of_q, row.squares[1][tid / 32] = of_k;
  return delta_sigmoid(in.beta);
}
/// 1 / the norm of q or k, after a barrier.
__device__ inline float norm_factor(const float (&squares)[4]) {
  return 1 / sqrtf((squares[0] + squares[1]) + (squares[2] + squares[3]) + 1e-6f);
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

/// A thread's part of a block's columns of S, in registers: keys group + 16 i, four columns.
struct RecurrenceTile {
  int group, quad, parts;
  bool inside;            // the columns are within dv
  std::int64_t at, step;  // of key `group` in a state; from a key to the next of the thread
  float s[kDeltaMostKeys / 16][4];

  __device__ RecurrenceTile(const DeltaParams& p, const DeltaRequest& r, std::int32_t head,
                            std::int32_t column) {
    const auto tid = static_cast<int>(threadIdx.x);
    group = tid / 8, quad = tid % 8 * 4, parts = p.dk / 16;
    inside = column + quad < p.dv;
    at = (std::int64_t{head} * p.dk + group) * p.dv + column + quad;
    step = std::int64_t{16} * p.dv;
    LATHE_UNROLL
    for (int i = 0; i < kDeltaMostKeys / 16; ++i) {
      float4 v = {};
      if (r.before != nullptr && i < parts && inside) {
        v = *reinterpret_cast<const float4*>(r.before + at + i * step);
      }
      s[i][0] = v.x, s[i][1] = v.y, s[i][2] = v.z, s[i][3] = v.w;
    }
  }

  /// The recurrence for a row that prepare_row() has prepared, after a barrier. Writes S to the
  /// state `to`, unless it is null. Returns q^T S of column tid, in the first warp.
  __device__ float advance(const DeltaParams& p, RecurrenceRow& row, float beta, float* to) {
    float known[4] = {}, sums[4] = {};
    LATHE_UNROLL
    for (int i = 0; i < kDeltaMostKeys / 16; ++i) {
      if (i >= parts) break;
      const float k = row.faded[group + 16 * i];
      LATHE_UNROLL
      for (int c = 0; c < 4; ++c) known[c] = fmaf(k, s[i][c], known[c]);
    }
    add_up(known, row.known);
    const float of_k = norm_factor(row.squares[1]);
    float delta[4];  // with the factor of k
    LATHE_UNROLL
    for (int c = 0; c < 4; ++c) {
      const float known_c = of_k * sum_of_warps(row.known, quad + c);
      delta[c] = inside ? of_k * beta * (row.v[quad + c] - known_c) : 0;
    }
    LATHE_UNROLL
    for (int i = 0; i < kDeltaMostKeys / 16; ++i) {
      if (i >= parts) break;
      const int key = group + 16 * i;
      const float k = row.k[key], fade = row.fade[key], q = row.q[key];
      LATHE_UNROLL
      for (int c = 0; c < 4; ++c) {
        s[i][c] = fmaf(k, delta[c], fade * s[i][c]);
        sums[c] = fmaf(q, s[i][c], sums[c]);
      }
      if (to != nullptr && inside) {
        *reinterpret_cast<float4*>(to + at + i * step) = {s[i][0], s[i][1], s[i][2], s[i][3]};
      }
    }
    const float of_q = norm_factor(row.squares[0]) / sqrtf(static_cast<float>(p.dk));
    add_up(sums, row.sums);
    const auto tid = static_cast<int>(threadIdx.x);
    return tid < kRecurrenceColumns ? of_q * sum_of_warps(row.sums, tid) : 0;
  }
};

/// Prefetches a part of the state of a head that other blocks will read when those that run
/// together with this one, on 132 multiprocessors, are done. They all load, compute and store at
/// nearly the same time, and memory would be idle while they compute. One thread calls it.
__device__ inline void prefetch_later_state(const DeltaParams& p, std::int64_t request,
                                            std::int32_t head, std::int32_t column) {
  constexpr int kTiles = kDeltaWidth / kRecurrenceColumns;
  constexpr int kHeads = 132 * kSingleBlocks / kTiles;
  const std::int64_t at = request * p.heads + head + kHeads, later = divide(at, p.heads);
  if (later >= p.requests) return;
  const float* const before = delta_request(p, later).before;
  if (before == nullptr) return;
  constexpr int kPart = kDeltaMostKeys * kDeltaWidth / kTiles;
  const std::int64_t first = (at - later * p.heads) * kTiles + column / kRecurrenceColumns;
  prefetch_row(before + first * kPart, 4 * kPart);
}

/// Grid: tiles of columns, heads, requests. kSingle: every request has one row, for which fewer
/// registers are enough.
///
/// The request's lists and state are loaded before the previous launch has ended. The host copies
/// the lists before the step's first launch, after everything of the step before; and no launch of
/// this step writes the state before this one.
template <bool kSingle>
static __global__ void __launch_bounds__(kRecurrenceThreads, kSingle ? kSingleBlocks : 4)
    delta_rows_kernel(const __grid_constant__ DeltaParams p) {
  __shared__ RecurrenceRow row;
  let_next_begin();
  const std::int64_t request = blockIdx.z;
  const auto head = static_cast<std::int32_t>(blockIdx.y);
  const DeltaRequest r = delta_request(p, request);
  if (r.count == 0) return wait_for_previous();
  const auto tid = static_cast<int>(threadIdx.x);
  const std::int32_t column = static_cast<std::int32_t>(blockIdx.x) * kRecurrenceColumns;
  RecurrenceTile tile(p, r, head, column);
  RecurrenceInputs in(p, r, head, column);
  wait_for_previous();
  in.load_row(p, r, head, 0);
  if (kSingle && tid == kRecurrenceThreads - 1 && p.dk == kDeltaMostKeys && p.dv == kDeltaWidth) {
    prefetch_later_state(p, request, head, column);
  }
  float* left = left_state(p, r, request, r.cached);
  for (std::int64_t t = 0; t < r.count; ++t) {
    const float beta = prepare_row(p, in, row);
    float* const to = left;
    if (!kSingle && t + 1 < r.count) {
      in.load_row(p, r, head, t + 1);
      left = left_state(p, r, request, r.cached + t + 1);
    }
    sync_block();
    const float o = tile.advance(p, row, beta, to);
    if (in.of_value) {
      p.out[(r.first + t) * p.out_stride + std::int64_t{head} * p.dv + column + tid] = to_bf16(o);
    }
    if (kSingle) return;
  }
}

}  // namespace lathe::cuda
