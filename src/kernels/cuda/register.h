// Describes the Hopper kernels (kernels/cuda/sm90) to the planner: sm90.<problem>.<kind>.
#pragma once

#include "plan/registry.h"

namespace lathe {

/// Part of every build, so that any machine can plan for a Hopper GPU. Without CUDA the kernels are
/// described but have no entry points.
void register_sm90_kernels(Registry& registry);

}  // namespace lathe
