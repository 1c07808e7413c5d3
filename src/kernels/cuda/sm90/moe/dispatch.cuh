// Routing, placing and gathering of few rows in one launch. Every block computes all choices and
// places, which is faster than waiting for another launch's, and copies its part of the rows, or
// quantizes it.
#pragma once

#include "kernels/cuda/common/quantize_block.cuh"
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
                                       std::int32_t count, bool first, std::int16_t* place_of) {
  // Choices of experts below `expert`, and of it before choice `at`.
  const auto before = [&](std::int32_t expert, std::int32_t at) {
    std::int32_t sum = 0;
    LATHE_UNROLL_BY(2)
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
    const std::int32_t place = before(ids[thread], thread);
    place_of[thread] = static_cast<std::int16_t>(place);
    if (first) {
      p.places[thread] = place;
      if (p.rows != nullptr) p.rows[place] = thread / p.top_k;
    }
  }
  if (!first) return;
  for (std::int32_t e = thread; e <= p.experts; e += kDispatchThreads) p.offsets[e] = before(e, 0);
}

/// Places of any number of choices.
__device__ inline void place_choices(const PlaceParams& p, const std::int32_t* ids,
                                     std::int32_t count, bool first, const ChoiceBits& choices,
                                     ScanShared<std::int32_t>& scan, std::int16_t* place_of) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  auto* const starts = reinterpret_cast<std::int32_t*>(choices.bits) + p.experts * choices.stride;
  for (std::int32_t c = thread; c < count; c += kDispatchThreads) choices.add(ids[c], c);
  sync_block();
  start_experts(p, choices, scan, starts);
  for (std::int32_t c = thread; c < count; c += kDispatchThreads) {
    const std::int32_t place = starts[ids[c]] + choices.before(ids[c], c);
    place_of[c] = static_cast<std::int16_t>(place);
    if (!first) continue;
    p.places[c] = place;
    if (p.rows != nullptr) p.rows[place] = c / p.top_k;
  }
  if (!first) return;
  for (std::int32_t e = thread; e <= p.experts; e += kDispatchThreads) {
    p.offsets[e] = e < p.experts ? starts[e] : count;
  }
}

/// The block's share of `count` items, a warp each.
template <class Body>
__device__ __forceinline__ void for_items_of_block(std::int32_t count, const Body& body) {
  constexpr std::int32_t kWarps = kDispatchThreads / 32;
  const auto step = static_cast<std::int32_t>(gridDim.x) * kWarps;
  LATHE_ROLLED
  for (auto at = static_cast<std::int32_t>(blockIdx.x * kWarps + threadIdx.x / 32); at < count;
       at += step) {
    body(at);
  }
}

/// Copies the block's parts of all choices' rows, a warp for each kGatherPart words.
__device__ inline void gather_rows_of_choices(const DispatchParams& p,
                                              const std::int16_t* place_of) {
  constexpr int kAhead = kGatherPart / 32;  // words in flight
  const auto words = static_cast<std::int32_t>(p.words), lane = static_cast<int>(threadIdx.x % 32);
  const std::int32_t parts = (words + kGatherPart - 1) / kGatherPart;
  for_items_of_block(static_cast<std::int32_t>(p.place.choices) * parts, [&](std::int32_t at) {
    const std::int32_t choice = at / parts, word = (at - choice * parts) * kGatherPart + lane;
    const std::int32_t row = choice / p.place.top_k;
    const auto* from = reinterpret_cast<const uint4*>(p.x + row * p.x_bytes) + word;
    auto* to = reinterpret_cast<uint4*>(p.sorted + place_of[choice] * p.sorted_bytes) + word;
    uint4 v[kAhead];
    LATHE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (word + 32 * i < words) v[i] = from[32 * i];
    }
    LATHE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (word + 32 * i < words) to[32 * i] = v[i];
    }
  });
}

