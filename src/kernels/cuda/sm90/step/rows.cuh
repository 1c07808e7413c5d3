// The rows of a step: which request and position each has, where it is written, what it sees; and
// the page table, by the other blocks of the same launch.
#pragma once

#include "kernels/cuda/sm90/step/lists.cuh"

namespace lathe::cuda {

__device__ __forceinline__ bool is_padding(const StepRowsParams& p, std::int64_t r) {
  return p.padding != nullptr && p.padding[r] != 0;
}

// Keys of a request: those cached and its own rows.
__device__ __forceinline__ std::int32_t kv_len(const StepRowsParams& p, std::int64_t r) {
  return is_padding(p, r) ? 0 : p.cached[r] + p.q_indptr[r + 1] - p.q_indptr[r];
}

__device__ __forceinline__ void fill_row(const StepRowsParams& p, std::int64_t t) {
  const std::int64_t requests = p.lists.requests;
  std::int32_t request = -1;
  std::int32_t position = -1;
  if (requests > 0 && t < p.q_indptr[requests]) {
    const auto r = last_not_above(p.q_indptr, requests, static_cast<std::int32_t>(t));
    request = static_cast<std::int32_t>(r);
    if (!is_padding(p, r)) {
      position = p.cached[r] + static_cast<std::int32_t>(t) - p.q_indptr[r];
    }
  }
  const std::int32_t keys = position + 1;
  p.positions[t] = position;
  p.row_request[t] = request;
  p.row_lens[t] = keys;
  p.out_slots[t] = request < 0 ? -1 : list_slot(p.lists, request, position);
  p.attend_lens[t] = p.top_k > 0 && keys > p.top_k ? p.top_k : keys;
  if (p.identity != nullptr) p.identity[t] = keys <= p.top_k ? 1 : 0;
}

// Grid: row_blocks blocks for rows and requests, then ceil(requests / lanes.rows()) for the table.
static __global__ void __launch_bounds__(kStepThreads)
    step_rows_kernel(const __grid_constant__ StepRowsParams p) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.row_blocks) {
    const std::int64_t step = std::int64_t{p.row_blocks} * kStepThreads;
    const std::int64_t first = std::int64_t{block} * kStepThreads + threadIdx.x;
    for (std::int64_t t = first; t < p.rows; t += step) fill_row(p, t);
    for (std::int64_t r = first; r < p.lists.requests; r += step) p.kv_lens[r] = kv_len(p, r);
    return;
  }
  std::int32_t column;
  const std::int64_t r = table_row(p.lanes, block - p.row_blocks, column);
  if (r >= p.lists.requests) return;
  const std::int64_t size = p.lists.page_size.divisor;
  const std::int64_t used = (kv_len(p, r) + size - 1) / size;
  for (std::int64_t i = column; i < p.width; i += p.lanes.lanes()) {
    p.table[r * p.width + i] = i < used ? page_at(p.lists, r, i) : -1;
  }
}

}  // namespace lathe::cuda
