// Registers the kernels of the CPU device.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_cpu_kernels(Registry& registry);

}  // namespace lathe
