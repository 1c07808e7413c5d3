// Plans launches of the grouped GEMM for few tokens: host arithmetic, tested without a GPU.
#pragma once

#include <span>

#include "kernels/cuda/sm90/matmul/few/few_kernels.h"
#include "kernels/cuda/sm90/matmul/matmul.h"

namespace lathe::cuda {

/// Most tokens of a group, on average, for which the kernel is faster than wgmma's.
inline constexpr std::int64_t kFewMean = 8;

/// Fewest columns of the weights. For shorter rows a warp finds its next unit too often; these have
/// not been timed.
inline constexpr std::int64_t kFewLeastColumns = 1536;

/// Whether the kernel is to compute a call that grouped_matmul_takes() accepts: experts with few
/// tokens each and packed weights.
bool few_takes(const GroupedMatmulCall& call);

/// As above, for calls that matmul_on_device() accepts with K in `split` parts: only one call, and
/// only with one part.
bool few_takes(std::span<const MatmulCall> calls, int split);

FewParams make_few_params(const GroupedMatmulCall& call, int sms);
FewParams make_few_params(const MatmulCall& call, int sms);

cudaError_t launch_few(const GroupedMatmulCall& call, int sms, cudaStream_t stream);
cudaError_t launch_few(const MatmulCall& call, int sms, cudaStream_t stream);

}  // namespace lathe::cuda
