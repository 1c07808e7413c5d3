// The compressor of entries and of index keys that tokens share (kernels/compress.h): computes the
// entries of a step's tokens, writes them to the cache, and the folds that requests keep as state.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/result.h"
#include "kernels/cuda/sm90/codec/codec_params.h"
#include "kernels/entry_limits.h"
#include "layout/pages/pool_view.h"
#include "layout/rope/rope.h"

namespace lathe::cuda {

inline constexpr int kEntryTile = 64;  // columns with one exponent

/// Where entries are written. Runs: e4m3_f32 with one tile; or e4m3_ue8m0 in tiles of kEntryTile or
/// bf16, and then bf16. All accesses to four columns are aligned.
struct EntryPool {
  PagesParams pages;
  RunParams runs[2];
  std::int64_t pad_start = 0;
  std::uint32_t pad_step = 0;
  std::int32_t pad_bytes = 0;
};

/// Errors: `pool` is not one, or has a layout that planners do not choose for entries.
Result<EntryPool> entry_pool(const PoolView& pool);

struct CompressParams {
  const float* kv = nullptr;    // [rows, halves * dim]
  const float* gate = nullptr;  // [rows, halves * dim]
  std::int64_t kv_stride = 0, gate_stride = 0;
  const float* position_bias = nullptr;  // [ratio, halves * dim]
  const float* norm = nullptr;           // [dim], or null
  float norm_eps = 0;
  const float* table = nullptr;  // [positions, rope]: cosines, then sines
  std::int32_t rope = 0;
  RopePairing pairing = RopePairing::interleaved;
  bool hadamard = false;
  std::int32_t ratio = 0, halves = 1, dim = 0;  // dim: see launch_compress()
  // From the step (step/step.h).
  const std::int32_t* positions = nullptr;     // [rows]
  const std::int32_t* row_request = nullptr;   // [rows]
  const std::int32_t* q_indptr = nullptr;      // [requests + 1]
  const std::int32_t* kv_lens = nullptr;       // [requests]
  const std::int32_t* out_slots = nullptr;     // [rows]
  const std::int32_t* state_before = nullptr;  // [requests]
  const std::int32_t* state_table = nullptr;   // [requests, state_width]
  std::int64_t state_width = 0, state_tokens = 0;
  // [slots, state_banks] of state_stride floats each (layout/pages/state_pool.h).
  float* state = nullptr;
  std::int64_t state_stride = 0, state_banks = 1;
  std::int64_t last_states = 1;  // number of a request's last rows that leave a state each
  std::int64_t rows = 0;
  EntryPool pool;
};

/// dim: up to 256; or even and up to kCompressMostDim, with rows, biases and states
/// aligned to 8 bytes.
cudaError_t launch_compress(const CompressParams& p, cudaStream_t stream);
/// Whether launch_compress_pair() takes them: entries wider than 256 and narrower index keys of the
/// same rows.
bool compress_pairs(const CompressParams& entries, const CompressParams& keys);
/// Both in one kernel, as they are independent.
cudaError_t launch_compress_pair(const CompressParams& entries, const CompressParams& keys,
                                 cudaStream_t stream);

}  // namespace lathe::cuda
