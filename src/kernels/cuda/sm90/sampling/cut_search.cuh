// Finds where top-k, top-p and min-p cut a row's weights. A search bit by bit would read the
// vocabulary some eighty times. Instead, histograms narrow the cut to a few hundred weights,
// usually in two passes. These are ranked in shared memory, and exact sums are computed only at the
// two or three of them that matter.
#pragma once

#include "kernels/cuda/sm90/sampling/sample_team.cuh"
#include "kernels/sampling_math.h"

namespace lathe::cuda {

/// The last token kept. Larger weights rank first, among equal ones the lower token.
struct ProbCut {
  double prob = 0;
  std::int32_t token = INT32_MAX;
};
__device__ inline bool kept(double w, std::int64_t token, const ProbCut& cut) {
  return w > 0 && (w > cut.prob || (w == cut.prob && token <= cut.token));
}

/// Bits of a weight, which order as the weights do.
using Key = std::uint64_t;
__device__ inline Key key_of(double w) { return sampling::bits_of_f64(w); }
__device__ inline double weight_of(Key key) { return sampling::f64_of_bits(key); }

/// A team's search among a row's weights, [padded_vocab(vocab)], each at most 1. All threads make
/// the same calls and get the same results. A block reads only the weights of its own tokens.
class CutSearch {
 public:
  __device__ CutSearch(const double* values, std::int64_t vocab, SampleTeam& team)
      : values_(values), vocab_(vocab), team_(team), s_(team.s) {}

  /// The sum of the kept weights, in the order of ops/sampling.h.
  __device__ double sum_kept(const ProbCut& cut) const {
    return sum_in_order(values_, team_,
                        [&](std::int64_t i, double w) { return kept(w, i, cut) ? w : 0; });
  }
  /// Keeps the first k of what `from` keeps, or all if there are fewer.
  __device__ ProbCut first(const ProbCut& from, std::int32_t k) const {
    return find<false>(from, static_cast<double>(k));
  }
  /// Keeps the fewest first tokens of `from` that sum to `share`. Precondition: all of them do.
  __device__ ProbCut reaching(const ProbCut& from, double share) const {
    return find<true>(from, share);
  }

 private:
  // Relative bound, with a margin, on how much the order affects a sum of up to 2^19 weights.
  static constexpr double kAnyOrder = 0x1p-30;
  // Smallest weight of the first histogram, with 16 bins per octave. If weights from there on do
  // not reach the target, the search starts again from the smallest kept weight.
  static constexpr double kFirstLeast = 0x1p-63;

  template <bool kSums>
  __device__ ProbCut find(const ProbCut& from, double wanted) const {
    const Key least = from.prob > 0 ? key_of(from.prob) : 1;
    Key low = key_of(kFirstLeast), high = key_of(1.0);
    if (low < least) low = least;
    double above = 0;  // count or sum of the weights above `high`
    bool narrowed = false, shrinks = true;
    while (shrinks) {
      const int shift = shift_of(high - low);
      count_bins(from, low, high, shift);
      const Crossing at = cross<kSums>(low, shift, above, wanted);
      if (!at.reached && !narrowed && low != least) {
        low = least;
        continue;
      }
      // A sum over all weights may miss the target by rounding; then the cut is in the last bin.
      if (!at.reached && !kSums) return from;
      narrowed = true;
      const Key high_before = high, low_before = low;
      const Key end = low + (Key{static_cast<std::uint32_t>(at.high) + 1} << shift) - 1;
      if (end < high) high = end;
      low += Key{static_cast<std::uint32_t>(at.low)} << shift;
      if (at.count <= kCutListed) return ranked<kSums>(from, low, high, at, wanted);
      shrinks = high - low < (high_before - low_before) / 4;
      above = kSums && shrinks ? sum_kept({weight_of(high), -1}) : at.before;
    }
    return bisect<kSums>(from, low, high, wanted);
  }

  // The smallest shift with which kCutBins bins of 2^shift keys cover the span.
  __device__ static int shift_of(Key span) {
    int shift = 0;
    while (span >> shift >= kCutBins) ++shift;
    return shift;
  }
  // Where a bin is in memory: a lane's 32 bins are 32 apart, so that lanes read different banks.
  __device__ static int place_of_bin(int bin) { return bin % 32 * 32 + bin / 32; }

