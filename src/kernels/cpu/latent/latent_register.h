// Registers the CPU's latent kernels: cpu.<problem>.<kind> for the dense, sparse and
// window_compressed problems, kinds inplace, native and gather.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_cpu_latent_kernels(Registry& registry);

}  // namespace lathe
