// Chooses a row's experts. Threads of one or several warps load the logits and compute scores; then
// one warp chooses, whose lane i has experts i, i + 32, .. in registers, so that a choice costs two
// reductions over the warp.
//
// A decode step routes few rows, and most of its time is latency: of loads, which come at once, and
// of instructions, each line of which comes from L2 when it runs first. So what is long, a score or
// a weight, is in loops that are not unrolled.
#pragma once

#include <cmath>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/moe/moe.h"

namespace lathe::cuda {

/// Words compare as unsigned integers like the values: NaN counts as -inf, -0 as 0. Never 0.
__device__ inline std::uint32_t order_of(float v) {
  const std::uint32_t bits = v != v ? 0xff800000u : float_to_bits(v + 0.f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/// The candidates of a warp: numbers lane, lane + 32, .. of each lane.
template <int kEach>
struct Candidates {
  std::uint32_t order[kEach];  // order_of(value); 0: taken, or past the last
  std::uint32_t taken = 0;     // bit i: the lane's candidate i

  /// Marks the highest one as taken, or the first among equals, and returns its number.
  __device__ __forceinline__ std::int32_t take() {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    std::uint32_t most = 0;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) most = order[i] > most ? order[i] : most;
    const std::uint32_t best = warp_max(most);
    std::uint32_t number = ~0u;
    LATHE_UNROLL
    for (int i = kEach - 1; i >= 0; --i) {
      number = order[i] == best ? static_cast<std::uint32_t>(32 * i + lane) : number;
    }
    number = ~warp_max(~number);
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const bool mine = number == static_cast<std::uint32_t>(32 * i + lane);
      order[i] = mine ? 0 : order[i];
      taken |= mine ? 1u << i : 0u;
    }
    return static_cast<std::int32_t>(number);
  }
};

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

/// Values of 32 kEach experts in shared memory. After every 32 experts four words are free, so that
/// lanes that read groups of 32 experts use different banks.
template <int kEach>
struct alignas(16) ExpertFloats {
  float v[32 * kEach * 9 / 8];
  __device__ float& at(std::int32_t i) { return v[i + i / 32 * 4]; }
};

/// Shared memory of a row.
template <int kEach>
struct RouteMemory {
  ExpertFloats<kEach> scores;       // first the logits
  ExpertFloats<kEach> bias;         // -inf: not in the best groups
  std::int32_t chosen[32 * kEach];  // first the groups that are kept

  /// What the router compares.
  __device__ float choice(std::int32_t e) { return scores.at(e) + bias.at(e); }
};

/// The sum of all experts' values, one after another as on the CPU.
template <int kEach>
__device__ float sum_in_order(ExpertFloats<kEach>& values, std::int32_t experts) {
  float sum = 0;
  std::int32_t i = 0;
  LATHE_UNROLL_BY(8)
  for (; i + 4 <= experts; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(&values.at(i));
    sum = (((sum + v.x) + v.y) + v.z) + v.w;
  }
  for (; i < experts; ++i) sum += values.at(i);
  return sum;
}

/// The two best of some values; NaN counts as -inf.
struct TwoBest {
  float best = -INFINITY, second = -INFINITY;

  __device__ void see(float v) {
    const float low = v > best ? best : v;  // v, if it is NaN
    best = v > best ? v : best;
    second = low > second ? low : second;
  }
  __device__ void join(const TwoBest& other) {
    see(other.best);
    see(other.second);
  }
};

/// Sets the bias of experts that are not in the best groups to -inf. A group is ranked by the sum
/// of its two best values, or by the best alone.
template <int kEach>
__device__ void keep_best_groups(const RouteParams& p, RouteMemory<kEach>& m) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t size = p.experts / p.groups;
  // Each group has as many lanes as there are for 2, 4, .. groups.
  std::int32_t lanes = 1;
  while (2 * lanes * p.groups <= 32) lanes *= 2;
  auto* const scores = reinterpret_cast<float*>(m.chosen);
  const std::int32_t step = 32 / lanes;
  LATHE_ROLLED
  for (std::int32_t first = 0; first < p.groups; first += step) {
    const std::int32_t group = first + lane / lanes;
    TwoBest two;
    if (group < p.groups) {
      LATHE_UNROLL_BY(2)
      for (std::int32_t i = lane % lanes; i < size; i += lanes) {
        two.see(m.choice(group * size + i));
      }
    }
    for (std::int32_t d = 1; d < lanes; d *= 2) {
      two.join({shuffle_xor(two.best, d), shuffle_xor(two.second, d)});
    }
    if (group < p.groups && lane % lanes == 0) {
      scores[group] = p.group_by_best || size == 1 ? two.best : two.best + two.second;
    }
  }
  sync_warp();
  Candidates<kEach> groups;
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    groups.order[i] = 32 * i + lane < p.groups ? order_of(scores[32 * i + lane]) : 0;
  }
  LATHE_ROLLED
  for (std::int32_t i = 0; i < p.top_groups; ++i) groups.take();
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (32 * i >= p.groups) break;
    std::uint32_t dropped = warp_ballot((groups.taken >> i & 1u) == 0 && 32 * i + lane < p.groups);
    while (dropped != 0) {
      const std::int32_t group = 32 * i + count_bits(~dropped & (dropped - 1));
      dropped &= dropped - 1;
      for (std::int32_t e = lane; e < size; e += 32) m.bias.at(group * size + e) = -INFINITY;
    }
  }
  sync_warp();
}

