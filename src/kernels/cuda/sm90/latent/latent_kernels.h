// The launches of latent attention. It includes little, for nvcc's sake.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// 64 M rows per block; bf16 products, f16 on fp8 caches.
cudaError_t launch_m64_mla_bf16(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_mla_fp8(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_mla_fp8_block(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_v4_fp8(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_v4_bf16(const LatentParams& p, cudaStream_t stream);

/// block_m of 8, 16, 32 or 64, q e4m3; fp8 products. Queries, pages and their strides are multiples
/// of 16 bytes; by page table, pages are powers of two from 16 tokens on.
cudaError_t launch_native_mla_fp8(const LatentParams& p, int block_m, cudaStream_t stream);

/// block_m of 8, 16 or 32; f16 products on fp8 rows, bf16 products on bf16 rows, where p.m_blocks
/// is 1.
cudaError_t launch_swap_ab_mla_bf16(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_fp8(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_fp8_block(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_v4_fp8(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_v4_bf16(const LatentParams& p, int block_m, cudaStream_t stream);

/// keys: [p.work_tiles], of each work tile, at most `most`: a length on the device may be anything.
cudaError_t launch_latent_count(const LatentParams& p, std::int64_t most, std::int32_t* keys,
                                cudaStream_t stream);

/// Shares p's work tiles, kShareTiles at most, by the lengths on the device.
cudaError_t launch_latent_share(const LatentParams& p, const LatentSharing& to,
                                cudaStream_t stream);

/// After one of the others where p.cut, on the same stream. order: of its partials. most: items
/// that a work tile has, about.
cudaError_t launch_latent_combine(const LatentParams& p, PartialLayout order, int block_m,
                                  std::int64_t most, cudaStream_t stream);

}  // namespace lathe::cuda
