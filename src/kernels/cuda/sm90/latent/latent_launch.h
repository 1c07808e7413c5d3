// From the arguments of attention to the parameters of its kernels. Internal; counts have been checked.
#pragma once

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// All but the workspace: of all units, with the first list.
LatentParams latent_params(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule);
/// Of those whose shares are cut.all, and of the last ones, whose shares are cut.tail.
LatentParams first_units(const LatentParams& p, const LatentSchedule& schedule);
LatentParams last_units(const LatentParams& p, const LatentSchedule& schedule);

}  // namespace lathe::cuda
