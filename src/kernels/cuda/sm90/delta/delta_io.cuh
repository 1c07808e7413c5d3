// Delta-rule layers around the recurrence: the convolution for the chunked form, its last inputs,
// and the gated norm.
#pragma once

#include "kernels/cuda/sm90/delta/delta_rows.cuh"

namespace lathe::cuda {

inline constexpr int kFinishThreads = 128;

__device__ inline float4 load_input(const float* row, std::int64_t channel) {
  return row == nullptr ? float4{} : *reinterpret_cast<const float4*>(row + channel);
}

/// Writes the last inputs of the convolution to the states that the step leaves, for part `part` of
/// the channels. A thread has 4 channels, and reads their old inputs before it writes any.
__device__ inline void write_inputs(const DeltaParams& p, std::int64_t request, std::int64_t part) {
  const std::int64_t channel = (part * kFinishThreads + threadIdx.x) * 4;
  const DeltaRequest r = delta_request(p, request);
  if (channel >= p.channels || r.count == 0) return;
  constexpr int kKept = kDeltaTaps - 1;
  float4 old[kKept];
  LATHE_UNROLL
  for (int i = 0; i < kKept; ++i) old[i] = load_input(delta_input(p, r, i - kKept), channel);
  for (std::int64_t at = r.cached; at < r.end(); ++at) {
    at = next_left(p, r, at);
    float* const state = left_state(p, r, request, at);
    LATHE_UNROLL
    for (int i = 0; i < kKept && state != nullptr; ++i) {
      const std::int64_t t = at - r.cached - kKept + 1 + i;
      float4 v = {};
      if (t >= 0) v = load_input(delta_input(p, r, t), channel);
      LATHE_UNROLL
      for (int j = 0; j < kKept; ++j) {
        if (t == j - kKept) v = old[j];
      }
      float* const to = state + delta_matrix_size(p) + i * p.channels + channel;
      *reinterpret_cast<float4*>(to) = v;
    }
  }
}

/// The gated norm of out, in place. Block `block` has 4 heads of rows, a warp each. Precondition:
/// dv at most 128.
__device__ inline void norm_heads(const DeltaParams& p, std::int64_t block) {
  const std::int64_t item = block * (kFinishThreads / 32) + threadIdx.x / 32;
  const std::int64_t t = divide(item, p.heads), head = item - t * p.heads;
  if (t >= p.rows || p.positions[t] < 0) return;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  bf16* const out = p.out + t * p.out_stride + head * p.dv;
  const float* const gates = p.gate + t * p.gate_stride + head * p.dv;
  const int i = 4 * lane;
  const bool mine = i < p.dv;
  // All loads come before the first use, so that they overlap.
  float4 weight = {}, gate = {};
  uint2 words = {};
  if (mine) {
    gate = *reinterpret_cast<const float4*>(gates + i);
    weight = *reinterpret_cast<const float4*>(p.norm + i);
    words = *reinterpret_cast<const uint2*>(out + i);
  }
  const float o[4] = {bits_to_float(words.x << 16), bits_to_float(words.x & 0xffff0000u),
                      bits_to_float(words.y << 16), bits_to_float(words.y & 0xffff0000u)};
  float squares = sum_of_squares(o[0], o[1], o[2], o[3]);
  LATHE_UNROLL
  for (int d = 16; d > 0; d /= 2) squares += shuffle_xor(squares, d);
  if (!mine) return;
  const float factor = out_factor(p, squares);
  const float weights[4] = {weight.x, weight.y, weight.z, weight.w};
  const float g[4] = {gate.x, gate.y, gate.z, gate.w};
  float v[4];
  LATHE_UNROLL
  for (int c = 0; c < 4; ++c) {
    v[c] = o[c] * factor * weights[c] * delta_act(p, g[c]);
  }
  *reinterpret_cast<uint2*>(out + i) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
}

/// Grid: the blocks of norm_heads(), then those of write_inputs() for each request.
static __global__ void __launch_bounds__(kFinishThreads)
    delta_finish_kernel(const __grid_constant__ DeltaParams p) {
  let_next_begin();
  wait_for_previous();
  constexpr std::int64_t kWarps = kFinishThreads / 32;
  const std::int64_t of_norm = (p.rows * p.heads + kWarps - 1) / kWarps;
  if (blockIdx.x < of_norm) return norm_heads(p, blockIdx.x);
  const std::int64_t parts = (p.channels + 4 * kFinishThreads - 1) / (4 * kFinishThreads);
  const std::int64_t at = blockIdx.x - of_norm;
  write_inputs(p, at / parts, at % parts);
}

inline constexpr int kMixThreads = 128, kMixRows = 16, kMixAhead = 4;

__device__ inline float mix(const float4& taps, float a, float b, float c, float d) {
  return delta_silu(fmaf(taps.w, d, fmaf(taps.z, c, fmaf(taps.y, b, taps.x * a))));
}

/// Grid: 16 rows, 4 heads of q, k or v of 128 channels. A warp has a head, and a lane 4 channels.
static __global__ void __launch_bounds__(kMixThreads)
    delta_mix_kernel(const __grid_constant__ DeltaParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t part = std::int64_t{blockIdx.y} * (kMixThreads / 32) + threadIdx.x / 32;
  if (part * kDeltaWidth >= p.channels) return;
  const std::int64_t channel = part * kDeltaWidth + threadIdx.x % 32 * 4;
  float4 taps[4];  // of each channel
  LATHE_UNROLL
  for (int c = 0; c < 4; ++c) {
    taps[c] = *reinterpret_cast<const float4*>(p.conv + (channel + c) * kDeltaTaps);
  }
  const std::int64_t first = std::int64_t{blockIdx.x} * kMixRows;
  const std::int64_t end = first + kMixRows < p.rows ? first + kMixRows : p.rows;
  float4 a = {}, b = {}, c = {};  // the inputs before row t
  std::int64_t known = -1;        // their request
  float4 ahead[kMixAhead];        // inputs of the next rows
  for (std::int64_t t = first; t < end; ++t) {
    const std::int64_t at_once = (t - first) % kMixAhead;
    if (at_once == 0) {
      LATHE_UNROLL
      for (int i = 0; i < kMixAhead; ++i) {
        const std::int64_t row = t + i < end ? t + i : end - 1;
        ahead[i] = *reinterpret_cast<const float4*>(p.x + row * p.x_stride + channel);
      }
    }
    const float4 d = ahead[0];
    LATHE_UNROLL
    for (int i = 0; i + 1 < kMixAhead; ++i) ahead[i] = ahead[i + 1];
    if (p.positions[t] < 0) continue;
    const std::int64_t request = p.row_request[t];
    if (request != known) {
      const DeltaRequest r = delta_request(p, request);
      const std::int64_t at = t - r.first;
      a = load_input(delta_input(p, r, at - 3), channel);
      b = load_input(delta_input(p, r, at - 2), channel);
      c = load_input(delta_input(p, r, at - 1), channel);
      known = request;
    }
    float v[4] = {mix(taps[0], a.x, b.x, c.x, d.x), mix(taps[1], a.y, b.y, c.y, d.y),
                  mix(taps[2], a.z, b.z, c.z, d.z), mix(taps[3], a.w, b.w, c.w, d.w)};
    a = b, b = c, c = d;
    if (part < 2 * p.key_heads) {
      float squares = v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
      LATHE_UNROLL
      for (int i = 16; i > 0; i /= 2) squares += shuffle_xor(squares, i);
      const float scale = part < p.key_heads ? static_cast<float>(kDeltaWidth) : 1.f;
      const float factor = 1 / sqrtf((squares + 1e-6f) * scale);
      LATHE_UNROLL
      for (float& e : v) e *= factor;
    }
    *reinterpret_cast<uint2*>(p.mixed + t * p.channels + channel) = {pack_bf16(v[0], v[1]),
                                                                     pack_bf16(v[2], v[3])};
  }
}

}  // namespace lathe::cuda
