#include "kernels/all.h"

#include <string>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/register.h"
#include "kernels/ref/backend.h"
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

Result<std::unique_ptr<Backend>> make_backend(Device device) {
  if (device == Device::ref) return make_ref_backend();
  if (device == Device::cpu) return make_cpu_backend();
  return Error{ErrorCode::unsupported, "--device", "cpu or ref, which run whole models",
               std::string(name(device)),
               "--device cpu; lathe plan --device plans attention for it"};
}

}  // namespace lathe
