// Mixture-of-experts kernels: a warp routes a row, blocks place rows by expert, and the experts'
// outputs are added in order.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/common/norm_after.cuh"
#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/moe/choose.cuh"
#include "kernels/cuda/sm90/moe/moe.h"

namespace lathe::cuda {

inline constexpr int kPlaceThreads = 1024;
static_assert(kMostExperts <= kPlaceThreads);
inline constexpr int kWeighThreads = 128;
inline constexpr int kCombineThreads = 128, kCombineColumns = 4;  // columns per thread
inline constexpr int kCombineAhead = 8;  // experts whose rows a thread loads before it adds

// A warp per row. kEach: at most 32 kEach experts.
template <int kEach>
static __global__ void __launch_bounds__(32) route_kernel(const __grid_constant__ RouteParams p) {
  __shared__ RouteMemory<kEach> m;
  let_next_begin();
  const auto lane = static_cast<std::int32_t>(threadIdx.x);
  load_bias(p, m, lane, 32);
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  load_scores(p, row, m, lane, 32);
  sync_warp();
  choose_experts<kEach>(p, row, m, [&](std::int32_t j, std::int32_t expert, float weight) {
    p.ids[row * p.top_k + j] = expert;
    p.weights[row * p.top_k + j] = weight;
  });
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

// A block per choice.
static __global__ void __launch_bounds__(kWeighThreads)
    weigh_rows_kernel(const __grid_constant__ WeighRowsParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t choice = blockIdx.x, row = p.places[choice];
  const float weight = p.weights[choice];
  if (p.words > 0) {
    auto* const words = reinterpret_cast<uint4*>(p.rows.data + row * p.rows.stride * 2);
    const auto weigh = [&](std::uint32_t pair) {
      return pack_bf16(weight * bits_to_float(pair << 16),
                       weight * bits_to_float(pair & 0xffff0000u));
    };
    for (std::int64_t i = threadIdx.x; i < p.words; i += kWeighThreads) {
      const uint4 v = words[i];
      words[i] = {weigh(v.x), weigh(v.y), weigh(v.z), weigh(v.w)};
    }
  } else {
    const DeviceRows rows{p.rows.data, p.rows.stride, p.rows.dtype};
    for (std::int64_t i = threadIdx.x; i < p.cols; i += kWeighThreads) {
      store_element(p.rows, row, i, weight * load_element(rows, row, i));
    }
  }
}

__device__ inline float4 plus(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// The places that this rank has: all of them, or with kSome those from begin to end - 1.
template <bool kSome>
struct PlacesHere {
  std::int32_t begin = 0, end = 0;

  __device__ explicit PlacesHere(const CombineExperts& p) {
    if (kSome) begin = *p.begin, end = *p.end;
  }
  __device__ bool has(std::int32_t place) const {
    return !kSome || (place >= begin && place < end);
  }
};

/// Of a choice.
__device__ inline float weight_of(const CombineExperts& p, std::int64_t choice) {
  return p.weights == nullptr ? 1.f : p.weights[choice];
}

/// Four columns of what the shared experts make of a row.
__device__ __forceinline__ float4 sum_shared(const CombineExperts& p, std::int64_t row,
                                             std::int64_t col) {
  const float* at = p.shared + row * p.cols + col;
  float4 sum = *reinterpret_cast<const float4*>(at);
  LATHE_UNROLL_BY(4)
  for (std::int32_t part = 1; part < p.shared_parts; ++part) {
    at += p.rows * p.cols;
    sum = plus(sum, *reinterpret_cast<const float4*>(at));
  }
  return sum;
}

/// Four columns of `row` from `col` on, of bf16 results and whole words of out.
template <bool kSome>
__device__ __forceinline__ float4 sum_experts(const CombineExperts& p,
                                              const PlacesHere<kSome>& here, std::int64_t row,
                                              std::int64_t col) {
  const float* const out = p.out + row * p.out_stride + col;
  float4 sum = p.add ? *reinterpret_cast<const float4*>(out) : float4{};
  const float4 shared = p.shared != nullptr ? sum_shared(p, row, col) : float4{};
  if (p.shared != nullptr && p.shared_first) sum = p.add ? plus(sum, shared) : shared;
  const auto* made = reinterpret_cast<const std::uint16_t*>(p.made.data) + col;
  LATHE_ROLLED
  for (std::int32_t first = 0; first < p.top_k; first += kCombineAhead) {
    std::int32_t places[kCombineAhead];
    float weights[kCombineAhead];
    uint2 words[kCombineAhead];
    LATHE_UNROLL
    for (int i = 0; i < kCombineAhead; ++i) {
      const bool some = first + i < p.top_k;
      const std::int64_t at = row * p.top_k + first + i;
      places[i] = some ? p.places[at] : -1;
      weights[i] = some ? weight_of(p, at) : 0;
    }
    LATHE_UNROLL
    for (int i = 0; i < kCombineAhead; ++i) {
      if (places[i] >= 0 && !here.has(places[i])) places[i] = -1;
      words[i] = {};
      if (places[i] >= 0) {
        words[i] = *reinterpret_cast<const uint2*>(made + places[i] * p.made.stride);
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < kCombineAhead; ++i) {
      if (places[i] < 0) continue;
      sum.x += weights[i] * bits_to_float(words[i].x << 16);
      sum.y += weights[i] * bits_to_float(words[i].x & 0xffff0000u);
      sum.z += weights[i] * bits_to_float(words[i].y << 16);
      sum.w += weights[i] * bits_to_float(words[i].y & 0xffff0000u);
    }
  }
  if (p.shared != nullptr && !p.shared_first) sum = plus(sum, shared);
  return sum;
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
  const PlacesHere<kSome> here(p);
  float* const out = p.out + row * p.out_stride + col;
  const bool whole = p.cols - col >= kCombineColumns && p.made.dtype == DType::bf16 &&
                     reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  if (whole) {
    *reinterpret_cast<float4*>(out) = sum_experts(p, here, row, col);
    return;
  }
  for (int i = 0; i < kCombineColumns && col + i < p.cols; ++i) {
    float sum = p.add ? out[i] : 0;
    for (std::int32_t j = 0; j < p.top_k; ++j) {
      const std::int64_t at = row * p.top_k + j;
      if (!here.has(p.places[at])) continue;
      sum += weight_of(p, at) * load_element(p.made, p.places[at], col + i);
    }
    out[i] = sum;
  }
}

// The sums of a row, and their norm. kBlocks of a cluster share the row.
template <bool kSome, int kBlocks>
static __global__ void __launch_bounds__(kNormAfterThreads<kBlocks>, 1)
    combine_norm_kernel(const __grid_constant__ CombineExperts p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  let_next_begin();
  NormAfterRow<kBlocks> after(p.norm, p.cols, shared_bytes);
  wait_for_previous();
  const std::int64_t row = after.row();
  const PlacesHere<kSome> here(p);
  auto* const out = reinterpret_cast<float4*>(p.out + row * p.out_stride);
  LATHE_ROLLED
  for (int i = 0; i < after.kWords; ++i) {
    float4 sum = {};
    if (after.has(i)) {
      out[after.word(i)] = sum = sum_experts(p, here, row, 4 * after.word(i));
    }
    after.put(i, sum);
  }
  after.run();
}

}  // namespace lathe::cuda
