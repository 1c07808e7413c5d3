// What the delta-rule kernels share: a request's rows, chunks and states, and the gates.
#pragma once

#include <cmath>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/delta/delta.h"

namespace lathe::cuda {

__device__ inline float delta_sigmoid(float v) { return 1 / (1 + expf(-v)); }
__device__ inline float delta_silu(float v) { return v * delta_sigmoid(v); }

/// A request's rows in the step.
struct DeltaRequest {
  std::int64_t first = 0, count = 0;  // rows; none: padding
  std::int64_t cached = 0;            // position of the first row
  const float* before = nullptr;      // the state before the step; null: none yet

  __device__ std::int64_t end() const { return cached + count; }
};

/// Positions and their divisors fit in 32 bits, which divide faster.
__device__ inline std::int64_t divide(std::int64_t position, std::int64_t by) {
  return static_cast<std::uint32_t>(position) / static_cast<std::uint32_t>(by);
}
__device__ inline float* delta_state(const DeltaParams& p, std::int32_t slot,
                                     std::int64_t position) {
  const std::int64_t bank = position - divide(position, p.state_banks) * p.state_banks;
  return p.state + (slot * p.state_banks + bank) * p.state_stride;
}

__device__ inline DeltaRequest delta_request(const DeltaParams& p, std::int64_t request) {
  // All loads come before the first use, so that they overlap.
  const std::int32_t end = p.kv_lens[request], slot = p.state_before[request];
  const std::int32_t first = p.q_indptr[request], last = p.q_indptr[request + 1];
  DeltaRequest r;
  if (end == 0) return r;
  r.first = first;
  r.count = last - first;
  r.cached = end - r.count;
  if (slot >= 0) r.before = delta_state(p, slot, r.cached - 1);
  return r;
}

/// The first position from `at` on that leaves a state. Precondition: at < r.end().
__device__ inline std::int64_t next_left(const DeltaParams& p, const DeltaRequest& r,
                                         std::int64_t at) {
  const std::int64_t slot_end = (divide(at, p.state_tokens) + 1) * p.state_tokens - 1;
  const std::int64_t last = r.end() - p.last_states;
  const std::int64_t of_last = at > last ? at : last;
  return slot_end < of_last ? slot_end : of_last;
}
/// Where the row at `position` leaves the request's state; null: nowhere.
__device__ inline float* left_state(const DeltaParams& p, const DeltaRequest& r,
                                    std::int64_t request, std::int64_t position) {
  if (next_left(p, r, position) != position) return nullptr;
  const std::int32_t slot =
      p.state_table[request * p.state_width + divide(position, p.state_tokens)];
  return slot < 0 ? nullptr : delta_state(p, slot, position);
}

__device__ inline std::int64_t delta_matrix_size(const DeltaParams& p) {
  return std::int64_t{p.heads} * p.dk * p.dv;
}
/// The request's row t of x; t < 0: an input before the step, or null, which means 0.
__device__ inline const float* delta_input(const DeltaParams& p, const DeltaRequest& r,
                                           std::int64_t t) {
  if (t >= 0) return p.x + (r.first + t) * p.x_stride;
  if (r.before == nullptr) return nullptr;
  return r.before + delta_matrix_size(p) + (kDeltaTaps - 1 + t) * p.channels;
}
/// g, the log of a fade, of x = f + dt_bias; a = exp(a_log).
__device__ inline float delta_gate(const DeltaParams& p, float x, float a) {
  if (p.bounded) return p.gate_bound * delta_sigmoid(a * x);
  return -a * (x > 20 ? x : log1pf(expf(x)));
}

/// The output gate's activation.
__device__ inline float delta_act(const DeltaParams& p, float g) {
  return p.sigmoid_out ? delta_sigmoid(g) : delta_silu(g);
}
/// In the same order in every kernel.
__device__ inline float sum_of_squares(float a, float b, float c, float d) {
  return fmaf(d, d, fmaf(c, c, fmaf(a, a, b * b)));
}
/// What the output norm multiplies a head's outputs by, given the sum of their squares.
__device__ inline float out_factor(const DeltaParams& p, float squares) {
  return 1 / sqrtf(squares / static_cast<float>(p.dv) + p.norm_eps);
}

/// A chunk: rows of a request at 64 consecutive positions, from a multiple of 64 on. Rows before
/// the request's first one in the step and after its last one have beta 0 and g 0, so they change
/// nothing, whatever their (finite) q, k and v. Request r's chunks are
/// numbered from q_indptr[r] / 64 + 2 r on, which leaves room for all of them.
struct DeltaChunkRows {
  DeltaRequest request;
  std::int64_t number = 0;    // in the step
  std::int64_t position = 0;  // of the chunk's first row
  bool exists = false;

  /// The row of the step of row i, or -1.
  __device__ std::int64_t row(int i) const {
    const std::int64_t t = position + i - request.cached;
    return t < 0 || t >= request.count ? -1 : request.first + t;
  }
  /// The row of the step of row i, or the nearest one of the request.
  __device__ std::int64_t near_row(int i) const {
    const std::int64_t t = position + i - request.cached;
    return request.first + (t < 0 ? 0 : t >= request.count ? request.count - 1 : t);
  }
};
__device__ inline std::int64_t first_chunk(const DeltaParams& p, std::int64_t request) {
  return p.q_indptr[request] / kDeltaChunkRows + 2 * request;
}
__device__ inline std::int64_t count_chunks(const DeltaRequest& r) {
  if (r.count == 0) return 0;
  return (r.end() - 1) / kDeltaChunkRows - r.cached / kDeltaChunkRows + 1;
}
__device__ inline DeltaChunkRows chunk_of(const DeltaParams& p, std::int64_t number) {
  std::int64_t low = 0, high = p.requests;  // the request is in [low, high)
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (first_chunk(p, middle) <= number ? low : high) = middle;
  }
  DeltaChunkRows c;
  c.request = delta_request(p, low);
  c.number = number;
  const std::int64_t at = number - first_chunk(p, low);
  c.exists = at < count_chunks(c.request);
  c.position = (c.request.cached / kDeltaChunkRows + at) * kDeltaChunkRows;
  return c;
}

}  // namespace lathe::cuda
