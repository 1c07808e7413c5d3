// Chooses a row's experts in one warp: lane i has experts i kEach to i kEach + kEach - 1 in
// registers, so that a choice costs a maximum over the warp and a ballot.
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

/// The candidates of a warp.
template <int kEach>
struct Candidates {
  std::uint32_t order[kEach];  // order_of(value); 0: taken, or past the last
  std::uint32_t taken = 0;     // bit i: the lane's candidate i

  /// Marks the highest one as taken, or the first among equals. Returns its lane; `mine` is its
  /// index there, and -1 in the other lanes.
  __device__ __forceinline__ std::uint32_t take(int& mine) {
    std::uint32_t most = 0;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) most = order[i] > most ? order[i] : most;
    const std::uint32_t best = warp_max(most);
    const std::uint32_t lanes = warp_ballot(most == best);
    const auto lane = static_cast<std::uint32_t>(count_bits(~lanes & (lanes - 1)));
    // Selections in place of branches: only one lane would take them.
    int first = 0;
    LATHE_UNROLL
    for (int i = kEach - 1; i > 0; --i) first = order[i] == best ? i : first;
    if (kEach > 1) first = order[0] == best ? 0 : first;
    mine = threadIdx.x % 32 == lane ? first : -1;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) order[i] = i == mine ? 0 : order[i];
    taken |= mine < 0 ? 0u : 1u << first;
    return lane;
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

/// Shared memory of a row: a float per expert. After every 32 experts four words are free, so that
/// lanes that read groups of 32 experts use different banks.
template <int kEach>
struct alignas(16) RouteMemory {
  float v[32 * kEach * 9 / 8];
  __device__ float& at(std::int32_t i) { return v[i + i / 32 * 4]; }
};

/// The sum of all experts' values, one after another as on the CPU.
template <int kEach>
__device__ float sum_in_order(RouteMemory<kEach>& m, std::int32_t experts) {
  float sum = 0;
  std::int32_t i = 0;
  LATHE_UNROLL_BY(8)
  for (; i + 4 <= experts; i += 4) {
    const float4 v = *reinterpret_cast<const float4*>(&m.at(i));
    sum = (((sum + v.x) + v.y) + v.z) + v.w;
  }
  for (; i < experts; ++i) sum += m.at(i);
  return sum;
}

/// The two best of some values; NaN counts as -inf.
struct TwoBest {
  float best = -INFINITY, second = -INFINITY;

  __device__ void see(float v) {
    if (v > best) {
      second = best;
      best = v;
    } else if (v > second) {
      second = v;
    }
  }
  __device__ void join(const TwoBest& other) {
    see(other.best);
    see(other.second);
  }
};

/// Which of the lane's experts, expert i of it being number lane kEach + i, are in the best groups,
/// as bits. A group is ranked by the sum of its two best values, or by the best alone.
template <int kEach>
__device__ std::uint32_t kept_by_group(const RouteParams& p, const float (&choice)[kEach],
                                       RouteMemory<kEach>& m) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t size = p.experts / p.groups, lanes = size / kEach;
  const bool even = size % kEach == 0 && (lanes & (lanes - 1)) == 0;
  // Where a group is the experts of 1, 2, 4, .. lanes, each of these has its score.
  TwoBest two;
  if (even) {
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (lane * kEach + i < p.experts) two.see(choice[i]);
    }
    for (std::int32_t d = 1; d < lanes; d *= 2) {
      two.join({shuffle_xor(two.best, d), shuffle_xor(two.second, d)});
    }
  }
  const auto score_of_group = [&](const TwoBest& t) {
    return p.group_by_best || size == 1 ? t.best : t.best + t.second;
  };
  if (even) {
    const bool exists = lane * kEach < p.experts;
    std::uint32_t order = exists ? order_of(score_of_group(two)) : 0;
    bool keeps = false;
    for (std::int32_t i = 0; i < p.top_groups; ++i) {
      const std::uint32_t best = warp_max(order);
      const std::uint32_t all = warp_ballot(order == best);
      const std::int32_t first = count_bits(~all & (all - 1));
      if (lane / lanes == first / lanes) {
        keeps = true;
        order = 0;
      }
    }
    return keeps ? ~0u : 0u;
  }
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (lane * kEach + i < p.experts) m.at(lane * kEach + i) = choice[i];
  }
  sync_warp();
  float score[kEach];
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t first = (lane * kEach + i) * size;
    TwoBest of_group;
    for (std::int32_t e = first; e < first + size && e < p.experts; ++e) of_group.see(m.at(e));
    score[i] = score_of_group(of_group);
  }
  Candidates<kEach> groups;
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    groups.order[i] = lane * kEach + i < p.groups ? order_of(score[i]) : 0;
  }
  int mine;
  for (std::int32_t i = 0; i < p.top_groups; ++i) groups.take(mine);
  sync_warp();
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t g = lane * kEach + i;
    if (g < p.groups) m.at(g) = groups.taken >> i & 1u ? 1.f : 0.f;
  }
  sync_warp();
  std::uint32_t kept = 0;
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const std::int32_t e = lane * kEach + i;
    if (e < p.experts && m.at(e / size) != 0) kept |= 1u << i;
  }
  return kept;
}

