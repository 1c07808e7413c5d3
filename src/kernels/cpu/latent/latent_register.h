// Registers the CPU's latent kernels: cpu.<problem>.<kind> for dense_latent, sparse_latent and
// window_compressed, of kinds inplace, native and gather.
#pragma once

#include "plan/registry.h"

namespace lathe {

void register_cpu_latent_kernels(Registry& registry);

}  // namespace lathe
