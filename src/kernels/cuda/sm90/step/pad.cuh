// Copies rows of requests to a dense block per request, and back (attn/pad_ragged.h).
#pragma once

#include "kernels/cuda/sm90/step/lists.cuh"

namespace lathe::cuda {

// The source of a row of the destination, -1 where that becomes zero.
__device__ __forceinline__ std::int64_t pad_source(const PadParams& p, std::int64_t row) {
  if (p.to_dense) {
    const std::int64_t r = p.max_len(static_cast<std::uint32_t>(row));
    const std::int64_t from = p.q_indptr[r] + row - r * p.max_len.divisor;
    return from >= 0 && from < p.q_indptr[r + 1] && from < p.from_rows ? from : -1;
  }
  if (p.requests == 0 || row >= p.q_indptr[p.requests]) return -1;
  const std::int64_t r = last_not_above(p.q_indptr, p.requests, static_cast<std::int32_t>(row));
  const std::int64_t within = row - p.q_indptr[r];
  return within >= 0 && within < p.max_len.divisor ? r * p.max_len.divisor + within : -1;
}

// Grid: ceil(rows / lanes.rows()).
template <class Word>
static __global__ void __launch_bounds__(kStepThreads)
    pad_kernel(const __grid_constant__ PadParams p) {
  std::int32_t first;
  const std::int64_t row = table_row(p.lanes, static_cast<int>(blockIdx.x), first);
  if (row >= p.rows) return;
  const std::int64_t source = pad_source(p, row);
  const Word* from = static_cast<const Word*>(p.from) + (source < 0 ? 0 : source) * p.from_stride;
  Word* to = static_cast<Word*>(p.to) + row * p.to_stride;
  for (std::int64_t i = first; i < p.words; i += p.lanes.lanes()) {
    to[i] = source < 0 ? Word{} : from[i];
  }
}

}  // namespace lathe::cuda
