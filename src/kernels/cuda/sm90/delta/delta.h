// Kernels of delta-rule layers (kernels/delta_rule.h): parameters and launches.
//
// One row of each request: launch_delta_decode(), if it takes the heads. Few rows:
// launch_delta_rows(), then launch_delta_finish(). Many rows: launch_delta_mix(),
// launch_delta_chunks(), launch_delta_scan(), then launch_delta_finish(). The last one writes
// inputs of the convolution where others read those before the step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/float_formats.h"

namespace lathe::cuda {

inline constexpr int kDeltaTaps = 4;        // of the convolution
inline constexpr int kDeltaMostKeys = 128;  // largest dk of launch_delta_rows()
inline constexpr int kDeltaChunkRows = 64;
inline constexpr int kDeltaWidth = 128;  // dk and dv of the chunked form

struct DeltaParams {
  std::int32_t heads = 0, key_heads = 0, dk = 0, dv = 0;
  bool per_channel = false;  // decay, else per head
  bool bounded = false;      // gate, else softplus
  float gate_bound = 0;
  bool sigmoid_out = false;  // output gate, else silu
  std::int64_t channels = 0, gate_cols = 0;
  const float* x = nullptr;  // [rows, channels]
  std::int64_t x_stride = 0;
  const float* decay = nullptr;  // [rows, gate_cols]
  std::int64_t decay_stride = 0;
  const float* beta = nullptr;  // [rows, heads]
  std::int64_t beta_stride = 0;
  const float* gate = nullptr;  // [rows, heads * dv]
  std::int64_t gate_stride = 0;
  const float* conv = nullptr;     // [channels, kDeltaTaps]
  const float* a_log = nullptr;    // [heads]
  const float* dt_bias = nullptr;  // [gate_cols]
  const float* norm = nullptr;     // [dv]
  float norm_eps = 0;
  bf16* out = nullptr;  // [rows, heads * dv]
  std::int64_t out_stride = 0;
  // From the step (step/step.h).
  const std::int32_t* positions = nullptr;     // [rows]
  const std::int32_t* row_request = nullptr;   // [rows]
  const std::int32_t* q_indptr = nullptr;      // [requests + 1]
  const std::int32_t* kv_lens = nullptr;       // [requests]
  const std::int32_t* state_before = nullptr;  // [requests]
  const std::int32_t* state_table = nullptr;   // [requests, state_width]
  std::int64_t state_width = 0, state_tokens = 0;
  // [slots, state_banks] of state_stride floats each (layout/pages/state_pool.h).
  float* state = nullptr;
  std::int64_t state_stride = 0, state_banks = 1;
  std::int64_t last_states = 1;  // number of a request's last rows that leave a state each
  std::int64_t rows = 0, requests = 0;
  bool single = false;  // a decode step: no request has more than one row, also when replayed
  // Scratch of the chunked form. A request's chunks have consecutive numbers (delta_rows.cuh).
  std::int64_t chunks = 0;  // rows / 64 + 2 requests
  bf16* mixed = nullptr;    // [rows, channels]: normed q and k, and v, after the convolution
  // Tiles of 64 rows for each chunk and head, each row with 8 elements of padding.
  bf16* w = nullptr;       // [64, 128]: what V' subtracts per element of S
  bf16* u = nullptr;       // 4 of [64, 32]: V' of an empty S
  bf16* scores = nullptr;  // [64, 64]: q k^T with decay; not set above the blocks on the diagonal
  bf16* q = nullptr;       // [64, 128], of key heads; KDA: faded since the chunk began
  bf16* k = nullptr;       // [64, 128], of key heads; KDA: faded until the chunk ends
  float* row_fades =
      nullptr;  // [chunks, heads, 2, 64]: e^G, and e^(G_last - G), of rows; KDA: none
  float* last_fades = nullptr;  // [chunks, heads, 128]: e^G_last per channel; KDA only
};

/// Most requests of launch_delta_decode(). With more, blocks that wait for each other cost more
/// than a launch.
inline constexpr std::int64_t kDeltaDecodeRequests = 16;

/// Whether launch_delta_decode() runs the step: one row of each of few requests, heads of 128, and
/// at most two value heads of each key head.
constexpr bool decodes_in_one_launch(const DeltaParams& p) {
  return p.single && p.requests <= kDeltaDecodeRequests && p.dk == kDeltaWidth &&
         p.dv == kDeltaWidth && p.heads <= 2 * p.key_heads;
}
/// The recurrence, the gated norm, and the last inputs of the convolution.
cudaError_t launch_delta_decode(const DeltaParams& p, cudaStream_t stream);
/// Runs the recurrence row by row over tiles of 32 columns; out is not normed yet. Preconditions:
/// dk at most kDeltaMostKeys; dk and dv multiples of 16.
cudaError_t launch_delta_rows(const DeltaParams& p, cudaStream_t stream);
/// The gated norm of out, in place; and writes the last inputs of the convolution to the states
/// that the step leaves.
cudaError_t launch_delta_finish(const DeltaParams& p, cudaStream_t stream);

// The chunked form. Preconditions: dk and dv are kDeltaWidth; state_tokens is a multiple of
// kDeltaChunkRows; last_states is 1.

/// Convolution, SiLU and norms of q and k.
cudaError_t launch_delta_mix(const DeltaParams& p, cudaStream_t stream);
/// What does not depend on S, for all chunks at once.
cudaError_t launch_delta_chunks(const DeltaParams& p, cudaStream_t stream);
/// Runs each request's chunks one after another; out is not normed yet.
cudaError_t launch_delta_scan(const DeltaParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