  __device__ void count_bins(const ProbCut& from, Key low, Key high, int shift) const {
    const int slot = team_.next_slot();
    const auto thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kCutBins; i += kSampleThreads) s_.bins[slot][i] = 0;
    sync_block();
    for_values(values_, team_, [&](std::int64_t i, double w) {
      const Key key = key_of(w);
      if (!kept(w, i, from) || key < low || key > high) return;
      atomicAdd(&s_.bins[slot][place_of_bin(static_cast<int>((key - low) >> shift))], 1u);
    });
    team_.sync();
    for (int i = thread; i < kCutBins; i += kSampleThreads) {
      std::uint32_t count = 0;
      LATHE_UNROLL  // so that the loads overlap
          for (int b = 0; b < kMostTeamBlocks; ++b) {
        if (b < team_.size) count += team_.of(b).bins[slot][i];
      }
      s_.all_bins[i] = count;
    }
    sync_block();
  }

  // Bounds the sum of a bin's weights from both sides, by the bin's edges.
  template <bool kSums>
  __device__ static void add_bin(Key low, int shift, int bin, std::uint32_t count, double& least,
                                 double& most) {
    const double n = count;
    least += kSums ? n * weight_of(low + (Key{static_cast<std::uint32_t>(bin)} << shift)) : n;
    most += kSums ? n * weight_of(low + (Key{static_cast<std::uint32_t>(bin) + 1} << shift)) : n;
  }

  // Runs in each block's first warp. A lane handles 32 bins, the first lane the highest.
  template <bool kSums>
  __device__ Crossing cross(Key low, int shift, double above, double wanted) const {
    if (threadIdx.x < 32) {
      const std::uint32_t lane = threadIdx.x;
      const int top = kCutBins - 1 - 32 * static_cast<int>(lane);
      const double slack = kSums ? wanted * kAnyOrder : 0;
      std::uint32_t count = 0;
      double least = 0, most = 0;
      for (int bin = top; bin > top - 32; --bin) {
        const std::uint32_t n = s_.all_bins[place_of_bin(bin)];
        count += n;
        add_bin<kSums>(low, shift, bin, n, least, most);
      }
      for (std::uint32_t d = 1; d < 32; d *= 2) {
        const std::uint32_t from = lane >= d ? lane - d : lane;
        const std::uint32_t c = shuffle(count, from);
        const double l = shuffle(least, from), m = shuffle(most, from);
        if (lane >= d) count += c, least += l, most += m;
      }
      const std::uint32_t all = shuffle(count, 31);
      // Totals before this lane's bins.
      const std::uint32_t neighbour = lane > 0 ? lane - 1 : 0;
      count = shuffle(count, neighbour);
      if (lane == 0) count = 0;
      least = shuffle(least, neighbour);
      most = shuffle(most, neighbour);
      least = above + (lane > 0 ? least : 0);
      most = above + (lane > 0 ? most : 0);
      // The bins where the bounds of the running sum pass the target, and the totals before them.
      int high = -1, reached = -1;
      std::uint32_t before = 0, through = 0;
      double least_before = 0;
      for (int bin = top; bin > top - 32; --bin) {
        const std::uint32_t n = s_.all_bins[place_of_bin(bin)];
        if (high < 0) before = count, least_before = least;
        count += n;
        add_bin<kSums>(low, shift, bin, n, least, most);
        if (high < 0 && n > 0 && most >= wanted - slack) high = bin;
        if (reached < 0 && least >= wanted + slack) reached = bin, through = count;
      }
      const std::uint32_t highs = warp_ballot(high >= 0), lows = warp_ballot(reached >= 0);
      const std::uint32_t first = lane_of_first(highs), last = lane_of_first(lows);
      Crossing out;
      out.reached = highs != 0 && lows != 0;
      const int all_high = shuffle(high, first);
      const std::uint32_t all_before = shuffle(before, first);
      const double all_least = shuffle(least_before, first);
      const int all_low = shuffle(reached, last);
      const std::uint32_t all_through = shuffle(through, last);
      out.high = highs != 0 ? all_high : kCutBins - 1;
      out.before = kSums ? all_least : above + all_before;
      out.low = lows != 0 ? all_low : 0;
      out.count = (lows != 0 ? all_through : all) - (highs != 0 ? all_before : 0);
      if (lane == 0) s_.crossing = out;
    }
    sync_block();
    const Crossing out = s_.crossing;
    sync_block();
    return out;
  }
  __device__ static std::uint32_t lane_of_first(std::uint32_t ballot) {
    std::uint32_t lane = 0;
    while (lane < 31 && (ballot >> lane & 1u) == 0) ++lane;
    return lane;
  }

