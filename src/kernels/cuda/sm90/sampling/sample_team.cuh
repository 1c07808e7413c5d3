// The blocks that sample a row together, and their reductions: sums in the order of ops/sampling.h,
// and best tokens.
#pragma once

#include "kernels/cuda/common/block_team.cuh"
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

/// Shared memory of a block. What other blocks read or write has two slots for successive
/// exchanges (BlockTeam::next_slot()).
struct SampleShared {
  double sums[2][kMostSumBlocks];
  double sum[2];
  Ranked best[kSampleWarps];
  Ranked best_of_block[2];
  alignas(16) std::uint32_t bins[2][kCutBins];  // of this block's weights
  std::uint32_t all_bins[kCutBins];
  Crossing crossing;
  // Weights that are ranked: this block's, all blocks', and these in order.
  std::uint32_t listed;
  double own[kCutListed], unranked[kCutListed], ranked[kCutListed];
  std::int32_t own_token[kCutListed], unranked_token[kCutListed], ranked_token[kCutListed];
};

/// A block's part in the team that samples a row: it has the tokens from first to last. All
/// threads get the same results.
class SampleTeam : public BlockTeam<SampleShared> {
 public:
  __device__ SampleTeam(unsigned char* shared, std::int64_t vocab, int blocks)
      : BlockTeam(shared, blocks), sum_blocks(padded_vocab(vocab) / kSumBlock) {
    first = sum_blocks * rank / size * kSumBlock;
    last = sum_blocks * (rank + 1) / size * kSumBlock;
    last_token = last < vocab ? last : vocab;
  }

  const std::int64_t sum_blocks;  // of the vocabulary
  std::int64_t first, last;       // of the padded vocabulary, in whole blocks of the sums
  std::int64_t last_token;        // of the vocabulary
};

/// The first of all threads' candidates.
__device__ inline Ranked first_ranked(Ranked mine, SampleTeam& team) {
  SampleShared& s = team.s;
  for (int d = 16; d > 0; d /= 2) {
    const Ranked other{shuffle_xor(mine.value, d), shuffle_xor(mine.token, d)};
    if (ranks_before(other, mine)) mine = other;
  }
  if (threadIdx.x % 32 == 0) s.best[threadIdx.x / 32] = mine;
  sync_block();
  const int slot = team.next_slot();
  if (threadIdx.x == 0) {
    Ranked best = s.best[0];
    for (int w = 1; w < kSampleWarps; ++w) {
      if (ranks_before(s.best[w], best)) best = s.best[w];
    }
    s.best_of_block[slot] = best;
  }
  team.sync();
  Ranked best = s.best_of_block[slot];
  LATHE_UNROLL  // so that the loads overlap
      for (int b = 0; b < kMostTeamBlocks; ++b) {
    if (b >= team.size) continue;
    const Ranked other = team.of(b).best_of_block[slot];
    if (ranks_before(other, best)) best = other;
  }
  return best;
}

/// The sum of term(i, values[i]) for all i of the padded vocabulary, in the order of
/// ops/sampling.h: a warp per block of kSumBlock ids.
template <class Term>
__device__ inline double sum_in_order(const double* values, SampleTeam& team, const Term& term) {
  static_assert(kSumLanes == 32);
  const int slot = team.next_slot();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (std::int64_t b = team.first / kSumBlock + threadIdx.x / 32; b < team.last / kSumBlock;
       b += kSampleWarps) {
    double sum = 0;
    const std::int64_t first = b * kSumBlock + lane;
    for (std::int64_t i = first; i < (b + 1) * kSumBlock; i += kSampleBatch * kSumLanes) {
      double w[kSampleBatch];
      LATHE_UNROLL
      for (int j = 0; j < kSampleBatch; ++j) w[j] = values[i + j * kSumLanes];
      LATHE_UNROLL
      for (int j = 0; j < kSampleBatch; ++j) sum += term(i + j * kSumLanes, w[j]);
    }
    for (int d = kSumLanes / 2; d > 0; d /= 2) sum += shuffle_xor(sum, d);
    if (lane < team.size) team.of(lane).sums[slot][b] = sum;
  }
  team.sync();
  if (threadIdx.x == 0) {
    double sum = 0;
    LATHE_UNROLL_BY(8)
    for (std::int64_t b = 0; b < team.sum_blocks; ++b) sum += team.s.sums[slot][b];
    team.s.sum[slot] = sum;
  }
  sync_block();
  return team.s.sum[slot];
}

/// Calls visit(i, values[i]) for this thread's ids of the padded vocabulary, in ascending order.
template <class Visit>
__device__ inline void for_values(const double* values, const SampleTeam& team,
                                  const Visit& visit) {
  static_assert(kSumBlock % kSampleThreads == 0);
  const std::int64_t end = team.last;
  for (std::int64_t i = team.first + threadIdx.x; i < end; i += kSampleBatch * kSampleThreads) {
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
