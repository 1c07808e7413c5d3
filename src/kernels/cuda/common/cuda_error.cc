#include "kernels/cuda/common/cuda_error.h"

#include <fmt/format.h>

#include <string_view>

namespace lathe::cuda {
namespace {

std::string spelled(cudaError_t status) {
  return fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
}

const char* hint(cudaError_t status) {
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "these kernels are built for compute capability 9.0";
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorInvalidValue:
      return "the launch itself was refused; this is a bug of the launch's geometry";
    case cudaErrorSystemNotReady:
      return "does nvidia-fabricmanager run, where GPUs are joined by switches?";
    case cudaErrorSystemDriverMismatch:
      return "the driver's library and its kernel module are of two versions; load the module "
             "again";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
      return "nothing can be allocated while a stream is captured; make one call of this size "
             "first";
    default:
      return "the status may come from an earlier launch; compute-sanitizer names the one at fault";
  }
}

}  // namespace

std::string place(const std::source_location& where) {
  const std::string_view path = where.file_name();
  return fmt::format("{}:{}", path.substr(path.find_last_of('/') + 1), where.line());
}

Result<void> launch_result(cudaError_t status, const Launch& launch) {
  if (status == cudaSuccess) return {};
  cudaGetLastError();  // reported here, so it must not surface at the next launch
  const bool no_code =
      status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction;
  return Error{no_code ? ErrorCode::unsupported : ErrorCode::device,
               fmt::format("kernel {} ({}) launched at {}", launch.kernel, launch.shape,
                           place(launch.where)),
               "success", spelled(status), hint(status)};
}

Result<void> call_result(cudaError_t status, const char* call, std::source_location where) {
  if (status == cudaSuccess) return {};
  cudaGetLastError();
  return Error{ErrorCode::device, fmt::format("{} at {}", call, place(where)), "success",
               spelled(status), hint(status)};
}

}  // namespace lathe::cuda
