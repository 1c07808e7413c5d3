// Launches an instance of the matmul kernel with stages of 256 columns of packed weights.
#pragma once

#include "kernels/cuda/sm90/matmul/deep/deep_kernels.h"
#include "kernels/cuda/sm90/matmul/deep/deep_packed.cuh"
#include "kernels/cuda/sm90/matmul/matmul_launch.cuh"

namespace lathe::cuda {

template <class Row, MatmulCluster kCluster>
cudaError_t launch_deep(const MatmulParams& p, const MatmulMaps& maps,
                        const MatmulInstance& instance, cudaStream_t stream) {
  using Format = MatmulPackedDeep<Row>;
  const int clusters = instance.clusters;
  switch (instance.tokens) {
    case 16:
      return launch_matmul_tile<Format, 16, kCluster>(p, maps, clusters, stream);
    case 32:
      return launch_matmul_tile<Format, 32, kCluster>(p, maps, clusters, stream);
    default:
      return launch_matmul_tile<Format, 64, kCluster>(p, maps, clusters, stream);
  }
}

template <class Row>
cudaError_t launch_deep(const MatmulParams& p, const MatmulMaps& maps,
                        const MatmulInstance& instance, cudaStream_t stream) {
  constexpr auto kWide = MatmulCluster::wide, kNarrow = MatmulCluster::narrow;
  if (instance.warpgroups == 1) return launch_deep<Row, kNarrow>(p, maps, instance, stream);
  if (instance.tokens > 8) return launch_deep<Row, kWide>(p, maps, instance, stream);
  return launch_matmul_tile<MatmulPackedDeep<Row>, 8, kWide>(p, maps, instance.clusters, stream);
}

}  // namespace lathe::cuda
