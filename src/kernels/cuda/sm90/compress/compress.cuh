// The compressor's fold, with a block per row of the step. A thread folds its channels alone, so a
// fold has one order, whichever block computes it.
//
// A request's new state may overwrite the slot of its old one. So the block of the request's first
// row does everything that needs the old state, which it holds in registers, and then writes the
// new states. The other blocks compute the entries of groups that start in this step.
#pragma once

#include <cmath>

#include "kernels/cuda/common/block_sum.cuh"
#include "kernels/cuda/common/hadamard.cuh"
#include "kernels/cuda/sm90/compress/compress.h"
#include "kernels/cuda/sm90/compress/store_entry.cuh"

namespace lathe::cuda {

inline constexpr int kCompressThreads = 256;

/// A thread's channels of a row, one or two; those past `dim` are 0.
template <int kChannels>
__device__ inline void load_channels(const float* row, std::int64_t first, std::int64_t dim,
                                     float (&out)[kChannels]) {
  if constexpr (kChannels == 2) {
    float2 v = {};
    if (first < dim) v = *reinterpret_cast<const float2*>(row + first);
    out[0] = v.x, out[1] = v.y;
  } else {
    out[0] = first < dim ? row[first] : 0;
  }
}
template <int kChannels>
__device__ inline void store_channels(float* row, std::int64_t first, std::int64_t dim,
                                      const float (&v)[kChannels]) {
  if (first >= dim) return;
  if constexpr (kChannels == 2) {
    *reinterpret_cast<float2*>(row + first) = {v[0], v[1]};
  } else {
    row[first] = v[0];
  }
}

/// m, s and a of kernels/compress.h for a thread's channels.
template <int kChannels>
struct ChannelFold {
  float m[kChannels], s[kChannels], a[kChannels];

  __device__ void clear() {
    LATHE_UNROLL
    for (int i = 0; i < kChannels; ++i) m[i] = -INFINITY, s[i] = a[i] = 0;
  }
  // One of the two powers is always 1.
  __device__ void add(const float (&kv)[kChannels], const float (&gate)[kChannels],
                      const float (&bias)[kChannels]) {
    LATHE_UNROLL
    for (int i = 0; i < kChannels; ++i) {
      const float z = gate[i] + bias[i];
      const bool higher = z > m[i];
      const float fade = expf(higher ? m[i] - z : z - m[i]);
      s[i] = higher ? fmaf(s[i], fade, 1.f) : s[i] + fade;
      a[i] = higher ? fmaf(a[i], fade, kv[i]) : fmaf(kv[i], fade, a[i]);
      m[i] = higher ? z : m[i];
    }
  }
  __device__ void load(const float* state, std::int64_t first, std::int64_t dim) {
    load_channels(state, first, dim, m);
    load_channels(state + dim, first, dim, s);
    load_channels(state + 2 * dim, first, dim, a);
  }
  __device__ void store(float* state, std::int64_t first, std::int64_t dim) const {
    store_channels(state, first, dim, m);
    store_channels(state + dim, first, dim, s);
    store_channels(state + 2 * dim, first, dim, a);
  }
};

/// A request's rows in the step, and a thread's part of the state before them.
template <int kHalves, int kChannels>
struct CompressedRows {
  using Fold = ChannelFold<kChannels>;

  const CompressParams& p;
  std::int64_t first_row, cached, end;  // cached, end: positions
  std::int64_t channel;                 // the thread's first
  bool carries = false;                 // there is an old state
  Fold before[kHalves];

