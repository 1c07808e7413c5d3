// Launches a kernel from a .cu file. With nvcc it launches on the GPU. An ordinary compiler, which
// builds the same file for tests without a GPU, queues the kernel's emulation (emulator.h) on a
// stream of the fake runtime (fake/fake_cuda.h). Only .cu files, and files that only .cu files
// include, may include it.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/common/shared_limit.h"
#ifndef __CUDACC__
#include "kernels/cuda/fake/fake_cuda.h"
#endif

namespace lathe::cuda {

struct LaunchShape {
  dim3 grid = 1;                  // blocks
  dim3 block = 1;                 // threads
  std::int32_t shared_bytes = 0;  // dynamic; above 48 KiB it needs allow_shared()
  int cluster = 1;                // blocks along x
  // The kernel may begin before the previous one on the stream has finished. It must call
  // wait_for_previous() before it reads or writes anything that kernel may write.
  bool early = false;
};

template <class... Params>
cudaError_t launch_kernel(void (*kernel)(Params...), const LaunchShape& shape, cudaStream_t stream,
                          const std::type_identity_t<Params>&... args) {
#ifdef __CUDACC__
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    ++count;
  }
  if (shape.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, args...);
#else
  const auto index = [](const dim3& d) { return Index3{d.x, d.y, d.z}; };
  return fake::launch(shape.grid, shape.block, shape.shared_bytes, stream, [=] {
    emulate_blocks(shape.cluster, index(shape.grid), index(shape.block), kernel, args...);
  });
#endif
}

/// Thread blocks for `count` things, per_block in each.
inline unsigned blocks_for(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace lathe::cuda
