// The kernel that an exchange with a norm replaces where the sum is another library's.
#pragma once

#include "kernels/cuda/sm90/exchange/exchange.h"

namespace lathe::cuda {

/// x += p.partial, h = RMS norm of x: sum_norm of a rank that is alone.
cudaError_t launch_add_norm(const SumParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
