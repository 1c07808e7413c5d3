// Mixture-of-experts kernels: a warp routes a row, blocks place rows by expert, and the experts'
// outputs are added in order.
#pragma once

#include <cmath>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/moe/moe.h"

namespace lathe::cuda {

inline constexpr int kPlaceThreads = 1024;
static_assert(kMostExperts <= kPlaceThreads);
inline constexpr int kCombineThreads = 128, kCombineColumns = 4;  // columns per thread

/// Index of the highest of the n values that are not yet taken; ties go to the lower index, and NaN
/// counts as -inf. All lanes of the warp get the result.
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
  float choice[kMostExperts];  // with bias: what is compared
  float group_scores[kMostExperts];
  std::uint8_t taken[kMostExperts];  // experts or groups already chosen
};

// Sets the choice of all experts outside the best groups to -inf.
template <bool kByBest>
__device__ void keep_groups(const RouteParams& p, RouteMemory& m) {
  const std::int32_t size = p.experts / p.groups;
  for (std::int32_t g = 0; g < p.groups; ++g) {
    const float* group = m.choice + g * size;
    const std::int32_t first = highest(group, size, m.taken);
    float sum = group[first];
    if (!kByBest && size > 1) {
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

// `most`: the row's largest logit, for the softmax.
__device__ inline float score_of(RouterScoring scoring, float x, float most) {
  switch (scoring) {
    case RouterScoring::softmax:
      return expf(x - most);
    case RouterScoring::sqrt_softplus:
      return sqrtf(x > 20 ? x : log1pf(expf(x)));
    case RouterScoring::sigmoid:
      break;
  }
  return 1 / (1 + expf(-x));
}

// Uses the token's experts from the table.
__device__ inline void take_given(const RouteParams& p, std::int64_t row, const float* scores) {
  const std::int64_t token = p.tokens[row];
  const std::int32_t* given =
      p.token_experts + (token >= 0 && token < p.vocab ? token : 0) * p.top_k;
  float sum = 0;
  for (std::int32_t j = 0; j < p.top_k; ++j) sum += scores[given[j]];
  for (auto j = static_cast<std::int32_t>(threadIdx.x); j < p.top_k; j += 32) {
    float weight = scores[given[j]];
    if (p.normalize) weight /= sum + 1e-20f;
    p.ids[row * p.top_k + j] = given[j];
    weight *= p.scale;
    if (p.expert_scale != nullptr) weight *= p.expert_scale[given[j]];
    p.weights[row * p.top_k + j] = weight;
  }
}

// A warp per row. Sums over experts are sequential, as on the CPU. kByBest: RouteParams'
// group_by_best.
template <bool kByBest>
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
    m.scores[i] = score_of(p.scoring, logits[i], most);
    m.taken[i] = 0;
  }
  sync_warp();
  if (p.scoring == RouterScoring::softmax) {
    for (std::int32_t i = 0; i < p.experts; ++i) sum += m.scores[i];
    sync_warp();
    for (std::int32_t i = lane; i < p.experts; i += 32) m.scores[i] /= sum;
  }
  if (p.token_experts != nullptr) {
    sync_warp();
    take_given(p, row, m.scores);
    return;
  }
  for (std::int32_t i = lane; i < p.experts; i += 32) {
    m.choice[i] = m.scores[i] + (p.bias != nullptr ? p.bias[i] : 0);
  }
  sync_warp();
  if (p.groups > 1) keep_groups<kByBest>(p, m);
  sum = 0;
  for (std::int32_t j = 0; j < p.top_k; ++j) {
    const std::int32_t id = highest(m.choice, p.experts, m.taken);
    sync_warp();
    if (lane == 0) m.taken[id] = 1;
    sync_warp();
    sum += m.scores[id];
  }
  // Orders the chosen experts by number: a lane's index is the count of chosen experts below it.
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
      weight *= p.scale;
      if (p.expert_scale != nullptr) weight *= p.expert_scale[id];
      p.weights[row * p.top_k + place] = weight;
    }
    for (std::int32_t l = 0; l < 32; ++l) before += static_cast<std::int32_t>(all >> l & 1u);
  }
}

/// A warp processes its choices, 32 at a time in order, and counts them per expert. With kPlaces
/// the counts start as the place of the expert's next choice.
template <bool kPlaces>
__device__ void count_choices(const PlaceParams& p, std::int32_t* counts) {
  constexpr int kWarps = kPlaceThreads / 32;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t turns = std::int64_t{gridDim.x} * kPlaceThreads;
  const std::int64_t each = (p.choices + turns - 1) / turns * 32;
  const std::int64_t first = (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * each;
  const std::int64_t end = first + each < p.choices ? first + each : p.choices;
  std::int32_t next = first + lane < end ? p.ids[first + lane] : -1;
  for (std::int64_t at = first; at < end; at += 32) {
    const std::int64_t choice = at + lane;
    const std::int32_t expert = next;
    next = choice + 32 < end ? p.ids[choice + 32] : -1;  // loads ahead
    const std::uint32_t same = warp_match(expert);
    std::int32_t place = 0;
    if (expert >= 0) {
      place = counts[expert] + count_bits(same & ((1u << lane) - 1));
      if (kPlaces) {
        p.places[choice] = place;
        p.rows[place] = static_cast<std::int32_t>(choice) / p.top_k;
      }
    }
    sync_warp();
    if (expert >= 0 && same >> lane == 1) counts[expert] = place + 1;
    sync_warp();
  }
}

/// counts [warps, experts]: the choices of every warp. Returns the block's number of choices of
/// expert threadIdx.x, or 0 past the last expert.
__device__ inline std::int32_t count_of_block(const PlaceParams& p, std::int32_t* counts) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  for (std::int32_t i = thread; i < kPlaceThreads / 32 * p.experts; i += kPlaceThreads) {
    counts[i] = 0;
  }
  let_next_begin();
  wait_for_previous();
  sync_block();
  count_choices<false>(p, counts + thread / 32 * p.experts);
  sync_block();
  std::int32_t sum = 0;
  for (int w = 0; w < kPlaceThreads / 32 && thread < p.experts; ++w) {
    sum += counts[w * p.experts + thread];
  }
  return sum;
}

