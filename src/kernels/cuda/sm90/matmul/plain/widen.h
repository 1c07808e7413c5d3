// Widens packed weights (pack/packed_weights.h) to bf16 in workspace for the bf16 GEMM. Used for
// experts in GPTQ's act order, which the grouped GEMM does not take.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"

namespace lathe::cuda {

/// out[i, r, c] = weight i's element [first_row + r, c], rounded to bf16; with columns in the order
/// of x.
struct WidenWeights {
  PlainWeight w = {};  // with groups
  std::int64_t first_row = 0, rows = 0;
  std::int64_t count = 1;  // number of weights
  bf16* out = nullptr;     // [count, rows, w.cols], aligned to 16 bytes
  // For experts, otherwise null: weight i without rows (offsets[i] == offsets[i + 1]) is skipped.
  const std::int32_t* offsets = nullptr;  // [count + 1]
};

/// Launches two kernels; the second does nothing, and starts when the first has ended: GEMMs read
/// their weights before the kernel that precedes them has ended (matmul.h).
cudaError_t launch_widen(const WidenWeights& p, cudaStream_t stream);

}  // namespace lathe::cuda
