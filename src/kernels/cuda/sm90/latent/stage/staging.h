// Which pages of an extend's lists are decoded first, and where. Internal.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/latent/stage/stage.h"

namespace lathe::cuda {

/// Whether decoding the pages that lists name, as a cut that stages has it, takes less time than it saves.
bool stage_pays(const LatentShape& shape, const LatentCut& cut);

/// The arrays of a cut that stages, in the workspace behind parts.
struct LatentStaging {
  LatentStageArrays arrays;
  std::span<std::byte> zeros;  // what must be 0
  bool may_overflow = false;

  LatentStaging(const LatentCut& cut, std::byte* workspace);
  /// p for the staged rows.
  LatentParams rows_of(const LatentParams& p, const LatentCut& cut) const;
};

/// Errors: pools that aren't those of a cut that stages them.
Result<void> check_staged(const AttendArgs& args, const LatentCut& cut);

}  // namespace lathe::cuda
