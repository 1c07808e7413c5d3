#include "kernels/cuda/common/device.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>

#include "kernels/cuda/common/cuda_error.h"

namespace lathe::cuda {
namespace {

constexpr int kCapability = 90;

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }

Error unfit(const char* field, std::string wanted, std::string offered, std::string hint) {
  return {ErrorCode::unsupported, field, std::move(wanted), std::move(offered), std::move(hint)};
}

}  // namespace

Result<void> check_device(const FoundDevice& found) {
  if (found.driver == 0) {
    return unfit("CUDA driver", fmt::format("one that serves CUDA {}", version(found.runtime)),
                 "none", "install NVIDIA's driver, or use --device cpu");
  }
  // An older driver runs a newer runtime of the same major version.
  if (found.driver / 1000 < found.runtime / 1000) {
    return unfit("CUDA driver",
                 fmt::format("one that serves CUDA {} or newer", version(found.runtime)),
                 fmt::format("one for CUDA {}", version(found.driver)),
                 "update the driver, or use --device cpu");
  }
  const auto counted = static_cast<cudaError_t>(found.counted);
  if (counted != cudaErrorNoDevice) {
    if (auto ok = call_result(counted, "cudaGetDeviceCount"); !ok) return ok;
  }
  if (found.count == 0) {
    return unfit("CUDA device", "a Hopper GPU (compute capability 9.0)", "no device",
                 "is it hidden by CUDA_VISIBLE_DEVICES? --device cpu needs none");
  }
  if (found.ordinal < 0 || found.ordinal >= found.count) {
    return Error{ErrorCode::out_of_range, "CUDA device", fmt::format("0 to {}", found.count - 1),
                 fmt::format("{}", found.ordinal), ""};
  }
  if (found.capability != kCapability) {
    return unfit(
        "CUDA device", "compute capability 9.0 (H100, H200)",
        fmt::format("{}.{} ({})", found.capability / 10, found.capability % 10, found.model),
        "use --device cpu");
  }
  return {};
}

Result<Device> open_device(int ordinal) {
  FoundDevice found;
  found.runtime = CUDART_VERSION;
  found.ordinal = ordinal;
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) found.driver = 0;
  cudaDeviceProp properties{};
  found.counted = cudaGetDeviceCount(&found.count);
  if (found.counted != cudaSuccess) {
    cudaGetLastError();  // check_device() reports it, and it must not surface at a launch
    found.count = 0;
  }
  if (ordinal >= 0 && ordinal < found.count) {
    const cudaError_t status = cudaGetDeviceProperties(&properties, ordinal);
    if (auto ok = call_result(status, "cudaGetDeviceProperties"); !ok) return ok.error();
    found.capability = properties.major * 10 + properties.minor;
    found.model = properties.name;
  }
  if (auto ok = check_device(found); !ok) return ok.error();
  if (auto ok = call_result(cudaSetDevice(ordinal), "cudaSetDevice"); !ok) return ok.error();
  return Device{.ordinal = ordinal,
                .model = found.model,
                .sms = properties.multiProcessorCount,
                .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                .block_shared_bytes = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin),
                .l2_bytes = properties.l2CacheSize};
}

Result<OnDevice> OnDevice::make(int ordinal) {
  int before = 0, major = 0;
  if (cudaGetDevice(&before) == cudaSuccess && cudaSetDevice(ordinal) == cudaSuccess) {
    OnDevice on(before);
    const cudaError_t status =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    if (status == cudaSuccess && major == kCapability / 10) return on;
  }
  cudaGetLastError();  // open_device() says what is wrong
  const auto opened = open_device(ordinal);
  return opened ? unfit("CUDA device", "one that answers", fmt::format("cuda:{}", ordinal), "")
                : opened.error();
}

OnDevice::~OnDevice() {
  if (before_ != kNone && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
}

Result<void> enable_peer_access(int peer) {
  constexpr int kKept = 64;
  static std::atomic<std::uint64_t> kept[kKept];  // by device, a bit per peer: enabled
  int device = 0;
  if (auto ok = call_result(cudaGetDevice(&device), "cudaGetDevice"); !ok) return ok;
  const bool keeps = device < kKept && peer < kKept;
  const std::uint64_t bit = keeps ? std::uint64_t{1} << peer : 0;
  if (keeps && (kept[device].load(std::memory_order_relaxed) & bit) != 0) return {};
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // by another library
  } else if (auto ok = call_result(status, "cudaDeviceEnablePeerAccess"); !ok) {
    return ok;
  }
  if (keeps) kept[device].fetch_or(bit, std::memory_order_relaxed);
  return {};
}

Result<int> count_sms() {
  constexpr int kKept = 64;
  static std::atomic<int> kept[kKept];  // by device; 0: not asked yet
  int device = 0, sms = 0;
  if (auto ok = call_result(cudaGetDevice(&device), "cudaGetDevice"); !ok) return ok.error();
  if (device < kKept) sms = kept[device].load(std::memory_order_relaxed);
  if (sms != 0) return sms;
  if (auto ok = call_result(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device),
                            "cudaDeviceGetAttribute");
      !ok) {
    return ok.error();
  }
  if (device < kKept) kept[device].store(sms, std::memory_order_relaxed);
  return sms;
}

}  // namespace lathe::cuda
