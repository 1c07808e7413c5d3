// Launches an instance of the matmul kernel.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/matmul/matmul.cuh"
#include "kernels/cuda/sm90/matmul/matmul_kernels.h"

namespace lathe::cuda {

template <class Format, int kTokens, MatmulCluster kCluster, bool kGroups = false>
cudaError_t launch_matmul_tile(const MatmulParams& p, const MatmulMaps& maps, int clusters,
                               cudaStream_t stream) {
  using T = MatmulTile<Format, kTokens, kCluster, kGroups>;
  constexpr auto kernel = matmul_kernel<T>;
  const cudaError_t status = allow_shared<kernel>(T::kSharedBytes);
  if (status != cudaSuccess) return status;
  const int blocks = T::kPair ? T::kPairBlocks : p.split;
  return launch_kernel(kernel,
                       {.grid = static_cast<unsigned>(clusters * blocks),
                        .block = T::kThreads,
                        .shared_bytes = T::kSharedBytes,
                        .cluster = blocks,
                        .early = true},
                       stream, p, maps);
}

/// kPairTokens: most tokens of a pair's tile.
template <class Format, int kPairTokens>
cudaError_t launch_grouped_matmul(const MatmulParams& p, const MatmulMaps& maps,
                                  const MatmulInstance& instance, cudaStream_t stream) {
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  const int clusters = instance.clusters;
  switch (instance.tokens) {
    case 8:
      return launch_matmul_tile<Format, 8, kParts, true>(p, maps, clusters, stream);
    case 16:
      return launch_matmul_tile<Format, 16, kParts, true>(p, maps, clusters, stream);
    case 32:
      return launch_matmul_tile<Format, 32, kParts, true>(p, maps, clusters, stream);
    case 128:
      if (!instance.pair) {
        return launch_matmul_tile<Format, 128, kParts, true>(p, maps, clusters, stream);
      }
      return launch_matmul_tile<Format, 128, kPair, true>(p, maps, clusters, stream);
    default:
      return launch_matmul_tile<Format, kPairTokens, kPair, true>(p, maps, clusters, stream);
  }
}

/// Of 128 tokens a tile.
template <class Format>
cudaError_t launch_quad(const MatmulParams& p, const MatmulMaps& maps,
                        const MatmulInstance& instance, cudaStream_t stream) {
  const int clusters = instance.clusters;
  if (!instance.spread) {
    return launch_matmul_tile<Format, 128, MatmulCluster::quad>(p, maps, clusters, stream);
  }
  return launch_matmul_tile<Format, 128, MatmulCluster::quad_spread>(p, maps, clusters, stream);
}

template <class Format, int kPairTokens>
cudaError_t launch_matmul(const MatmulParams& p, const MatmulMaps& maps,
                          const MatmulInstance& instance, cudaStream_t stream) {
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  const int clusters = instance.clusters;
  if (instance.pair) {
    if constexpr (kPairTokens == 256) {
      if (instance.quad) return launch_quad<Format>(p, maps, instance, stream);
      constexpr auto kSpread = MatmulCluster::spread;
      if (instance.spread && instance.tokens == 128) {
        return launch_matmul_tile<Format, 128, kSpread>(p, maps, clusters, stream);
      }
      if (instance.spread) {
        return launch_matmul_tile<Format, 192, kSpread>(p, maps, clusters, stream);
      }
      if (instance.tall) {
        return launch_matmul_tile<Format, 256, MatmulCluster::tall>(p, maps, clusters, stream);
      }
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