// Runs before place_kernel if there are many choices: counts every block's choices per expert.
static __global__ void __launch_bounds__(kPlaceThreads)
    count_kernel(const __grid_constant__ PlaceParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const std::int32_t sum = count_of_block(p, reinterpret_cast<std::int32_t*>(shared_bytes));
  const auto expert = static_cast<std::int32_t>(threadIdx.x);
  if (expert < p.experts) p.block_counts[std::int64_t{blockIdx.x} * p.experts + expert] = sum;
}

// Each warp counts the choices of neighbouring rows, and places them once it knows how many choices
// of each expert precede its own.
static __global__ void __launch_bounds__(kPlaceThreads)
    place_kernel(const __grid_constant__ PlaceParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  __shared__ ScanShared<std::int32_t> scan;
  auto* const counts = reinterpret_cast<std::int32_t*>(shared_bytes);  // [warps, experts]
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t sum = count_of_block(p, counts);
  std::int32_t of_blocks_before = 0;
  if (gridDim.x > 1) {
    sum = 0;
    for (std::uint32_t b = 0; b < gridDim.x && thread < p.experts; ++b) {
      const std::int32_t count = p.block_counts[std::int64_t{b} * p.experts + thread];
      if (b < blockIdx.x) of_blocks_before += count;
      sum += count;
    }
  }
  std::int32_t total = 0;
  std::int32_t before = block_prefix(sum, scan, total);
  if (blockIdx.x == 0) {
    if (thread < p.experts) p.offsets[thread] = before;
    if (thread == 0) p.offsets[p.experts] = total;
  }
  before += of_blocks_before;
  for (int w = 0; w < kPlaceThreads / 32 && thread < p.experts; ++w) {
    std::int32_t& count = counts[w * p.experts + thread];
    const std::int32_t next = before + count;
    count = before;
    before = next;
  }
  sync_block();
  count_choices<true>(p, counts + thread / 32 * p.experts);
}

// A thread has neighbouring columns of a row. kSome: the rank has some of the places.
template <bool kSome>
static __global__ void __launch_bounds__(kCombineThreads)
    combine_experts_kernel(const __grid_constant__ CombineExperts p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t col =
      (std::int64_t{blockIdx.y} * kCombineThreads + threadIdx.x) * kCombineColumns;
  if (col >= p.cols) return;
  const std::int32_t begin = kSome ? *p.begin : 0, end = kSome ? *p.end : 0;
  const auto elsewhere = [&](std::int32_t place) {
    return kSome && (place < begin || place >= end);
  };
  float* const out = p.out + row * p.out_stride + col;
  const bool whole = p.cols - col >= kCombineColumns && p.made.dtype == DType::bf16 &&
                     reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  if (whole) {
    const float4 before = p.add ? *reinterpret_cast<const float4*>(out) : float4{};
    float sum[kCombineColumns] = {before.x, before.y, before.z, before.w};
    const auto* made = reinterpret_cast<const std::uint16_t*>(p.made.data) + col;
    for (std::int32_t j = 0; j < p.top_k; ++j) {
      const std::int64_t at = row * p.top_k + j;
      if (elsewhere(p.places[at])) continue;
      const float weight = p.weights[at];
      const uint2 v = *reinterpret_cast<const uint2*>(made + p.places[at] * p.made.stride);
      sum[0] += weight * bits_to_float(v.x << 16);
      sum[1] += weight * bits_to_float(v.x & 0xffff0000u);
      sum[2] += weight * bits_to_float(v.y << 16);
      sum[3] += weight * bits_to_float(v.y & 0xffff0000u);
    }
    *reinterpret_cast<float4*>(out) = {sum[0], sum[1], sum[2], sum[3]};
    return;
  }
  for (int i = 0; i < kCombineColumns && col + i < p.cols; ++i) {
    float sum = p.add ? out[i] : 0;
    for (std::int32_t j = 0; j < p.top_k; ++j) {
      const std::int64_t at = row * p.top_k + j;
      if (elsewhere(p.places[at])) continue;
      sum += p.weights[at] * load_element(p.made, p.places[at], col + i);
    }
    out[i] = sum;
  }
}

}  // namespace lathe::cuda