  __device__ CompressedRows(const CompressParams& params, std::int64_t request)
      : p(params), channel(std::int64_t{threadIdx.x} * kChannels) {
    first_row = p.q_indptr[request];
    end = p.kv_lens[request];
    cached = end - (p.q_indptr[request + 1] - first_row);
  }
  /// Address of a half's state after the token at `position`.
  __device__ float* state_at(std::int32_t slot, std::int64_t position, int half) const {
    const std::int64_t bank = slot * p.state_banks + position % p.state_banks;
    return p.state + bank * p.state_stride + std::int64_t{3} * half * p.dim;
  }
  __device__ void load_state(std::int32_t slot) {
    carries = slot >= 0;
    LATHE_UNROLL
    for (int h = 0; h < kHalves && carries; ++h) {
      before[h].load(state_at(slot, cached - 1, h), channel, p.dim);
    }
  }
  /// Adds the tokens from `first` on and before both `last` and `stop`, except tokens of earlier
  /// steps, with the channels of a half.
  __device__ void add(Fold& fold, std::int64_t first, std::int64_t last, std::int64_t stop,
                      int half) const {
    const std::int64_t width = std::int64_t{kHalves} * p.dim, from = std::int64_t{half} * p.dim;
    if (first < cached) first = cached;
    if (last > stop) last = stop;
    LATHE_UNROLL_BY(2)
    for (std::int64_t at = first; at < last; ++at) {
      const std::int64_t row = first_row + at - cached;
      float kv[kChannels], gate[kChannels], bias[kChannels];
      load_channels(p.kv + row * p.kv_stride + from, channel, p.dim, kv);
      load_channels(p.gate + row * p.gate_stride + from, channel, p.dim, gate);
      load_channels(p.position_bias + at % p.ratio * width + from, channel, p.dim, bias);
      fold.add(kv, gate, bias);
    }
  }
  /// Advances the state from before the token at `at` to after it.
  __device__ void go_on(Fold (&state)[kHalves], std::int64_t at) const {
    add(state[0], at, at + 1, at + 1, kHalves - 1);
    if (kHalves == 2) add(state[kHalves - 1], at, at + 1, at + 1, 0);
    if ((at + 1) % p.ratio != 0) return;
    if (kHalves == 2) state[0] = state[kHalves - 1];
    state[kHalves - 1].clear();
  }
  /// The fold of group g over the tokens before `stop`.
  __device__ Fold fold(std::int64_t g, std::int64_t stop) const {
    Fold out;
    out.clear();
    const std::int64_t own = cached / p.ratio;
    LATHE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      if (carries && g == own + h) out = before[h];
    }
    if (kHalves == 2) add(out, (g - 1) * p.ratio, g * p.ratio, stop, 0);
    add(out, g * p.ratio, (g + 1) * p.ratio, stop, kHalves - 1);
    return out;
  }
};

/// Rotates the last elements of an entry in shared memory, as at `position`.
__device__ inline void rotate_entry(const CompressParams& p, std::int64_t position, float* entry) {
  float* const rotary = entry + p.dim - p.rope;
  const float* const factors = p.table + position * p.rope;
  const std::int32_t half = p.rope / 2;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < half; i += kCompressThreads) {
    const bool neighbours = p.pairing == RopePairing::interleaved;
    float& a = rotary[neighbours ? 2 * i : i];
    float& b = rotary[neighbours ? 2 * i + 1 : i + half];
    const float cosine = factors[i], sine = factors[half + i], x = a, y = b;
    a = x * cosine - y * sine;
    b = x * sine + y * cosine;
  }
}

/// Norms an entry of which each thread has its channels.
template <int kChannels>
__device__ inline void norm_entry(const CompressParams& p, std::int64_t channel,
                                  float (&mean)[kChannels], float* room) {
  float norm[kChannels];
  load_channels(p.norm, channel, p.dim, norm);
  float squares = 0;
  LATHE_UNROLL
  for (int i = 0; i < kChannels; ++i) squares += mean[i] * mean[i];
  const float sum = block_sum<kCompressThreads>(squares, room);
  const float factor = 1 / sqrtf(sum / static_cast<float>(p.dim) + p.norm_eps);
  LATHE_UNROLL
  for (int i = 0; i < kChannels; ++i) mean[i] *= factor * norm[i];
}

