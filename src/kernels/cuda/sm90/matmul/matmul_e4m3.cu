// Launches GEMMs of e4m3 weights by e4m3 tokens.
#include "kernels/cuda/sm90/matmul/matmul_e4m3.cuh"

#include "kernels/cuda/sm90/matmul/matmul_launch.cuh"

namespace lathe::cuda {
namespace {

template <int kRows, int kWarpgroups, MatmulCluster kCluster = MatmulCluster::pair>
cudaError_t launch_shared(const MatmulParams& p, const MatmulMaps& maps, int clusters,
                          cudaStream_t stream) {
  using Format = MatmulE4m3Shared<kRows, kWarpgroups>;
  return launch_matmul_tile<Format, 64, kCluster>(p, maps, clusters, stream);
}
cudaError_t launch_shared(const MatmulParams& p, const MatmulMaps& maps, int clusters,
                          cudaStream_t stream) {
  switch (p.tile_rows) {
    case 32:
      return launch_shared<32, 1>(p, maps, clusters, stream);
    case 64:
      return launch_shared<64, 1>(p, maps, clusters, stream);
    case 128:
      return launch_shared<64, 2>(p, maps, clusters, stream);
    case 192:
      return launch_shared<64, 3>(p, maps, clusters, stream);
    default:
      return launch_shared<64, 4>(p, maps, clusters, stream);
  }
}

cudaError_t launch_tokens(const MatmulParams& p, const MatmulMaps& maps, int clusters,
                          cudaStream_t stream) {
  constexpr auto kTokens = MatmulCluster::tokens;
  if (p.tile_rows == 32) return launch_shared<32, 1, kTokens>(p, maps, clusters, stream);
  if (p.tile_rows == 64) return launch_shared<64, 1, kTokens>(p, maps, clusters, stream);
  return launch_shared<64, 2, kTokens>(p, maps, clusters, stream);
}

}  // namespace
}  // namespace lathe::cuda

cudaError_t lathe::cuda::launch_matmul_e4m3(const MatmulParams& p, const MatmulMaps& maps,
                                            const MatmulInstance& instance, cudaStream_t stream) {
  constexpr auto kPair = MatmulCluster::pair;
  const int clusters = instance.clusters;
  if (instance.pair && has_tokens_on_m(p)) {
    if (instance.quad) return launch_quad<MatmulE4m3Many>(p, maps, instance, stream);
    if (instance.by_tokens) return launch_tokens(p, maps, clusters, stream);
    if (instance.tokens == 64) return launch_shared(p, maps, clusters, stream);
    if (p.groups > 0 && instance.tokens == 256) {
      return launch_matmul_tile<MatmulE4m3Many, 256, kPair, true>(p, maps, clusters, stream);
    }
    if (p.groups > 0) {
      return launch_matmul_tile<MatmulE4m3Many, 128, kPair, true>(p, maps, clusters, stream);
    }
    constexpr auto kSpread = MatmulCluster::spread;
    if (instance.spread && instance.tokens == 256) {
      return launch_matmul_tile<MatmulE4m3Many, 256, kSpread>(p, maps, clusters, stream);
    }
    if (instance.spread) {
      return launch_matmul_tile<MatmulE4m3Many, 128, kSpread>(p, maps, clusters, stream);
    }
    if (instance.tokens == 256) {
      return launch_matmul_tile<MatmulE4m3Many, 256, kPair>(p, maps, clusters, stream);
    }
    return launch_matmul_tile<MatmulE4m3Many, 128, kPair>(p, maps, clusters, stream);
  }
  if (p.groups > 0) return launch_grouped_matmul<MatmulE4m3, 128>(p, maps, instance, stream);
  if (instance.warpgroups == 1) {
    return launch_matmul_tile<MatmulE4m3, 64, MatmulCluster::narrow>(p, maps, clusters, stream);
  }
  return launch_matmul<MatmulE4m3, 128>(p, maps, instance, stream);
}
