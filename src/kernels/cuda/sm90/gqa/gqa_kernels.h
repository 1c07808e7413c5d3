// Launches of grouped-query attention. Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// Fills p.schedule.
cudaError_t launch_gqa_schedule(const GqaParams& p, cudaStream_t stream);

/// Computes attention in bf16 by p.schedule, which must be launched before on the stream. head_dim:
/// of keys, one of kGqaHeadDims or kGqaWideKey. fp8: keys and values are e4m3, else bf16.
cudaError_t launch_gqa(const GqaParams& p, std::int32_t head_dim, bool fp8, cudaStream_t stream);

/// The same for latent rows of bf16. nope: of one of kGqaLatents.
cudaError_t launch_gqa_rows(const GqaParams& p, std::int32_t nope, cudaStream_t stream);

/// Combines partials, after one of the others on the stream.
cudaError_t launch_gqa_combine(const GqaParams& p, std::int32_t value_dim, cudaStream_t stream);

/// Instead of launch_gqa_combine() where requests share keys, after launch_gqa() of both calls.
cudaError_t launch_gqa_join(const GqaJoin& p, cudaStream_t stream);

}  // namespace lathe::cuda