/// Quantizes the block's part of the rows, a warp for 128 columns of one, for all its choices.
__device__ inline void quantize_rows_of_choices(const DispatchParams& p,
                                                const std::int16_t* place_of) {
  const DispatchCodes& to = p.codes;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto cols = static_cast<std::int32_t>(to.cols), blocks = (cols + 127) / 128;
  const std::int32_t top_k = p.place.top_k;
  const auto rows = static_cast<std::int32_t>(p.place.choices) / top_k;
  for_items_of_block(rows * blocks, [&](std::int32_t at) {
    const std::int32_t row = at / blocks, block = at - row * blocks, col = 128 * block + 4 * lane;
    uint2 pairs = {};
    if (col < cols) pairs = *reinterpret_cast<const uint2*>(p.x + row * p.x_bytes + 2 * col);
    const float v[4] = {bits_to_float(pairs.x << 16), bits_to_float(pairs.x & 0xffff0000u),
                        bits_to_float(pairs.y << 16), bits_to_float(pairs.y & 0xffff0000u)};
    const QuantizedFour four = quantize_block(v, to.power_of_two);
    LATHE_ROLLED
    for (std::int32_t i = to.own < 0 ? 0 : -1; i < top_k; ++i) {
      const std::int64_t place = i < 0 ? to.own + row : place_of[row * top_k + i];
      if (col < cols) {
        *reinterpret_cast<std::uint32_t*>(to.codes + place * cols + col) = four.codes;
      }
      if (lane == 0) to.scales[block * to.scale_stride + place] = four.scale;
    }
  });
}

/// Chooses the rows' experts. All warps compute scores, and then a warp for each row chooses.
template <int kEach>
__device__ void route_rows(const DispatchParams& p, RouteMemory<kEach>* memory, bool first,
                           std::int32_t* ids) {
  constexpr std::int32_t kWarps = kDispatchThreads / 32;
  static_assert(kDispatchRoutes == kWarps);
  const auto rows = static_cast<std::int32_t>(p.route.rows);
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const std::int32_t row = warp % rows, part = warp / rows, warps = kWarps / rows;
  const std::int32_t thread = 32 * part + static_cast<std::int32_t>(threadIdx.x % 32);
  RouteMemory<kEach>& m = memory[row];
  if (part < warps) load_bias(p.route, m, thread, 32 * warps);
  wait_for_previous();
  if (part < warps) load_scores(p.route, row, m, thread, 32 * warps);
  sync_block();
  if (warp >= rows) return;
  choose_experts(p.route, row, m, [&](std::int32_t j, std::int32_t expert, float weight) {
    ids[row * p.place.top_k + j] = expert;
    if (first) p.route.weights[row * p.place.top_k + j] = weight;
  });
}

/// kEach: at most 32 kEach experts; 0: p.place.ids has the choices.
template <int kEach>
static __global__ void __launch_bounds__(kDispatchThreads, 1)
    dispatch_kernel(const __grid_constant__ DispatchParams p) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  __shared__ ScanShared<std::int32_t> scan;
  __shared__ ChosenIds chosen;
  __shared__ std::int16_t place_of[kDispatchChoices];
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const auto count = static_cast<std::int32_t>(p.place.choices);
  const bool compares = count <= kComparedChoices;
  const std::int32_t words = (count + 31) / 32;
  // After the memory of routes.
  auto* bits = reinterpret_cast<std::uint32_t*>(shared_bytes);
  if constexpr (kEach > 0) bits += p.route.rows * (sizeof(RouteMemory<kEach>) / 4);
  const ChoiceBits choices{bits, words, words | 1};
  std::int32_t* const ids = chosen.v;
  const bool first = blockIdx.x == 0;
  for (std::int32_t i = thread; !compares && i < p.place.experts * choices.stride;
       i += kDispatchThreads) {
    choices.bits[i] = 0;
  }
  if (thread < 32) scan.warps[thread] = 0;
  if (thread < 4 && count + thread < kDispatchChoices) ids[count + thread] = INT32_MAX;
  let_next_begin();
  if constexpr (kEach > 0) {
    route_rows(p, reinterpret_cast<RouteMemory<kEach>*>(shared_bytes), first, ids);
  } else {
    wait_for_previous();
    for (std::int32_t c = thread; c < count; c += kDispatchThreads) ids[c] = p.place.ids[c];
  }
  sync_block();
  if (compares) {
    compare_choices(p.place, ids, count, first, place_of);
  } else {
    place_choices(p.place, ids, count, first, choices, scan, place_of);
  }
  if (p.words == 0 && p.codes.codes == nullptr) return;
  sync_block();
  if (p.words > 0) gather_rows_of_choices(p, place_of);
  if (p.codes.codes != nullptr) quantize_rows_of_choices(p, place_of);
}

}  // namespace lathe::cuda
