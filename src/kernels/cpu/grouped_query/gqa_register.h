// Registers the CPU kernels for grouped-query attention.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_cpu_gqa_kernels(Registry& registry);

}  // namespace lathe
