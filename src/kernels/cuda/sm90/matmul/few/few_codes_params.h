// Parameters of a launch of the GEMM of e4m3 weights for few tokens: plain values.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/matmul/few/few_params.h"

namespace lathe::cuda {

inline constexpr int kFewCodesWarps = 16, kFewCodesStages = 3;
inline constexpr int kFewCodesStage = kFewRows * 128;  // bytes: a chunk of 16 rows
inline constexpr int kFewCodesTokensAt = kFewCodesWarps * kFewCodesStages * kFewCodesStage;

struct FewCodesParams {
  // As for the other kernels, in tiles of kFewRows weight rows.
  MatmulParams matmul;
  const std::uint8_t* codes[kMatmulWeights];  // if gated, of the first weight only
  std::int64_t row_bytes;
  std::int64_t eight_rows;  // bytes from a row of a unit to the one 8 later in wgmma's order
  const std::uint16_t* x;   // [m, k] bf16
  std::int64_t x_stride;    // elements
  std::int32_t x_row;       // shared memory: bytes from one token to the next
  std::int32_t segments;    // of K, each of which a warp multiplies
  std::int32_t sums_at;     // shared memory: sums of chunks, if there are several segments
};

struct FewCodesInstance {
  int blocks = 0;
  int shared_bytes = 0;
};

cudaError_t launch_few_codes(const FewCodesParams& p, const FewCodesInstance& instance,
                             cudaStream_t stream);

}  // namespace lathe::cuda
