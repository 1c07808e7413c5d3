// The indexer's logits in f32, for heads that logits_wgmma.cuh does not support. A block scores
// kScoreKeys keys of a row. Thread (i, g) sums heads g, g + kScoreGroups, ... of key i; the groups
// are then added in order.
#pragma once

#include "base/float_formats.h"
#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

inline constexpr int kScoreKeys = 32, kScoreGroups = 4;
inline constexpr int kScoreThreads = kScoreKeys * kScoreGroups;

/// Floats of shared memory for a row's queries and a tile of keys.
inline std::int64_t score_shared_floats(const IndexLogits& p) {
  return std::int64_t{p.heads} * p.q.dim + kScoreKeys * (p.q.dim + 1);
}

__device__ inline float index_code(const IndexPages& p, std::int64_t page, std::int64_t token,
                                   std::int32_t d) {
  const std::byte* at = p.data + page * p.page_stride + token * p.dim + d;
  return to_f32(*reinterpret_cast<const e4m3*>(at));
}
__device__ inline float index_scale(const IndexPages& p, std::int64_t page, std::int64_t token) {
  const std::byte* at = p.data + page * p.page_stride + std::int64_t{p.page_tokens} * p.dim;
  return reinterpret_cast<const float*>(at)[token];
}

static __global__ void __launch_bounds__(kScoreThreads)
    index_logits_kernel(const __grid_constant__ IndexLogits p) {
  LATHE_DYNAMIC_SHARED(memory);
  __shared__ float sums[kScoreGroups][kScoreKeys];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t first = std::int64_t{blockIdx.y} * kScoreKeys;
  const std::int64_t len = p.lens[row];
  const std::int64_t request = p.request[row];
  if (first >= len || request < 0) return;
  const std::int32_t dim = p.q.dim;
  auto* q = reinterpret_cast<float*>(memory);
  float* keys = q + std::int64_t{p.heads} * dim;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < p.heads * dim; i += kScoreThreads) {
    q[i] = index_code(p.q, row, i / dim, i % dim);
  }
  const int key = static_cast<int>(threadIdx.x) % kScoreKeys;
  const int group = static_cast<int>(threadIdx.x) / kScoreKeys;
  const std::int64_t position = first + key;
  std::int64_t page = -1;
  if (position < len && position / p.keys.page_tokens < p.width) {
    page = p.page_table[request * p.width + position / p.keys.page_tokens];
  }
  const bool there = page >= 0 && page < p.keys.pages;
  const std::int64_t token = position % p.keys.page_tokens;
  for (std::int32_t d = group; d < dim; d += kScoreGroups) {
    // A key without a page is NaN, so it cannot be selected.
    keys[key * (dim + 1) + d] =
        there ? index_code(p.keys, page, token, d) : bits_to_float(0x7fc00000u);
  }
  sync_block();
  float sum = 0;
  for (std::int32_t h = group; h < p.heads; h += kScoreGroups) {
    float dot = 0;
    for (std::int32_t d = 0; d < dim; ++d) dot += q[h * dim + d] * keys[key * (dim + 1) + d];
    const float weight =
        p.weights[row * p.weights_stride + h] * p.constant * index_scale(p.q, row, h);
    sum += (dot < 0 ? 0 : dot) * weight;  // keeps NaN
  }
  sums[group][key] = sum;
  sync_block();
  if (group != 0 || position >= len) return;
  for (int g = 1; g < kScoreGroups; ++g) sum += sums[g][key];
  p.logits[row * p.cols + position] = sum * (there ? index_scale(p.keys, page, token) : 1);
}

}  // namespace lathe::cuda
