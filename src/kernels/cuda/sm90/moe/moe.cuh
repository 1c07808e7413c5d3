// Kernels of a mixture of experts: a warp routes a row, one block places rows by expert, and the
// experts' results are added in order.
#pragma once

#include <cmath>

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/moe/moe.h"

namespace lathe::cuda {

inline constexpr int kExpertThreads = 256;
inline constexpr int kCombineColumns = 128;

/// Of n values those that are not taken: the place of the highest, ties to the lower one; NaN
/// counts as -inf. All lanes of the warp get it.
__device__ inline std::int32_t highest(const float* values, std::int32_t n,
                                       const std::uint8_t* taken) {
  constexpr float kLeast = -INFINITY;
  float most = kLeast;
  std::int32_t best = INT32_MAX;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += 32) {
    if (taken[i] != 0) continue;
    const float v = values[i];
    if (best == INT32_MAX || v > most) {
      best = i;
      most = v != v ? kLeast : v;
    }
  }
  for (int d = 16; d > 0; d /= 2) {
    const float v = shuffle_xor(most, d);
    const std::int32_t i = shuffle_xor(best, d);
    if (v > most || (v == most && i < best)) {
      most = v;
      best = i;
    }
  }
  return best;
}

struct RouteMemory {
  float scores[kMostExperts];  // without bias
  float choice[kMostExperts];  // what is compared
  float group_scores[kMostExperts];
  std::uint8_t taken[kMostExperts];  // of experts, or of groups
};

// The choice of experts in groups that do not stay becomes -inf.
__device__ inline void keep_groups(const RouteParams& p, RouteMemory& m) {
  const std::int32_t size = p.experts / p.groups;
  for (std::int32_t g = 0; g < p.groups; ++g) {
    const float* group = m.choice + g * size;
    const std::int32_t first = highest(group, size, m.taken);
    float sum = group[first];
    if (size > 1) {
      if (threadIdx.x == 0) m.taken[first] = 1;
      sync_warp();
      sum += group[highest(group, size, m.taken)];
      sync_warp();
      if (threadIdx.x == 0) m.taken[first] = 0;
    }
    if (threadIdx.x == 0) m.group_scores[g] = sum;
    sync_warp();
  }
  for (std::int32_t i = 0; i < p.top_groups; ++i) {
    const std::int32_t group = highest(m.group_scores, p.groups, m.taken);
    sync_warp();
    if (threadIdx.x == 0) m.taken[group] = 1;
    sync_warp();
  }
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < p.experts; i += 32) {
    if (m.taken[i / size] == 0) m.choice[i] = -INFINITY;
  }
  sync_warp();
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < p.groups; i += 32) m.taken[i] = 0;
  sync_warp();
}

// A warp per row. Sums over experts go one after another, as the CPU's.
static __global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteParams p) {
  __shared__ RouteMemory m;
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const float* logits = p.logits + row * p.logits_stride;
  const auto lane = static_cast<std::int32_t>(threadIdx.x);
  float most = -INFINITY, sum = 0;
  if (p.scoring == RouterScoring::softmax) {
    for (std::int32_t i = lane; i < p.experts; i += 32) most = fmaxf(most, logits[i]);
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, shuffle_xor(most, d));
  }
  for (std::int32_t i = lane; i < p.experts; i += 32) {
    m.scores[i] =
        p.scoring == RouterScoring::softmax ? expf(logits[i] - most) : 1 / (1 + expf(-logits[i]));
    m.taken[i] = 0;
  }
  sync_warp();
  if (p.scoring == RouterScoring::softmax) {
    for (std::int32_t i = 0; i < p.experts; ++i) sum += m.scores[i];
    sync_warp();
    for (std::int32_t i = lane; i < p.experts; i += 32) m.scores[i] /= sum;
  }
  for (std::int32_t i = lane; i < p.experts; i += 32) {
    m.choice[i] = m.scores[i] + (p.bias != nullptr ? p.bias[i] : 0);
  }
  sync_warp();
  if (p.groups > 1) keep_groups(p, m);
  sum = 0;
  for (std::int32_t j = 0; j < p.top_k; ++j) {
    const std::int32_t id = highest(m.choice, p.experts, m.taken);
    sync_warp();
    if (lane == 0) m.taken[id] = 1;
    sync_warp();
    sum += m.scores[id];
  }
  // By number: a lane's place is what lies below it.
  std::int32_t before = 0;
  for (std::int32_t first = 0; first < p.experts; first += 32) {
    const std::int32_t id = first + lane;
    const bool chosen = id < p.experts && m.taken[id] != 0;
    const std::uint32_t all = warp_ballot(chosen);
    if (chosen) {
      std::int32_t place = before;
      for (std::int32_t l = 0; l < lane; ++l) place += static_cast<std::int32_t>(all >> l & 1u);
      float weight = m.scores[id];
      if (p.normalize) weight /= sum + 1e-20f;
      p.ids[row * p.top_k + place] = id;
      p.weights[row * p.top_k + place] = weight * p.scale;
    }
    for (std::int32_t l = 0; l < 32; ++l) before += static_cast<std::int32_t>(all >> l & 1u);
  }
}

// One block: a thread counts an expert's choices, and places them once all have been counted.
static __global__ void __launch_bounds__(kExpertThreads)
    place_kernel(const __grid_constant__ PlaceParams p) {
  let_next_begin();
  wait_for_previous();
  for (auto e = static_cast<std::int32_t>(threadIdx.x); e < p.experts; e += kExpertThreads) {
    std::int32_t count = 0;
    for (std::int64_t i = 0; i < p.choices; ++i) count += p.ids[i] == e ? 1 : 0;
    p.offsets[e + 1] = count;
  }
  if (threadIdx.x == 0) p.offsets[0] = 0;
  sync_block();
  if (threadIdx.x == 0) {
    for (std::int32_t e = 0; e < p.experts; ++e) p.offsets[e + 1] += p.offsets[e];
  }
  sync_block();
  for (auto e = static_cast<std::int32_t>(threadIdx.x); e < p.experts; e += kExpertThreads) {
    std::int32_t place = p.offsets[e];
    for (std::int64_t i = 0; i < p.choices; ++i) {
      if (p.ids[i] != e) continue;
      p.places[i] = place;
      p.rows[place++] = static_cast<std::int32_t>(i / p.top_k);
    }
  }
}

static __global__ void __launch_bounds__(kCombineColumns)
    combine_experts_kernel(const __grid_constant__ CombineExperts p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t col = std::int64_t{blockIdx.y} * kCombineColumns + threadIdx.x;
  if (col >= p.cols) return;
  float sum = load_element(DeviceRows{p.out.data, p.out.stride, p.out.dtype}, row, col);
  for (std::int32_t j = 0; j < p.top_k; ++j) {
    const std::int64_t at = row * p.top_k + j;
    sum += p.weights[at] * load_element(p.made, p.places[at], col);
  }
  store_element(p.out, row, col, sum);
}

}  // namespace lathe::cuda
