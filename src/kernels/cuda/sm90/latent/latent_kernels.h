// The launches of latent attention. It includes little, as nvcc reads it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Lines of 64 a block; bf16 products.
cudaError_t launch_wide_mla_bf16(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_wide_mla_fp8(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_wide_mla_fp8_block(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_wide_v4_fp8(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_wide_v4_bf16(const LatentParams& p, cudaStream_t stream);

/// tile_lines of 8, 16, 32 or 64 a block, q e4m3, dense; fp8 products. Queries, pages and their strides are
/// multiples of 16 bytes, pages powers of two from 16 tokens on.
cudaError_t launch_native_mla_fp8(const LatentParams& p, int tile_lines, cudaStream_t stream);

/// tile_lines of 8, 16 or 32 a block; of fp8 rows f16 products, of bf16 rows, where p.tiles is 1, bf16 products.
cudaError_t launch_narrow_mla_bf16(const LatentParams& p, int tile_lines, cudaStream_t stream);
cudaError_t launch_narrow_mla_fp8(const LatentParams& p, int tile_lines, cudaStream_t stream);
cudaError_t launch_narrow_mla_fp8_block(const LatentParams& p, int tile_lines, cudaStream_t stream);
cudaError_t launch_narrow_v4_fp8(const LatentParams& p, int tile_lines, cudaStream_t stream);
cudaError_t launch_narrow_v4_bf16(const LatentParams& p, int tile_lines, cudaStream_t stream);

/// keys: [p.units], of each unit, `most` where it has more: a length on the device may be anything.
cudaError_t launch_latent_count(const LatentParams& p, std::int64_t most, std::int32_t* keys,
                                cudaStream_t stream);

/// After one of the others where p.cut, on the same stream. order: of its parts. most: items that a unit
/// can have.
cudaError_t launch_latent_combine(const LatentParams& p, PartOrder order, int tile_lines,
                                  std::int64_t most, cudaStream_t stream);

}  // namespace lathe::cuda
