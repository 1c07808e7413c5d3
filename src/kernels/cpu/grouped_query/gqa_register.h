// Registers the CPU's grouped-query kernels with the planner.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_cpu_gqa_kernels(Registry& registry);

}  // namespace lathe
