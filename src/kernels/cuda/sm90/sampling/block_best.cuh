// Block-wide reductions of the sampler: sums in the rule's order, and best tokens.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/sampling/sampling.h"

namespace lathe::cuda {

inline constexpr int kSampleThreads = 256, kSampleWarps = kSampleThreads / 32;
inline constexpr std::int64_t kMostSumBlocks = 512;  // of the vocabulary: 524288 tokens

/// What ranks: the smaller value first, and of equal ones the lower token.
struct Ranked {
  double value;
  std::int32_t token;
};
__device__ inline bool ranks_before(const Ranked& a, const Ranked& b) {
  return a.value < b.value || (a.value == b.value && a.token < b.token);
}

struct SampleShared {
  double sums[kMostSumBlocks];
  double sum;
  Ranked best[kSampleWarps];
  std::uint32_t votes[kSampleWarps];
};

/// The first of all threads' candidates.
__device__ inline Ranked first_ranked(Ranked mine, SampleShared& s) {
  for (int d = 16; d > 0; d /= 2) {
    const Ranked other{shuffle_xor(mine.value, d), shuffle_xor(mine.token, d)};
    if (ranks_before(other, mine)) mine = other;
  }
  if (threadIdx.x % 32 == 0) s.best[threadIdx.x / 32] = mine;
  sync_block();
  Ranked best = s.best[0];
  for (int w = 1; w < kSampleWarps; ++w) {
    if (ranks_before(s.best[w], best)) best = s.best[w];
  }
  sync_block();
  return best;
}

__device__ inline bool any_of_block(bool mine, SampleShared& s) {
  const std::uint32_t lanes = warp_ballot(mine);
  if (threadIdx.x % 32 == 0) s.votes[threadIdx.x / 32] = lanes;
  sync_block();
  std::uint32_t any = 0;
  for (const std::uint32_t v : s.votes) any |= v;
  sync_block();
  return any != 0;
}

/// The sum of term(i) for i below padded_vocab(vocab), in the order of ops/sampling.h: a warp per
/// block of kSumBlock ids.
template <class Term>
__device__ inline double sum_in_order(std::int64_t vocab, SampleShared& s, const Term& term) {
  const std::int64_t blocks = padded_vocab(vocab) / kSumBlock;
  for (std::int64_t b = threadIdx.x / 32; b < blocks; b += kSampleWarps) {
    double lane = 0;
    for (std::int64_t i = threadIdx.x % 32; i < kSumBlock; i += kSumLanes) {
      lane += term(b * kSumBlock + i);
    }
    for (int d = kSumLanes / 2; d > 0; d /= 2) lane += shuffle_xor(lane, d);
    if (threadIdx.x % 32 == 0) s.sums[b] = lane;
  }
  sync_block();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += s.sums[b];
    s.sum = sum;
  }
  sync_block();
  const double sum = s.sum;
  sync_block();
  return sum;
}

}  // namespace lathe::cuda
