// Routing, placing and gathering of few rows in one launch. Every block computes all choices and
// places, which is faster than waiting for another launch's, and copies its part of the rows.
#pragma once

#include "kernels/cuda/common/scan.cuh"
#include "kernels/cuda/sm90/moe/choose.cuh"

namespace lathe::cuda {

inline constexpr int kDispatchThreads = 256;
inline constexpr int kGatherPart = 128;  // 16-byte words that a warp copies at once

/// Which choices each expert has, as bits.
struct ChoiceBits {
  std::uint32_t* bits;  // [experts, stride] shared
  std::int32_t words;   // of 32 choices
  std::int32_t stride;  // odd, so that threads with an expert each use different banks

  __device__ std::uint32_t* of(std::int32_t expert) const { return bits + expert * stride; }
  __device__ void add(std::int32_t expert, std::int32_t choice) const {
    // Each bit is added once.
    atomicAdd(of(expert) + choice / 32, 1u << (choice % 32));
  }
  /// The expert's choices before `choice`.
  __device__ std::int32_t before(std::int32_t expert, std::int32_t choice) const {
    const std::uint32_t* const own = of(expert);
    std::int32_t count = count_bits(own[choice / 32] & ((1u << (choice % 32)) - 1));
    for (std::int32_t w = 0; w < choice / 32; ++w) count += count_bits(own[w]);
    return count;
  }
  __device__ std::int32_t count(std::int32_t expert) const {
    std::int32_t count = 0;
    for (std::int32_t w = 0; w < words; ++w) count += count_bits(of(expert)[w]);
    return count;
  }
};

/// starts[e] = the place of expert e's first choice. A barrier follows.
__device__ inline void start_experts(const PlaceParams& p, const ChoiceBits& choices,
                                     ScanShared<std::int32_t>& scan, std::int32_t* starts) {
  constexpr int kMost = kMostExperts / kDispatchThreads;  // experts of a thread
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t each = (p.experts + kDispatchThreads - 1) / kDispatchThreads;
  std::int32_t counts[kMost], sum = 0, total = 0;
  LATHE_UNROLL
  for (int i = 0; i < kMost; ++i) {
    const std::int32_t expert = thread * each + i;
    counts[i] = i < each && expert < p.experts ? choices.count(expert) : 0;
    sum += counts[i];
  }
  std::int32_t before = block_prefix(sum, scan, total);
  LATHE_UNROLL
  for (int i = 0; i < kMost; ++i) {
    const std::int32_t expert = thread * each + i;
    if (i < each && expert < p.experts) starts[expert] = before;
    before += counts[i];
  }
  sync_block();
}

struct alignas(16) ChosenIds {
  std::int32_t v[kDispatchChoices];
};

/// Choices that are few enough to be placed by comparing each with all others.
inline constexpr std::int32_t kComparedChoices = 64;

/// Places of at most kComparedChoices choices. ids[count] to the next multiple of 4 are past the
/// last expert.
__device__ inline void compare_choices(const PlaceParams& p, const std::int32_t* ids,
                                       std::int32_t count, bool first, std::int16_t* row_of) {
  // Choices of experts below `expert`, and of it before choice `at`.
  const auto before = [&](std::int32_t expert, std::int32_t at) {
    std::int32_t sum = 0;
    LATHE_UNROLL_BY(4)
    for (std::int32_t i = 0; i < count; i += 4) {
      const int4 v = *reinterpret_cast<const int4*>(ids + i);
      const std::int32_t each[4] = {v.x, v.y, v.z, v.w};
      LATHE_UNROLL
      for (int j = 0; j < 4; ++j) {
        sum += each[j] < expert || (each[j] == expert && i + j < at) ? 1 : 0;
      }
    }
    return sum;
  };
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  if (thread < count) {
    const std::int32_t place = before(ids[thread], thread), row = thread / p.top_k;
    row_of[place] = static_cast<std::int16_t>(row);
    if (first) {
      p.places[thread] = place;
      if (p.rows != nullptr) p.rows[place] = row;
    }
  }
  if (!first) return;
  for (std::int32_t e = thread; e <= p.experts; e += kDispatchThreads) p.offsets[e] = before(e, 0);
}

/// Places of any number of choices.
__device__ inline void place_choices(const PlaceParams& p, const std::int32_t* ids,
                                     std::int32_t count, bool first, const ChoiceBits& choices,
                                     ScanShared<std::int32_t>& scan, std::int16_t* row_of) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  auto* const starts = reinterpret_cast<std::int32_t*>(choices.bits) + p.experts * choices.stride;
  for (std::int32_t c = thread; c < count; c += kDispatchThreads) choices.add(ids[c], c);
  sync_block();
  start_experts(p, choices, scan, starts);
  for (std::int32_t c = thread; c < count; c += kDispatchThreads) {
    const std::int32_t place = starts[ids[c]] + choices.before(ids[c], c);
    const std::int32_t row = c / p.top_k;
    row_of[place] = static_cast<std::int16_t>(row);
    if (!first) continue;
    p.places[c] = place;
    if (p.rows != nullptr) p.rows[place] = row;
  }
  if (!first) return;
  for (std::int32_t e = thread; e <= p.experts; e += kDispatchThreads) {
    p.offsets[e] = e < p.experts ? starts[e] : count;
  }
}

