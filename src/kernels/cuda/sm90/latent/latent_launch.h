// Makes kernel parameters of latent attention from a call's arguments. Internal; array sizes must
// have been checked.
#pragma once

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// For all work tiles, with the first list; without the workspace.
LatentParams latent_params(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule);
/// Requires schedule.cut.shared.
LatentSharing latent_sharing(const LatentSchedule& schedule);
/// Parameters for the work tiles of cut.all, and of cut.tail. q: dtype of queries.
LatentParams first_work_tiles(const LatentParams& p, const LatentSchedule& schedule);
LatentParams last_work_tiles(const LatentParams& p, const LatentSchedule& schedule, DType q);

}  // namespace lathe::cuda
