#include "kernels/devices/all.h"

#include <string>

#include "kernels/cpu/backend.h"
#include "kernels/cpu/register.h"
#include "kernels/cuda/register.h"
#include "kernels/ref/backend.h"
#include "kernels/ref/register.h"
#ifdef LATHE_HAS_CUDA
#include "kernels/cuda/backend.h"
#endif

namespace lathe {

namespace {

void add_kernels(Registry& registry) {
  register_cpu_kernels(registry);
  register_ref_kernels(registry);
  register_sm90_kernels(registry);
}

}  // namespace

Registry all_kernels() {
  Registry registry;
  add_adapters(registry);
  add_kernels(registry);
  return registry;
}

Registry model_kernels(Device device) {
  Registry registry;
  is_gpu(device) ? add_gpu_model_adapters(registry) : add_adapters(registry);
  add_kernels(registry);
  return registry;
}

Result<std::unique_ptr<Backend>> make_backend(Device device) {
  if (device == Device::ref) return make_ref_backend();
  if (device == Device::cpu) return make_cpu_backend();
#ifdef LATHE_HAS_CUDA
  if (device == Device::sm90) return cuda::make_cuda_backend();
#endif
  return Error{ErrorCode::unsupported, "--device",
               "a device that runs whole models: cpu, cuda (Hopper, in builds with CUDA) or ref",
               std::string(name(device)),
               "--device cpu; lathe plan --device plans attention for it"};
}

}  // namespace lathe
