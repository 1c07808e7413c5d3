// Stores an M block's outputs by TMA boxes.
#pragma once

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Whether a block's 64 M rows are heads of one row of out, [rows, heads, 512], and out suits TMA
/// boxes.
__host__ __device__ inline bool has_out_boxes(const LatentParams& p) {
  return (!p.dense || p.heads % 64 == 0) && p.q_rows > 0 &&
         reinterpret_cast<std::uintptr_t>(p.out) % 16 == 0 &&
         (p.q_rows == 1 || (p.out_stride % 8 == 0 && p.out_stride >= std::int64_t{p.heads} * 512));
}

}  // namespace lathe::cuda
