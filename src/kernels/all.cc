#include "kernels/all.h"

#include "kernels/cpu/register.h"
#include "kernels/ref/register.h"
#include "kernels/sm90.h"

namespace lathe {

Registry all_kernels() {
  Registry registry;
  add_adapters(registry);
  register_cpu_kernels(registry);
  register_ref_kernels(registry);
  register_sm90_kernels(registry);
  return registry;
}

}  // namespace lathe
