// Launching a kernel before the one ahead of it in its stream is done.
#pragma once

#include <cuda_runtime_api.h>

namespace lathe::cuda {

/// Of a kernel that calls wait_for_previous() before it reads or writes what the one ahead may
/// write.
inline cudaLaunchAttribute early_launch() {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return early;
}

}  // namespace lathe::cuda
