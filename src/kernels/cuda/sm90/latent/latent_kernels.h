// Launches of latent attention's kernels. Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// 64 M rows per block; bf16 operands, f16 on fp8 caches. mla_bf16_512: bf16 rows where the key is
/// the value, as V4 and MLA without RoPE have them.
cudaError_t launch_m64_mla_bf16(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_mla_fp8(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_mla_fp8_block(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_v4_fp8(const LatentParams& p, cudaStream_t stream);
cudaError_t launch_m64_mla_bf16_512(const LatentParams& p, cudaStream_t stream);

/// fp8 operands, e4m3 q. block_m: 8, 16, 32 or 64. Queries, pages and their strides are multiples
/// of 16 bytes; with a page table, pages are a power of two of at least 16 tokens.
cudaError_t launch_native_mla_fp8(const LatentParams& p, int block_m, cudaStream_t stream);

/// block_m: 8, 16 or 32. f16 operands on fp8 rows; bf16 operands on bf16 rows, which need
/// p.m_blocks of 1.
cudaError_t launch_swap_ab_mla_bf16(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_fp8(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_fp8_block(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_v4_fp8(const LatentParams& p, int block_m, cudaStream_t stream);
cudaError_t launch_swap_ab_mla_bf16_512(const LatentParams& p, int block_m, cudaStream_t stream);

/// keys: [p.work_tiles], the keys of each work tile, cut to `most`: lengths on the device are
/// unchecked.
cudaError_t launch_latent_count(const LatentParams& p, std::int64_t most, std::int32_t* keys,
                                cudaStream_t stream);

/// Distributes p's work tiles (at most kShareTiles) by the lengths on the device.
cudaError_t launch_latent_share(const LatentParams& p, const LatentSharing& to,
                                cudaStream_t stream);

/// Combines partials. Launch after one of the others where p.cut, on the same stream. order: of the
/// partials. most: about the most items of a work tile.
cudaError_t launch_latent_combine(const LatentParams& p, PartialLayout order, int block_m,
                                  std::int64_t most, cudaStream_t stream);

}  // namespace lathe::cuda