/// Copies the block's parts of all places' rows, a warp for each kGatherPart words.
__device__ inline void gather_places(const DispatchParams& p, const std::int16_t* row_of) {
  constexpr int kAhead = kGatherPart / 32;  // words in flight
  const auto words = static_cast<std::int32_t>(p.words), lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t parts = (words + kGatherPart - 1) / kGatherPart;
  const auto all = static_cast<std::int32_t>(p.place.choices) * parts;
  constexpr std::int32_t kWarps = kDispatchThreads / 32;
  const auto step = static_cast<std::int32_t>(gridDim.x) * kWarps;
  for (auto at = static_cast<std::int32_t>(blockIdx.x * kWarps + threadIdx.x / 32); at < all;
       at += step) {
    const std::int32_t place = at / parts, word = (at - place * parts) * kGatherPart + lane;
    const auto* from = reinterpret_cast<const uint4*>(p.x + row_of[place] * p.x_bytes) + word;
    auto* to = reinterpret_cast<uint4*>(p.sorted + place * p.sorted_bytes) + word;
    uint4 v[kAhead];
    LATHE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (word + 32 * i < words) v[i] = from[32 * i];
    }
    LATHE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (word + 32 * i < words) to[32 * i] = v[i];
    }
  }
}

/// kEach: at most 32 kEach experts, and each warp routes a row; 0: p.place.ids has the choices.
template <int kEach>
static __global__ void __launch_bounds__(kDispatchThreads)
    dispatch_kernel(const __grid_constant__ DispatchParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  __shared__ ScanShared<std::int32_t> scan;
  __shared__ RouteMemory<kEach == 0 ? 1 : kEach> route[kEach == 0 ? 1 : kDispatchRoutes];
  __shared__ ChosenIds chosen;
  __shared__ std::int16_t row_of[kDispatchChoices];
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto count = static_cast<std::int32_t>(p.place.choices);
  const bool compares = count <= kComparedChoices;
  const std::int32_t words = (count + 31) / 32;
  const ChoiceBits choices{reinterpret_cast<std::uint32_t*>(shared_bytes), words, words | 1};
  std::int32_t* const ids = chosen.v;
  const bool first = blockIdx.x == 0;
  for (std::int32_t i = thread; !compares && i < p.place.experts * choices.stride;
       i += kDispatchThreads) {
    choices.bits[i] = 0;
  }
  if (thread < 32) scan.warps[thread] = 0;
  if (thread < 4 && count + thread < kDispatchChoices) ids[count + thread] = INT32_MAX;
  let_next_begin();
  wait_for_previous();
  if constexpr (kEach > 0) {
    static_assert(kDispatchRoutes == kDispatchThreads / 32);
    const std::int32_t row = thread / 32;
    if (row < p.route.rows) {
      choose_experts<kEach>(p.route, row, route[row],
                            [&](std::int32_t j, std::int32_t expert, float weight) {
                              ids[row * p.place.top_k + j] = expert;
                              if (first) p.route.weights[row * p.place.top_k + j] = weight;
                            });
    }
  } else {
    for (std::int32_t c = thread; c < count; c += kDispatchThreads) ids[c] = p.place.ids[c];
  }
  sync_block();
  if (compares) {
    compare_choices(p.place, ids, count, first, row_of);
  } else {
    place_choices(p.place, ids, count, first, choices, scan, row_of);
  }
  if (p.words == 0) return;
  sync_block();
  gather_places(p, row_of);
}

}  // namespace lathe::cuda
