// Decides which pages of a prefill are staged, and places their arrays. Internal.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/latent/stage/stage.h"

namespace lathe::cuda {

/// Whether staging, as in the cut, costs less than it saves.
bool stage_pays(const LatentShape& shape, const LatentCut& cut);

/// The arrays of a cut that stages; they are in the workspace after the partials.
struct LatentStaging {
  LatentStageArrays arrays;
  std::span<std::byte> zeros;  // to be zeroed before the launches
  bool may_overflow = false;

  LatentStaging(const LatentCut& cut, std::byte* workspace);
  /// p for the staged rows.
  LatentParams rows_of(const LatentParams& p, const LatentCut& cut) const;
};

/// Errors: pools that differ from the ones that the cut stages.
Result<void> check_staged(const AttendArgs& args, const LatentCut& cut);

}  // namespace lathe::cuda
