// Registers the CPU's `ragged` kernels, which expand latents to per-head keys and values.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_cpu_ragged_kernels(Registry& registry);

}  // namespace lathe