  // Ranks the at.count weights from low to high, then finds the last one to keep.
  template <bool kSums>
  __device__ ProbCut ranked(const ProbCut& from, Key low, Key high, const Crossing& at,
                            double wanted) const {
    if (threadIdx.x == 0) s_.listed = 0;
    sync_block();
    for_values(values_, team_, [&](std::int64_t i, double w) {
      const Key key = key_of(w);
      if (!kept(w, i, from) || key < low || key > high) return;
      const std::uint32_t place = atomicAdd(&s_.listed, 1u);
      s_.own[place] = w;
      s_.own_token[place] = static_cast<std::int32_t>(i);
    });
    team_.sync();
    gather();
    const auto count = static_cast<int>(at.count);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kSampleThreads) {
      const double w = s_.unranked[i];
      const std::int32_t token = s_.unranked_token[i];
      int rank = 0;
      for (int j = 0; j < count; ++j) {
        const double other = s_.unranked[j];
        rank += other > w || (other == w && s_.unranked_token[j] < token) ? 1 : 0;
      }
      s_.ranked[rank] = w;
      s_.ranked_token[rank] = token;
    }
    sync_block();
    const int last =
        kSums ? last_of_sum(count, at.before, wanted) : static_cast<int>(wanted - at.before) - 1;
    const ProbCut out{s_.ranked[last], s_.ranked_token[last]};
    sync_block();
    return out;
  }

  // Copies all blocks' lists. A block lists again only after another exchange.
  __device__ void gather() const {
    std::uint32_t at = 0;
    for (int b = 0; b < team_.size; ++b) {
      const SampleShared& other = team_.of(b);
      const std::uint32_t count = other.listed;
      for (std::uint32_t i = threadIdx.x; i < count; i += kSampleThreads) {
        s_.unranked[at + i] = other.own[i];
        s_.unranked_token[at + i] = other.own_token[i];
      }
      at += count;
    }
    sync_block();
  }

  // The first weight where the sum reaches `wanted`; the last weight does. `before` only guides the
  // search.
  __device__ int last_of_sum(int count, double before, double wanted) const {
    int below = -1, last = count - 1;
    int guess = 0;
    for (double sum = before; guess < last; ++guess) {
      sum += s_.ranked[guess];
      if (sum >= wanted) break;
    }
    for (int step = 0; last - below > 1; ++step) {
      int middle = below + (last - below) / 2;
      if (step < 6) middle = guess <= below ? below + 1 : guess >= last ? last - 1 : guess;
      double sum = sum_kept({s_.ranked[middle], s_.ranked_token[middle]});
      guess = middle;
      if (sum >= wanted) {
        last = middle;
        while (guess > below && sum - s_.ranked[guess] >= wanted) sum -= s_.ranked[guess--];
        if (guess == middle) --guess;
      } else {
        below = middle;
        for (++guess; guess < last && sum + s_.ranked[guess] < wanted; ++guess) {
          sum += s_.ranked[guess];
        }
      }
    }
    return last;
  }

  // Searches the bits of the weights from low to high, then the tokens with equal weights: for
  // hundreds of equal weights, or weights so close together that sums cannot separate them.
  template <bool kSums>
  __device__ ProbCut bisect(const ProbCut& from, Key low, Key high, double wanted) const {
    const auto enough = [&](const ProbCut& cut) {
      if (kSums) return sum_kept(cut) >= wanted;
      return sum_in_order(values_, team_, [&](std::int64_t i, double w) {
               return kept(w, i, cut) ? 1.0 : 0.0;  // integers: exact
             }) >= wanted;
    };
    for (++high; high - low > 1;) {
      const Key middle = low + (high - low) / 2;
      (enough({weight_of(middle), INT32_MAX}) ? low : high) = middle;
    }
    const double prob = weight_of(low);
    std::int64_t below = -1;  // tokens up to this one are not enough
    std::int64_t last = prob == from.prob && from.token < vocab_ ? from.token : vocab_ - 1;
    while (last - below > 1) {
      const std::int64_t middle = below + (last - below) / 2;
      (enough({prob, static_cast<std::int32_t>(middle)}) ? last : below) = middle;
    }
    return {prob, static_cast<std::int32_t>(last)};
  }

  const double* const values_;
  const std::int64_t vocab_;
  SampleTeam& team_;
  SampleShared& s_;
};

}  // namespace lathe::cuda