/// Loads the bias of a row's router. `thread` of `threads`, each with kEach experts at most.
template <int kEach>
__device__ void load_bias(const RouteParams& p, RouteMemory<kEach>& m, std::int32_t thread,
                          std::int32_t threads) {
  float v[kEach];
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t e = thread + i * threads;
    v[i] = p.bias != nullptr && e < p.experts ? p.bias[e] : 0;
  }
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t e = thread + i * threads;
    if (e < p.experts) m.bias.at(e) = v[i];
  }
}

/// The scores of a row; for the softmax they are logits yet, as that needs all of them.
template <int kEach>
__device__ void load_scores(const RouteParams& p, std::int64_t row, RouteMemory<kEach>& m,
                            std::int32_t thread, std::int32_t threads) {
  const float* const logits = p.logits + row * p.logits_stride;
  float v[kEach];
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t e = thread + i * threads;
    v[i] = e < p.experts ? logits[e] : 0;
  }
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t e = thread + i * threads;
    if (e < p.experts) m.scores.at(e) = v[i];
  }
  if (p.scoring == RouterScoring::softmax) return;
  LATHE_ROLLED
  for (std::int32_t e = thread; e < p.experts; e += threads) {
    m.scores.at(e) = score_of(p.scoring, m.scores.at(e), 0);
  }
}

/// Logits become the softmax.
template <int kEach>
__device__ void take_softmax(std::int32_t experts, ExpertFloats<kEach>& values) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  float most = -INFINITY;
  LATHE_UNROLL_BY(4)
  for (std::int32_t e = lane; e < experts; e += 32) most = fmaxf(most, values.at(e));
  for (int d = 16; d > 0; d /= 2) most = fmaxf(most, shuffle_xor(most, d));
  LATHE_ROLLED
  for (std::int32_t e = lane; e < experts; e += 32) {
    values.at(e) = score_of(RouterScoring::softmax, values.at(e), most);
  }
  sync_warp();
  const float sum = sum_in_order(values, experts);
  sync_warp();
  LATHE_ROLLED
  for (std::int32_t e = lane; e < experts; e += 32) values.at(e) /= sum;
  sync_warp();
}

/// For a warp, after load_bias() and load_scores() of a row and a barrier. Calls put(j, expert,
/// weight) for each of the row's top_k experts, in one lane.
template <int kEach, class Put>
__device__ void choose_experts(const RouteParams& p, std::int64_t row, RouteMemory<kEach>& m,
                               const Put& put) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  if (p.scoring == RouterScoring::softmax) take_softmax(p.experts, m.scores);
  const std::int32_t* chosen = m.chosen;
  float sum = 0;
  if (p.token_experts != nullptr) {  // the token's experts from the table
    const std::int64_t token = p.tokens[row];
    chosen = p.token_experts + (token >= 0 && token < p.vocab ? token : 0) * p.top_k;
    for (std::int32_t j = 0; j < p.top_k; ++j) sum += m.scores.at(chosen[j]);
  } else {
    if (p.groups > 1) keep_best_groups(p, m);
    Candidates<kEach> all;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const std::int32_t e = 32 * i + lane;
      all.order[i] = e < p.experts ? order_of(m.choice(e)) : 0;
    }
    LATHE_ROLLED
    for (std::int32_t j = 0; j < p.top_k; ++j) sum += m.scores.at(all.take());
    // Chosen experts are in the order of their numbers.
    std::int32_t before = 0;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const bool mine = (all.taken >> i & 1u) != 0;
      const std::uint32_t lanes = warp_ballot(mine);
      if (mine) m.chosen[before + count_bits(lanes & ((1u << lane) - 1))] = 32 * i + lane;
      before += count_bits(lanes);
    }
    sync_warp();
  }
  LATHE_ROLLED
  for (std::int32_t j = lane; j < p.top_k; j += 32) {
    const std::int32_t expert = chosen[j];
    float weight = m.scores.at(expert);
    if (p.normalize) weight /= sum + 1e-20f;
    weight *= p.scale;
    if (p.expert_scale != nullptr) weight *= p.expert_scale[expert];
    put(j, expert, weight);
  }
}

}  // namespace lathe::cuda
