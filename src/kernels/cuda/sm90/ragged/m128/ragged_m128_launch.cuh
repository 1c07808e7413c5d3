// Launches an instance of ragged_m128.
#pragma once

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/row_map.h"
#include "kernels/cuda/sm90/ragged/m128/ragged_m128.cuh"
#include "kernels/cuda/sm90/ragged/ragged_kernels.h"

namespace lathe::cuda {

template <int kKeyDim, int kValueDim>
cudaError_t launch_ragged_m128(const RaggedParams& p, cudaStream_t stream) {
  using N = GqaM128<kKeyDim, kValueDim>;
  constexpr auto kKernel = ragged_m128_kernel<kKeyDim, kValueDim>;
  if (p.keys == 0) return cudaSuccess;
  const auto rows_of = [&](const std::uint16_t* base, std::int64_t width) {
    return RowBoxes{.base = base,
                    .rows = p.keys,
                    .row_bytes = 2 * width,
                    .row_stride = 2 * width,
                    .box_rows = N::kTile};
  };
  CUtensorMap expanded{}, latents{};
  const std::int64_t width = std::int64_t{p.gqa.kv_heads} * p.head_width;
  if (const cudaError_t status = make_row_map(expanded, rows_of(p.expanded, width));
      status != cudaSuccess) {
    return status;
  }
  if (const cudaError_t status = make_row_map(latents, rows_of(p.latents, p.latent_width));
      status != cudaSuccess) {
    return status;
  }
  const cudaError_t status = allow_shared<kKernel>(N::kSharedBytes);
  if (status != cudaSuccess) return status;
  return launch_kernel(kKernel,
                       {.grid = static_cast<unsigned>(p.gqa.workers),
                        .block = N::kThreads,
                        .shared_bytes = N::kSharedBytes,
                        .early = true},
                       stream, p, expanded, latents);
}

}  // namespace lathe::cuda
