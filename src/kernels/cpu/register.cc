#include "kernels/cpu/register.h"

#include "kernels/cpu/grouped_query/gqa_register.h"
#include "kernels/cpu/latent/latent_register.h"
#include "kernels/cpu/ragged/ragged_register.h"

namespace lathe {

void register_cpu_kernels(Registry& registry) {
  register_cpu_latent_kernels(registry);
  register_cpu_gqa_kernels(registry);
  register_cpu_ragged_kernels(registry);
}

}  // namespace lathe
