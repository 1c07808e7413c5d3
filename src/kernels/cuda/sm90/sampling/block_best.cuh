// Block-wide reductions of the sampler: sums in the order of ops/sampling.h, and best tokens.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/sampling/sampling.h"

namespace lathe::cuda {

inline constexpr int kSampleThreads = 512, kSampleWarps = kSampleThreads / 32;
/// Loads that a thread issues before it uses the first result.
inline constexpr int kSampleBatch = 8;
inline constexpr std::int64_t kMostSumBlocks = 512;  // of the vocabulary: 524288 tokens

/// Ranks by value, the smaller first; among equal values the lower token first.
struct Ranked {
  double value;
  std::int32_t token;
};
__device__ inline bool ranks_before(const Ranked& a, const Ranked& b) {
  return a.value < b.value || (a.value == b.value && a.token < b.token);
}

inline constexpr int kCutBins = 1024;   // of a histogram of weights
inline constexpr int kCutListed = 256;  // weights that are ranked one by one

/// Where the running sum (or count) of a histogram, from the largest weights on, reaches the
/// target.
struct Crossing {
  std::int32_t high = 0, low = 0;  // the bins between which it does
  std::uint32_t count = 0;         // weights in these bins
  double before = 0;               // count or sum of the weights above; for a sum a lower bound
  bool reached = false;
};

struct SampleShared {
  double sums[kMostSumBlocks];
  double sum;
  Ranked best[kSampleWarps];
  std::uint32_t votes[kSampleWarps];
  std::uint32_t bins[kCutBins];  // used by CutSearch
  Crossing crossing;
  std::uint32_t listed;
  double unranked[kCutListed], ranked[kCutListed];
  std::int32_t unranked_token[kCutListed], ranked_token[kCutListed];
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

/// The sum of term(i, values[i]) for i below padded_vocab(vocab), in the order of ops/sampling.h: a
/// warp per block of kSumBlock ids.
template <class Term>
__device__ inline double sum_in_order(const double* values, std::int64_t vocab, SampleShared& s,
                                      const Term& term) {
  static_assert(kSumLanes == 32);
  const std::int64_t blocks = padded_vocab(vocab) / kSumBlock;
  for (std::int64_t b = threadIdx.x / 32; b < blocks; b += kSampleWarps) {
    double lane = 0;
    const std::int64_t first = b * kSumBlock + threadIdx.x % 32;
    for (std::int64_t i = first; i < (b + 1) * kSumBlock; i += kSampleBatch * kSumLanes) {
      double w[kSampleBatch];
      LATHE_UNROLL
      for (int j = 0; j < kSampleBatch; ++j) w[j] = values[i + j * kSumLanes];
      LATHE_UNROLL
      for (int j = 0; j < kSampleBatch; ++j) lane += term(i + j * kSumLanes, w[j]);
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

/// Calls visit(i, values[i]) for this thread's i below padded_vocab(vocab), in ascending order.
template <class Visit>
__device__ inline void for_values(const double* values, std::int64_t vocab, const Visit& visit) {
  static_assert(kSumBlock % kSampleThreads == 0);
  const std::int64_t end = padded_vocab(vocab);
  for (std::int64_t i = threadIdx.x; i < end; i += kSampleBatch * kSampleThreads) {
    double w[kSampleBatch];
    LATHE_UNROLL
    for (int j = 0; j < kSampleBatch; ++j) {
      const std::int64_t at = i + j * kSampleThreads;
      w[j] = at < end ? values[at] : 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kSampleBatch; ++j) {
      if (i + j * kSampleThreads < end) visit(i + j * kSampleThreads, w[j]);
    }
  }
}

}  // namespace lathe::cuda
