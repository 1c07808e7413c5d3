// Launches of the grouped-query kernels, one template instance per file.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// kHeadDim: of keys. p.block_m: 8 to 32, and 64 where gqa_swaps_64().
template <int kHeadDim, bool kFp8, int kValueDim = kHeadDim>
cudaError_t launch_gqa_swap_ab(const GqaParams& p, cudaStream_t stream);

/// e4m3 pages. kHeads: KV heads of an item, 2 with p.pairs. p.block_m: kHeads times one that
/// gqa_is_mma_fp8() allows.
template <int kHeadDim, int kHeads>
cudaError_t launch_gqa_mma_fp8(const GqaParams& p, cudaStream_t stream);

/// p.block_m: one that gqa_rows_on_m() allows. Head dims up to 256.
template <int kHeadDim, int kValueDim = kHeadDim>
cudaError_t launch_gqa_m128(const GqaParams& p, cudaStream_t stream);

/// Latent attention as grouped queries of one KV head, with values in the first kValueDim elements
/// of keys of at most kKeyDim.
template <int kKeyDim, int kValueDim>
cudaError_t launch_gqa_rows_swap_ab(const GqaParams& p, cudaStream_t stream);
template <int kKeyDim, int kValueDim>
cudaError_t launch_gqa_rows_m128(const GqaParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
