// Registers the oracle's kernels (double precision) with the planner, for every problem and kind.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_ref_kernels(Registry& registry);

}  // namespace lathe
