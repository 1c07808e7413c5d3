// Makes the parameters of latent attention's kernels from a call's arguments. Internal; counts have
// been checked.
#pragma once

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// All but the workspace: of all work tiles, with the first list.
LatentParams latent_params(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule);
/// Where schedule.cut.shared.
LatentSharing latent_sharing(const LatentSchedule& schedule);
/// Of the work tiles of cut.all, and of cut.tail. q: the type of queries.
LatentParams first_work_tiles(const LatentParams& p, const LatentSchedule& schedule);
LatentParams last_work_tiles(const LatentParams& p, const LatentSchedule& schedule, DType q);

}  // namespace lathe::cuda
