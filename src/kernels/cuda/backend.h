// CudaBackend: whole models on one Hopper GPU.
//
// Operators are launched on one stream and return at once; only upload(), download() and wait()
// block. A step's lists are on the host and reach the device through Staging. The stream runs steps
// one after the other, so two can be in flight over the same tensors.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/backend.h"

namespace lathe::cuda {

/// Uses GPU 0. `plain_products`: GEMMs without tensor cores, for tests on the emulator, where
/// tensor core kernels are slow. Errors: as open_device() (common/device.h); out of memory.
Result<std::unique_ptr<Backend>> make_cuda_backend(bool plain_products = false);

}  // namespace lathe::cuda
