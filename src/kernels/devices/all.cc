#include "kernels/devices/all.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/register.h"
#include "kernels/cuda/register.h"
#include "kernels/host_communicator.h"
#include "kernels/ref/backend.h"
#include "kernels/ref/register.h"
#ifdef LATHE_HAS_CUDA
#include "kernels/cuda/backend.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
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

Result<std::unique_ptr<Backend>> make_backend(Device device, [[maybe_unused]] int gpu,
                                              [[maybe_unused]] Communicator* communicator) {
  if (device == Device::ref) return make_ref_backend();
  if (device == Device::cpu) return make_cpu_backend();
#ifdef LATHE_HAS_CUDA
  if (device == Device::sm90) {
    cuda::CudaBackendOptions options{.ordinal = gpu};
    if (communicator != nullptr) {
      options.communicator = dynamic_cast<cuda::CudaCommunicator*>(communicator);
      LATHE_CHECK(options.communicator != nullptr, "a communicator of make_communicators()");
    }
    return cuda::make_cuda_backend(options);
  }
#endif
  return Error{ErrorCode::unsupported, "--device",
               "a device that runs whole models: cpu, cuda (Hopper, in builds with CUDA) or ref",
               std::string(name(device)),
               "--device cpu; lathe plan --device plans attention for it"};
}

Result<std::vector<std::unique_ptr<Communicator>>> make_communicators(
    Device device, std::int32_t ranks, [[maybe_unused]] std::span<const int> gpus,
    [[maybe_unused]] bool nccl) {
  if (!is_gpu(device)) return make_host_communicators(ranks);
#ifdef LATHE_HAS_CUDA
  std::vector<int> all(gpus.begin(), gpus.end());
  for (int gpu = 0; gpus.empty() && gpu < ranks; ++gpu) all.push_back(gpu);
  LATHE_CHECK(std::ssize(all) == ranks, "a GPU for every rank");
  // A GPU's ranks meet once a step, for which each prepares for up to some 100 us.
  auto made = cuda::make_cuda_communicators(
      make_host_communicators(ranks, std::chrono::milliseconds(1)), all,
      nccl ? cuda::ExchangeKind::nccl : cuda::ExchangeKind::peer);
  if (!made) return made.error();
  std::vector<std::unique_ptr<Communicator>> out;
  for (auto& rank : *made) out.push_back(std::move(rank));
  return out;
#else
  return Error{ErrorCode::unsupported, "--device", "cpu, or a build that found a CUDA toolkit",
               std::string(name(device)), "put nvcc on PATH and configure again"};
#endif
}

}  // namespace lathe