/// Calls put(j, expert, weight) for each of a row's top_k experts, in one lane of the warp.
/// kEach: at most 32 kEach experts.
template <int kEach, class Put>
__device__ void choose_experts(const RouteParams& p, std::int64_t row, RouteMemory<kEach>& m,
                               const Put& put) {
  const float* const logits = p.logits + row * p.logits_stride;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto expert = [&](int i) { return lane * kEach + i; };
  // All loads come before the first use, so that they overlap.
  float scores[kEach], bias[kEach], most = -INFINITY;
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    scores[i] = expert(i) < p.experts ? logits[expert(i)] : -INFINITY;
    bias[i] = p.bias != nullptr && expert(i) < p.experts ? p.bias[expert(i)] : 0;
  }
  if (p.scoring == RouterScoring::softmax) {
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) most = fmaxf(most, scores[i]);
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, shuffle_xor(most, d));
  }
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) scores[i] = score_of(p.scoring, scores[i], most);
  const auto share = [&](const auto& value_of) {
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (expert(i) < p.experts) m.at(expert(i)) = value_of(i);
    }
    sync_warp();
  };
  if (p.scoring == RouterScoring::softmax) {
    share([&](int i) { return scores[i]; });
    const float sum = sum_in_order(m, p.experts);
    sync_warp();
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) scores[i] /= sum;
  }
  const auto weigh = [&](std::int32_t j, std::int32_t id, float score, float sum) {
    if (p.normalize) score /= sum + 1e-20f;
    score *= p.scale;
    if (p.expert_scale != nullptr) score *= p.expert_scale[id];
    put(j, id, score);
  };
  if (p.token_experts != nullptr) {  // the token's experts from the table
    share([&](int i) { return scores[i]; });
    const std::int64_t token = p.tokens[row];
    const std::int32_t* given =
        p.token_experts + (token >= 0 && token < p.vocab ? token : 0) * p.top_k;
    float sum = 0;
    for (std::int32_t j = 0; j < p.top_k; ++j) sum += m.at(given[j]);
    for (std::int32_t j = lane; j < p.top_k; j += 32) weigh(j, given[j], m.at(given[j]), sum);
    return;
  }
  Candidates<kEach> all;
  float choice[kEach];
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) choice[i] = scores[i] + bias[i];
  if (p.groups > 1) {
    const std::uint32_t kept = kept_by_group(p, choice, m);
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if ((kept >> i & 1u) == 0) choice[i] = -INFINITY;
    }
  }
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) all.order[i] = expert(i) < p.experts ? order_of(choice[i]) : 0;
  float sum = 0;
  for (std::int32_t j = 0; j < p.top_k; ++j) {
    int mine;
    const std::uint32_t from = all.take(mine);
    float score = 0;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) score = i == mine ? scores[i] : score;
    sum += shuffle(score, from);
  }
  // Chosen experts are in the order of their numbers.
  std::int32_t before = count_bits(all.taken);
  const std::int32_t own = before;
  for (int d = 1; d < 32; d *= 2) {
    const std::int32_t other = shuffle_up(before, d);
    if (lane >= d) before += other;
  }
  before -= own;
  LATHE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (all.taken >> i & 1u) weigh(before++, expert(i), scores[i], sum);
  }
}

}  // namespace lathe::cuda
