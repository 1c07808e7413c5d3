// Bounds of a row's k-th best score, from a sample of its scores.
#pragma once

#include "kernels/cuda/common/block_team.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

/// Bins of a histogram of scores.
inline constexpr int kScoreBins = 1024;

/// What SampleBounds needs in a block's shared memory.
template <int kThreads>
struct BoundsShared {
  static constexpr int kWarps = kThreads / 32;

  alignas(16) std::uint32_t bins[2][kScoreBins];  // of samples, then of candidates
  std::uint32_t warps[2][kWarps];
  float least[kWarps], most[kWarps];
  float low, high;  // the extremes of this block's sample, which other blocks read
  // Of locate().
  std::uint32_t bin[2], before[2], count[2];
};

/// kThreads: of a block. kListed: candidates that a block has room for. Shared has BoundsShared's
/// members. All threads of the team make the same calls.
template <class Shared, int kThreads, int kListed>
class SampleBounds {
 public:
  using Team = BlockTeam<Shared>;

  __device__ SampleBounds(const SelectSlots& p, Team& team) : p_(p), team_(team), s_(team.s) {}

 protected:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kOwnBins = kScoreBins / kThreads;
  static constexpr int kMostSamples = 8;  // of a thread

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int lane() { return thread() % 32; }
  __device__ static int warp() { return thread() / 32; }
  __device__ static float not_selected() { return bits_to_float(0x7fffffffu); }
  __device__ static float infinite() { return bits_to_float(0x7f800000u); }
  __device__ static bool is_finite(float x) {
    return (float_to_bits(x) & 0x7f800000u) != 0x7f800000u;
  }
  /// Bins go down from `top`.
  __device__ static std::uint32_t bin_of(float x, float top, float per_score) {
    const float bin = fmaxf((top - x) * per_score, 0.f);
    return static_cast<std::uint32_t>(fminf(bin, kScoreBins - 1));
  }

