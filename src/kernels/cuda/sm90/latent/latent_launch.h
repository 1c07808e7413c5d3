// From the arguments of attention to the parameters of its kernels. Internal; counts have been checked.
#pragma once

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// All but the workspace.
LatentParams latent_params(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule);

}  // namespace lathe::cuda
