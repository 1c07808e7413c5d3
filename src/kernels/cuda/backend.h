// CudaBackend: whole models on one Hopper GPU, or a rank of a group of GPUs.
//
// Operators are launched on one stream and return at once; only upload(), download() and wait()
// block. A step's lists are on the host and reach the device through Staging. The stream runs steps
// one after the other, so two can be in flight over the same tensors.
#pragma once

#include <memory>

#include "base/result.h"
#include "kernels/backend.h"

namespace lathe::cuda {

class CudaCommunicator;

struct CudaBackendOptions {
  int ordinal = 0;  // the GPU
  // Of the rank, on the same GPU; it must outlive the backend. Null: there is one rank.
  CudaCommunicator* communicator = nullptr;
  // GEMMs without tensor cores, for tests on the emulator, where tensor core kernels are slow.
  bool plain_products = false;
};

/// Makes the GPU the calling thread's current device. All calls of the backend, and of arenas in
/// its memory, must come from threads where it is current. Errors: as open_device()
/// (common/device.h); out of memory.
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaBackendOptions& options = {});

}  // namespace lathe::cuda
