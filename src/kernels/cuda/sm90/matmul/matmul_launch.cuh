// Launches an instance of the product kernel.
#pragma once

#include "kernels/cuda/common/early_launch.h"
#include "kernels/cuda/common/shared_limit.h"
#include "kernels/cuda/sm90/matmul/matmul.cuh"
#include "kernels/cuda/sm90/matmul/matmul_kernels.h"

namespace lathe::cuda {

template <class Format, int kTokens, MatmulCluster kCluster>
cudaError_t launch_matmul_tile(const MatmulParams& p, const MatmulMaps& maps, int clusters,
                               cudaStream_t stream) {
  using T = MatmulTile<Format, kTokens, kCluster>;
  constexpr auto kernel = matmul_kernel<T>;
  const cudaError_t status = allow_shared<kernel>(T::kSharedBytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[2] = {early_launch()};
  const auto blocks = static_cast<unsigned>(T::kPair ? 2 : p.split);
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(clusters) * blocks);
  config.blockDim = dim3(T::kThreads);
  config.dynamicSmemBytes = T::kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = blocks > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, p, maps);
}

template <class Format>
cudaError_t launch_grouped_matmul(const MatmulParams& p, const MatmulMaps& maps,
                                  const MatmulInstance& instance, cudaStream_t stream) {
  constexpr auto kNone = MatmulCluster::none;
  const int blocks = instance.clusters;
  if (instance.tokens == 8) return launch_matmul_tile<Format, 8, kNone>(p, maps, blocks, stream);
  if (instance.tokens == 16) return launch_matmul_tile<Format, 16, kNone>(p, maps, blocks, stream);
  if (instance.tokens == 32) return launch_matmul_tile<Format, 32, kNone>(p, maps, blocks, stream);
  return launch_matmul_tile<Format, 128, kNone>(p, maps, blocks, stream);
}

/// kPairTokens: of a pair's tile, at most.
template <class Format, int kPairTokens>
cudaError_t launch_matmul(const MatmulParams& p, const MatmulMaps& maps,
                          const MatmulInstance& instance, cudaStream_t stream) {
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  const int clusters = instance.clusters;
  if (instance.pair) {
    if constexpr (kPairTokens == 256) {
      if (instance.tokens == 256) {
        return launch_matmul_tile<Format, 256, kPair>(p, maps, clusters, stream);
      }
    }
    return launch_matmul_tile<Format, 128, kPair>(p, maps, clusters, stream);
  }
  switch (instance.tokens) {
    case 8:
      return launch_matmul_tile<Format, 8, kParts>(p, maps, clusters, stream);
    case 16:
      return launch_matmul_tile<Format, 16, kParts>(p, maps, clusters, stream);
    case 32:
      return launch_matmul_tile<Format, 32, kParts>(p, maps, clusters, stream);
    case 64:
      return launch_matmul_tile<Format, 64, kParts>(p, maps, clusters, stream);
    default:
      return launch_matmul_tile<Format, 128, kParts>(p, maps, clusters, stream);
  }
}

}  // namespace lathe::cuda