/// Writes the entry that row t completes. All threads call it.
template <int kHalves, int kChannels>
__device__ inline void emit_entry(const CompressedRows<kHalves, kChannels>& rows, std::int64_t t,
                                  float* entry /* [dim] shared */, float* room) {
  const CompressParams& p = rows.p;
  const std::int64_t g = (rows.cached + t - rows.first_row) / p.ratio;
  const ChannelFold<kChannels> made = rows.fold(g, rows.end);
  float mean[kChannels];
  LATHE_UNROLL
  for (int i = 0; i < kChannels; ++i) {
    mean[i] = rows.channel + i < p.dim ? made.a[i] / made.s[i] : 0;
  }
  if (p.norm != nullptr) norm_entry(p, rows.channel, mean, room);
  store_channels(entry, rows.channel, p.dim, mean);
  sync_block();
  rotate_entry(p, g * p.ratio, entry);
  sync_block();
  if (p.hadamard && threadIdx.x < 32) warp_hadamard(entry, p.dim);
  sync_block();
  store_entry(p.pool, p.out_slots[t], entry, p.dim);
  sync_block();
}

/// Stores the states that a request's rows leave: where a slot's tokens end, and after each of the
/// last rows, where a state continues from the previous one.
template <int kHalves, int kChannels>
__device__ inline void store_states(const CompressedRows<kHalves, kChannels>& rows,
                                    std::int64_t request) {
  const CompressParams& p = rows.p;
  const std::int64_t last = rows.end - p.last_states;  // position of the first of the last rows
  ChannelFold<kChannels> state[kHalves];
  for (ChannelFold<kChannels>& fold : state) fold.clear();
  std::int64_t known = -1;  // tokens folded in `state`; -1: not computed yet
  for (std::int64_t end = rows.cached; end < rows.end;) {
    const std::int64_t place = end / p.state_tokens, slot_end = (place + 1) * p.state_tokens;
    const std::int64_t next = slot_end <= last ? slot_end : last + 1;
    end = next > end ? next : end + 1;
    if (known + 1 == end) {
      rows.go_on(state, known);
    } else {
      LATHE_UNROLL
      for (int h = 0; h < kHalves; ++h) state[h] = rows.fold(end / p.ratio + h, end);
    }
    known = end;
    const std::int32_t slot = p.state_table[request * p.state_width + place];
    if (slot < 0) continue;
    LATHE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      state[h].store(rows.state_at(slot, end - 1, h), rows.channel, p.dim);
    }
  }
}

/// What a block does for row blockIdx.x.
template <int kHalves, int kChannels>
__device__ inline void compress_row(const CompressParams& p, float* entry /* [dim] shared */,
                                    float* room) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t position = p.positions[t];
  if (position < 0) return;  // a padding row
  const std::int64_t request = p.row_request[t];
  CompressedRows<kHalves, kChannels> rows(p, request);
  // End of the positions where an entry may need the old state.
  const std::int64_t carried = (rows.cached / p.ratio + kHalves) * p.ratio;
  const std::int32_t before = p.state_before[request];
  if (t != rows.first_row) {
    const bool early = before >= 0 && position < carried;
    if (!early && p.out_slots[t] >= 0) emit_entry(rows, t, entry, room);
    return;
  }
  rows.load_state(before);
  std::int64_t last = before >= 0 && carried < rows.end ? carried : rows.end;
  if (before < 0) last = rows.cached + 1;
  for (std::int64_t at = position; at < last; ++at) {
    const std::int64_t row = t + at - position;
    if (p.out_slots[row] >= 0) emit_entry(rows, row, entry, room);
  }
  store_states(rows, request);
}

template <int kHalves, int kChannels>
static __global__ void __launch_bounds__(kCompressThreads, 2)
    compress_kernel(const __grid_constant__ CompressParams p) {
  alignas(16) __shared__ float entry[kChannels * kCompressThreads];
  __shared__ float room[kCompressThreads / 32];
  let_next_begin();
  wait_for_previous();
  compress_row<kHalves, kChannels>(p, entry, room);
}

/// Grid: rows x 2, the entries' blocks and then the keys'.
static __global__ void __launch_bounds__(kCompressThreads, 2)
    compress_pair_kernel(const __grid_constant__ CompressParams entries,
                         const __grid_constant__ CompressParams keys) {
  alignas(16) __shared__ float entry[2 * kCompressThreads];
  __shared__ float room[kCompressThreads / 32];
  let_next_begin();
  wait_for_previous();
  if (blockIdx.y == 0) {
    compress_row<2, 2>(entries, entry, room);
  } else {
    compress_row<2, 1>(keys, entry, room);
  }
}

}  // namespace lathe::cuda