  /// The sum of `own` over this thread and those before it in its warp.
  __device__ static std::uint32_t sum_upto(std::uint32_t own) {
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t other = shuffle_up(own, d);
      if (lane() >= d) own += other;
    }
    return own;
  }
  /// The sum of `own` over this block's threads before this one; `all`: over all of them.
  __device__ std::uint32_t sum_before(std::uint32_t own, std::uint32_t* warps,
                                      std::uint32_t& all) const {
    const std::uint32_t upto = sum_upto(own);
    if (lane() == 31) warps[warp()] = upto;
    sync_block();
    const std::uint32_t of_warp = lane() < kWarps ? warps[lane()] : 0;
    all = warp_sum(of_warp);
    return warp_sum(lane() < warp() ? of_warp : 0) + upto - own;
  }

  /// This thread's neighbouring bins, summed over the blocks.
  using OwnBins = std::uint32_t[kOwnBins];
  __device__ void sum_bins(int which, OwnBins& own) const {
    LATHE_UNROLL
    for (int i = 0; i < kOwnBins; ++i) own[i] = 0;
    LATHE_ROLLED
    for (int b = 0; b < team_.size; ++b) {
      LATHE_UNROLL
      for (int i = 0; i < kOwnBins; ++i) own[i] += team_.of(b).bins[which][thread() * kOwnBins + i];
    }
  }
  /// For i < kRanks finds the bin with the key of rank ranks[i] (from 1), into s_.bin[i],
  /// s_.before, s_.count.
  template <int kRanks>
  __device__ void locate(const OwnBins& own, const std::uint32_t (&ranks)[kRanks],
                         std::uint32_t* warps) {
    std::uint32_t sum = 0, all = 0;
    LATHE_UNROLL
    for (int i = 0; i < kOwnBins; ++i) sum += own[i];
    std::uint32_t before = sum_before(sum, warps, all);
    LATHE_UNROLL
    for (int i = 0; i < kOwnBins; ++i) {
      LATHE_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        if (before < ranks[r] && ranks[r] <= before + own[i]) {
          s_.bin[r] = static_cast<std::uint32_t>(thread() * kOwnBins + i);
          s_.before[r] = before;
          s_.count[r] = own[i];
        }
      }
      before += own[i];
    }
    sync_block();
  }

  /// What a sample says of the k-th best score: that it is from low to high. Bins between the two
  /// begin at top. Without a usable sample low > top.
  struct Bounds {
    float low, high, top;
  };
  /// scores: `count` of this block's part of a row of len keys.
  __device__ Bounds bound(std::int32_t len, const float* scores, std::int32_t count) {
    constexpr int kMostZooms = 2;
    const Bounds none = {infinite(), -infinite(), -infinite()};
    for (int i = thread(); i < kScoreBins; i += kThreads) s_.bins[0][i] = s_.bins[1][i] = 0;
    Share share;
    const int each = samples_each(len, share);
    // Samples that are an odd number of scores apart have banks of their own.
    const std::int32_t between = count / (each * kThreads);
    const std::int32_t apart = between == 0 ? 0 : (between - 1) | 1;
    float samples[kMostSamples];
    LATHE_UNROLL
    for (int i = 0; i < kMostSamples; ++i) {
      samples[i] = infinite();
      if (apart > 0 && i < each) samples[i] = scores[(i * kThreads + thread()) * apart];
    }
    const auto for_samples = [&](const auto& visit) {
      LATHE_UNROLL
      for (int i = 0; i < kMostSamples; ++i) {
        if (i < each && is_finite(samples[i])) visit(samples[i]);
      }
    };
    float bottom = infinite(), top = -infinite();
    for_samples([&](float x) { bottom = fminf(bottom, x), top = fmaxf(top, x); });
    extremes(bottom, top);
    const float first = share.mean - share.slack, last = share.mean + share.slack;
    std::uint32_t above = 0;  // samples above top
    bool has_high = first >= 1;
    for (int zoom = 0;; ++zoom) {
      const float width = (top - bottom) / kScoreBins, per_score = 1 / width;
      if (!(width > 0 && is_finite(width) && is_finite(per_score))) return none;
      for_samples([&](float x) {
        if (x <= top && x >= bottom) atomicAdd(&s_.bins[0][bin_of(x, top, per_score)], 1u);
      });
      if (thread() == 0) s_.bin[0] = s_.bin[1] = kScoreBins, s_.before[0] = 0, s_.count[0] = 0;
      team_.sync();
      OwnBins own;
      sum_bins(0, own);
      const auto rank = [&](float of) {
        const auto r = static_cast<std::uint32_t>(of);
        return r > above ? r - above : 1;
      };
      const std::uint32_t ranks[2] = {has_high ? rank(first) : 0, rank(last + 1)};
      locate<2>(own, ranks, s_.warps[0]);
      const std::uint32_t high_bin = s_.bin[0], low_bin = s_.bin[1];
      if (low_bin == kScoreBins) return none;
      has_high = has_high && high_bin < kScoreBins;
      const float low = top - static_cast<float>(low_bin + 1) * width;
      const float high = has_high ? top - static_cast<float>(high_bin) * width : top;
      const auto rough = static_cast<float>(s_.count[0] + s_.count[1]);
      if (rough <= share.slack || zoom == kMostZooms) {
        return {low, has_high ? high : infinite(), high};
      }
      if (has_high) above += s_.before[0];
      bottom = low, top = high;
      team_.sync();  // all have read the bins
      for (int i = thread(); i < kScoreBins; i += kThreads) s_.bins[0][i] = 0;
      sync_block();
    }
  }

  const SelectSlots& p_;
  Team& team_;
  Shared& s_;

 private:
  /// How many of the samples are among the best k: `mean`, give or take four standard deviations.
  struct Share {
    float mean, slack;
  };
  /// Samples of a thread: enough that the bounds are close and their candidates fit the lists.
  __device__ int samples_each(std::int32_t len, Share& of) const {
    const float share = static_cast<float>(p_.k) / static_cast<float>(len);
    const auto room = static_cast<float>(kListed * team_.size) / 2;
    for (int each = 1;; each *= 2) {
      const auto samples = static_cast<float>(each * kThreads * team_.size);
      const float mean = share * samples;
      of = {mean, 4 * sqrtf(mean * (1 - share)) + 1};
      const bool fits = 2 * of.slack * static_cast<float>(len) <= room * samples;
      if (each == kMostSamples || (mean >= 48 && fits)) return each;
    }
  }
  /// The least and the largest of the values that threads of all blocks pass.
  __device__ void extremes(float& least, float& most) {
    reduce_extremes(least, most);
    if (lane() == 0) s_.least[warp()] = least, s_.most[warp()] = most;
    sync_block();
    const int of = lane() < kWarps ? lane() : 0;
    least = s_.least[of], most = s_.most[of];
    reduce_extremes(least, most);
    if (team_.size == 1) return;
    if (thread() == 0) s_.low = least, s_.high = most;
    team_.sync();
    LATHE_ROLLED
    for (int b = 0; b < team_.size; ++b) {
      least = fminf(least, team_.of(b).low);
      most = fmaxf(most, team_.of(b).high);
    }
  }
  /// An unsigned number that is ordered as floats are.
  __device__ static std::uint32_t ordered(float x) {
    const std::uint32_t bits = float_to_bits(x);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  }
  __device__ static float of_ordered(std::uint32_t u) {
    return bits_to_float((u >> 31) != 0 ? u & 0x7fffffffu : ~u);
  }
  __device__ static void reduce_extremes(float& least, float& most) {
    least = of_ordered(~warp_max(~ordered(least)));
    most = of_ordered(warp_max(ordered(most)));
  }
};

}  // namespace lathe::cuda
