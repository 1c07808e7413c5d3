// Makes the tensor maps for TMA boxes of q and out.
#pragma once

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/latent/load/load_queries.cuh"
#include "kernels/cuda/sm90/latent/math/store_out.cuh"

namespace lathe::cuda {

/// Does nothing where queries are not loaded by boxes.
template <int kBlockM, int kDims>
cudaError_t make_query_map(CUtensorMap& map, const LatentParams& p) {
  const int m_rows = query_box_rows<kBlockM, kDims>(p);
  if (m_rows == 0) return cudaSuccess;
  const std::int64_t row_bytes = std::int64_t{p.heads} * (kDims * 128);
  return make_page_map(map, {.base = p.q,
                             .pages = p.q_rows,
                             .page_stride = p.q_rows > 1 ? p.q_stride * 2 : row_bytes,
                             .page_rows = p.heads,
                             .row_bytes = kDims * 128,
                             .box_rows = m_rows});
}

/// Does nothing where outputs are not stored by boxes.
inline cudaError_t make_out_map(CUtensorMap& map, const LatentParams& p) {
  if (!has_out_boxes(p)) return cudaSuccess;
  const std::int64_t row_bytes = std::int64_t{p.heads} * 1024;
  return make_page_map(map, {.base = p.out,
                             .pages = p.q_rows,
                             .page_stride = p.q_rows > 1 ? p.out_stride * 2 : row_bytes,
                             .page_rows = p.heads,
                             .row_bytes = 1024,
                             .box_rows = 64});
}

}  // namespace lathe::cuda
