// The Hopper kernels (kernels/cuda/sm90) as the planner knows them: sm90.<problem>.<kind>.
#pragma once

#include "plan/registry.h"

namespace lathe {

/// In every build, so that a plan for a Hopper GPU can be made on any machine. Entries are there
/// only where the build has CUDA; without it the kernels are described, not runnable.
void register_sm90_kernels(Registry& registry);

}  // namespace lathe
