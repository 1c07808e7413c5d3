// CudaBackend: whole models on one Hopper GPU.
//
// Operators go onto one stream and return at once; only upload(), download() and wait() wait. Lists
// of a step, which lie on the host, go through Staging. All of a step lies behind the step before
// on that stream, so that two can be in flight over the same tensors.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/backend.h"

namespace lathe::cuda {

/// Of GPU 0. `plain_products`: without the tensor cores' kernels, which are slow on the emulator.
/// Errors: those of open_device() (common/device.h), memory.
Result<std::unique_ptr<Backend>> make_cuda_backend(bool plain_products = false);

}  // namespace lathe::cuda
