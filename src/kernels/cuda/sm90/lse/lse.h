// Rewrites what an attention kernel gave as LSE by another convention (attn/lse_convention.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lathe::cuda {

struct ConvertLse {
  float* lse = nullptr;  // [rows, heads], rows lse_stride apart
  std::int64_t lse_stride = 0, rows = 0, heads = 0;
  bool base_2 = false, empty_plus_inf = false;
};

/// The bits of convert_lse() on the host.
cudaError_t launch_convert_lse(const ConvertLse& p, cudaStream_t stream);

}  // namespace lathe::cuda
