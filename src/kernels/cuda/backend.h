// CudaBackend: whole models on one Hopper GPU.
//
// Operators go onto one stream and return at once; nothing waits but upload(), download() and
// wait(). What lies on the host, such as the lists of a step, goes through Staging.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/backend.h"

namespace lathe::cuda {

/// Of GPU 0. `plain_products`: without the tensor cores' kernels, which an emulator takes long for.
/// Errors: those of open_device() (common/device.h), memory.
Result<std::unique_ptr<Backend>> make_cuda_backend(bool plain_products = false);

}  // namespace lathe::cuda
