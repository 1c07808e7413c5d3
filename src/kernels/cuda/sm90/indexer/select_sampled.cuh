// The exact top-k of long rows with few passes over their scores: a team of blocks per row, each
// with a part of the keys in shared memory.
//
// A sample of the scores says between which two scores the k-th best one should be. Keys above both
// are selected, and those between them, a few percent, are candidates. A histogram of the
// candidates finds the bin with the k-th best key, and keys of that bin are ranked one by one.
// Positions are kept as bits until then, so the next row's scores are copied meanwhile.
//
// Where the sample misleads (the k-th best score is outside of its bounds, or has too many equals)
// the row is left to select.cuh.
#pragma once

#include "kernels/cuda/common/block_team.cuh"
#include "kernels/cuda/sm90/indexer/select.cuh"

namespace lathe::cuda {

inline constexpr std::int64_t kSampledMostK = 4096;

/// A key that may be selected.
struct Candidate {
  float score;
  std::int32_t at;  // in the block's part; of ranked ones in the row
};

/// kThreads: of a block, which has at most 32 keys for each.
template <int kThreads>
struct SampledShared {
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kKeys = 32 * kThreads;
  static constexpr int kBins = 1024;
  static constexpr int kListed = kThreads < 512 ? 2048 : 4096;
  static constexpr int kRanked = 32;
  static constexpr int kBlocksPerSm = kThreads == 1024 ? 1 : kThreads == 512 ? 2 : 3;
  // For ptxas, which spills 1024 threads' registers if it is told of one block.
  static constexpr int kLeastBlocks = kBlocksPerSm == 1 ? 0 : kBlocksPerSm;

  alignas(128) float scores[kKeys];
  alignas(16) std::uint32_t bins[2][kBins];  // of samples, then of candidates
  // Candidates, and then the positions of this block's selected keys.
  alignas(16) Candidate list[kListed];
  std::uint32_t chosen[kThreads];  // selected candidates: a bit for each of a thread's keys
  alignas(16) std::uint32_t group_sums[kGroups * kWarps];
  std::uint32_t warps[2][kWarps];
  float least[kWarps], most[kWarps];
  alignas(8) std::uint64_t full;  // barrier: the scores are here
  Candidate ranked[kRanked];
  // What other blocks read.
  float low, high;  // the extremes of this block's sample
  std::uint32_t better, listed, in_bin, selected;
  // Of locate().
  std::uint32_t bin[2], before[2], count[2];
};

template <int kThreads>
class SampledSelector {
 public:
  using Shared = SampledShared<kThreads>;
  using Team = BlockTeam<Shared>;

  __device__ SampledSelector(const SelectSlots& p, Team& team)
      : p_(p), team_(team), s_(team.s), full_(shared_address(&team.s.full)) {}

  __device__ void run() {
    if (thread() == 0) {
      barrier_init(full_, 1);
      barriers_visible();
    }
    sync_block();
    const auto teams = static_cast<std::int32_t>(gridDim.x) / team_.size;
    auto row = static_cast<std::int32_t>(blockIdx.x) / team_.size;
    if (row < p_.rows) begin_copy(row);
    for (; row < p_.rows; row += teams) {
      const std::int32_t len = p_.lens[row];
      const Part part = part_of(len);
      next_ = row + teams;
      std::int32_t* const slots = p_.slots + row * p_.k;
      if (len <= p_.k) {
        const std::int32_t request = p_.request[row];
        for (std::int64_t i = team_.rank * kThreads + thread(); i < p_.k;
             i += team_.size * kThreads) {
          slots[i] = i < len ? slot_at(p_, request, static_cast<std::int32_t>(i)) : -1;
        }
        copy_next();
      } else if (!select(row, len, part, slots)) {
        if (team_.rank == 0 && thread() == 0) slots[0] = kUnselected;
      }
      team_.sync();  // before what other blocks read is overwritten
    }
  }

 private:
  struct Part {
    std::int32_t first, count;
  };
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ Part part_of(std::int32_t len) const {
    const std::int32_t each = (len + 32 * team_.size - 1) / (32 * team_.size) * 32;
    const std::int32_t first = each * team_.rank < len ? each * team_.rank : len;
    return {first, first + each < len ? each : len - first};
  }
  /// By all threads, or none of them calls it for the row.
  __device__ void begin_copy(std::int32_t row) const {
    const std::int32_t len = p_.lens[row];
    const Part part = part_of(len);
    if (len <= p_.k || part.count == 0 || thread() != 0) return;
    // A row's last four may end beyond its keys, but not beyond the row.
    const auto bytes = static_cast<std::uint32_t>((part.count + 3) / 4 * 16);
    fence_async_proxy();
    barrier_expect(full_, bytes);
    copy_row(shared_address(s_.scores), p_.logits + row * p_.cols + part.first, bytes, full_,
             cache_policy(true));
  }
  /// After all threads have read this row's scores.
  __device__ void copy_next() const {
    if (next_ < p_.rows) begin_copy(next_);
  }
  /// A score of this thread's group g, or NaN beyond the part.
  struct Scores {
    float v[kGroupKeys];
  };
  __device__ Scores scores_of(int g, std::int32_t count) const {
    const int at = (g * kThreads + thread()) * kGroupKeys;
    Scores out;
    const float4 v = load_floats(shared_address(s_.scores + at));
    out.v[0] = at < count ? v.x : not_selected();
    out.v[1] = at + 1 < count ? v.y : not_selected();
    out.v[2] = at + 2 < count ? v.z : not_selected();
    out.v[3] = at + 3 < count ? v.w : not_selected();
    return out;
  }
  __device__ static float not_selected() { return bits_to_float(0x7fffffffu); }
  __device__ static bool is_finite(float x) {
    return (float_to_bits(x) & 0x7f800000u) != 0x7f800000u;
  }
  /// Bins go down from `top`.
  __device__ static std::uint32_t bin_of(float x, float top, float per_score) {
    const float b = (top - x) * per_score;
    return b >= Shared::kBins - 1 ? Shared::kBins - 1 : b > 0 ? static_cast<std::uint32_t>(b) : 0;
  }

  /// For i < kRanks finds the bin with the key of rank ranks[i] (from 1), into s_.bin[i],
  /// s_.before, s_.count. own: of this thread's neighbouring bins.
  template <int kRanks>
  __device__ void locate(const std::uint32_t (&own)[Shared::kBins / kThreads],
                         const std::uint32_t (&ranks)[kRanks], std::uint32_t* warps) {
    constexpr int kOwn = Shared::kBins / kThreads;
    const int lane = thread() % 32, warp = thread() / 32;
    std::uint32_t sum = 0;
    LATHE_UNROLL
    for (int i = 0; i < kOwn; ++i) sum += own[i];
    std::uint32_t upto = sum;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t other = shuffle_up(upto, d);
      if (lane >= d) upto += other;
    }
    if (lane == 31) warps[warp] = upto;
    sync_block();
    std::uint32_t of_warps = lane < Shared::kWarps ? warps[lane] : 0;
    of_warps = lane < warp ? of_warps : 0;
    for (int d = 16; d > 0; d /= 2) of_warps += shuffle_xor(of_warps, d);
    std::uint32_t before = of_warps + upto - sum;
    LATHE_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      LATHE_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        if (before < ranks[r] && ranks[r] <= before + own[i]) {
          s_.bin[r] = static_cast<std::uint32_t>(thread() * kOwn + i);
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
  /// How many of `samples` are among the best k: `mean`, give or take four standard deviations.
  struct Share {
    float mean, slack;
  };
  __device__ Share share_of(std::int32_t len, int samples) const {
    const float share = static_cast<float>(p_.k) / static_cast<float>(len);
    const float mean = share * static_cast<float>(samples);
    return {mean, 4 * sqrtf(mean * (1 - share)) + 1};
  }
  /// Samples of a thread: enough that the bounds are close and their candidates fit the lists.
  __device__ int samples_each(std::int32_t len, Share& share) const {
    constexpr int kMost = 8;
    int each = 1;
    for (;; each *= 2) {
      const int samples = each * kThreads * team_.size;
      share = share_of(len, samples);
      const float listed = 2 * share.slack / static_cast<float>(samples) * static_cast<float>(len);
      const auto room = static_cast<float>(Shared::kListed * team_.size) / 2;
      if (each == kMost || (share.mean >= 48 && listed <= room)) return each;
    }
  }
  /// The least and the largest of the values that threads of all blocks pass.
  __device__ void extremes(float& least, float& most) {
    const int lane = thread() % 32, warp = thread() / 32;
    reduce_extremes(least, most);
    if (lane == 0) s_.least[warp] = least, s_.most[warp] = most;
    sync_block();
    const int of = lane < Shared::kWarps ? lane : 0;
    least = s_.least[of], most = s_.most[of];
    reduce_extremes(least, most);
    if (team_.size == 1) return;
    if (thread() == 0) s_.low = least, s_.high = most;
    team_.sync();
    for (int b = 0; b < team_.size; ++b) {
      least = fminf(least, team_.of(b).low);
      most = fmaxf(most, team_.of(b).high);
    }
  }
  __device__ static void reduce_extremes(float& least, float& most) {
    for (int d = 16; d > 0; d /= 2) {
      least = fminf(least, shuffle_xor(least, d));
      most = fmaxf(most, shuffle_xor(most, d));
    }
  }
  /// This thread's neighbouring bins, summed over the blocks.
  using OwnBins = std::uint32_t[Shared::kBins / kThreads];
  __device__ void sum_bins(int which, OwnBins& own) const {
    LATHE_UNROLL
    for (int i = 0; i < Shared::kBins / kThreads; ++i) own[i] = 0;
    for (int b = 0; b < team_.size; ++b) {
      LATHE_UNROLL
      for (int i = 0; i < Shared::kBins / kThreads; ++i) {
        own[i] += team_.of(b).bins[which][thread() * (Shared::kBins / kThreads) + i];
      }
    }
  }

  __device__ Bounds bound(std::int32_t len, std::int32_t count) {
    constexpr int kMostZooms = 2;
    const float infinite = bits_to_float(0x7f800000u);
    const Bounds none = {infinite, -infinite, -infinite};
    for (int i = thread(); i < Shared::kBins; i += kThreads) s_.bins[0][i] = s_.bins[1][i] = 0;
    s_.chosen[thread()] = 0;
    if (thread() == 0) s_.better = s_.listed = s_.in_bin = 0;
    Share share;
    const int each = samples_each(len, share);
    const std::int32_t apart = count / (each * kThreads);
    std::int32_t within = 1;
    while (2 * within <= apart) within *= 2;
    // Where samples are 32 apart, those of a warp have banks of their own.
    const std::int32_t at = thread() * apart + (thread() & (within - 1));
    const auto for_samples = [&](const auto& visit) {
      for (int i = 0; apart > 0 && i < each; ++i) {
        const float x = s_.scores[i * kThreads * apart + at];
        if (is_finite(x)) visit(x);
      }
    };
    float bottom = infinite, top = -infinite;
    for_samples([&](float x) { bottom = fminf(bottom, x), top = fmaxf(top, x); });
    extremes(bottom, top);
    const float first = share.mean - share.slack, last = share.mean + share.slack;
    std::uint32_t above = 0;  // samples above top
    bool has_high = first >= 1;
    for (int zoom = 0;; ++zoom) {
      const float width = (top - bottom) / Shared::kBins, per_score = 1 / width;
      if (!(width > 0 && is_finite(width) && is_finite(per_score))) return none;
      for_samples([&](float x) {
        if (x <= top && x >= bottom) atomicAdd(&s_.bins[0][bin_of(x, top, per_score)], 1u);
      });
      if (thread() == 0) s_.bin[0] = s_.bin[1] = Shared::kBins, s_.before[0] = 0, s_.count[0] = 0;
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
      if (low_bin == Shared::kBins) return none;
      has_high = has_high && high_bin < Shared::kBins;
      const float low = top - static_cast<float>(low_bin + 1) * width;
      const float high = has_high ? top - static_cast<float>(high_bin) * width : top;
      const auto rough = static_cast<float>(s_.count[0] + s_.count[1]);
      if (rough <= share.slack || zoom == kMostZooms) {
        return {low, has_high ? high : infinite, high};
      }
      if (has_high) above += s_.before[0];
      bottom = low, top = high;
      team_.sync();  // all have read the bins
      for (int i = thread(); i < Shared::kBins; i += kThreads) s_.bins[0][i] = 0;
      sync_block();
    }
  }

  /// Bit 4 g + e of `better` is set where key e of this thread's group g is selected. Candidates go
  /// to the list.
  __device__ std::uint32_t classify(std::int32_t count, float low, float high) {
    const int lane = thread() % 32;
    std::uint32_t better = 0, maybe = 0;
    LATHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const Scores x = scores_of(g, count);
      LATHE_UNROLL
      for (int e = 0; e < kGroupKeys; ++e) {
        const std::uint32_t bit = 1u << (kGroupKeys * g + e);
        if (x.v[e] >= low) maybe |= bit;
        if (x.v[e] > high) better |= bit;
      }
    }
    maybe &= ~better;
    const std::uint32_t own = static_cast<std::uint32_t>(count_bits(maybe)) |
                              static_cast<std::uint32_t>(count_bits(better)) << 16;
    std::uint32_t upto = own;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t other = shuffle_up(upto, d);
      if (lane >= d) upto += other;
    }
    std::uint32_t to = 0;
    if (lane == 31) {
      to = atomicAdd(&s_.listed, upto & 0xffffu);
      atomicAdd(&s_.better, upto >> 16);
    }
    to = shuffle(to, 31) + ((upto - own) & 0xffffu);
    LATHE_ROLLED
    for (; maybe != 0; maybe &= maybe - 1, ++to) {
      const int bit = count_bits((maybe & (0u - maybe)) - 1);
      const int at = (bit / kGroupKeys * kThreads + thread()) * kGroupKeys + bit % kGroupKeys;
      if (to < Shared::kListed) s_.list[to] = {s_.scores[at], at};
    }
    return better;
  }

  /// Selects a key of this block's part.
  __device__ void choose(std::int32_t at) {
    const std::int32_t group = at / kGroupKeys;
    atomicAdd(&s_.chosen[group % kThreads],
              1u << (group / kThreads * kGroupKeys + at % kGroupKeys));
  }

  /// Among the candidates: chooses all above the bin of the `rest`-th best, and the best of that
  /// bin. Returns false if too many are in the bin.
  __device__ bool choose_candidates(const Part& part, std::uint32_t rest, float low, float top) {
    const float per_score = Shared::kBins / (top - low);
    const std::uint32_t listed = s_.listed;
    for (std::uint32_t i = threadIdx.x; i < listed; i += kThreads) {
      atomicAdd(&s_.bins[1][bin_of(s_.list[i].score, top, per_score)], 1u);
    }
    team_.sync();
    OwnBins own;
    sum_bins(1, own);
    const std::uint32_t ranks[1] = {rest};
    locate<1>(own, ranks, s_.warps[1]);
    const std::uint32_t bin = s_.bin[0], before = s_.before[0];
    if (s_.count[0] > Shared::kRanked) return false;
    for (std::uint32_t i = threadIdx.x; i < listed; i += kThreads) {
      const Candidate c = s_.list[i];
      const std::uint32_t b = bin_of(c.score, top, per_score);
      if (b < bin) choose(c.at);
      if (b == bin) s_.ranked[atomicAdd(&s_.in_bin, 1u)] = {c.score, part.first + c.at};
    }
    team_.sync();
    if (threadIdx.x < 32) rank_bin(part, rest - before);
    sync_block();
    return true;
  }
  /// By one warp: chooses the `rest` best of the bin's keys; ties go to the lower position.
  __device__ void rank_bin(const Part& part, std::uint32_t rest) {
    const auto lane = static_cast<std::uint32_t>(thread());
    Candidate own = {0, -1};
    std::uint32_t keys = 0;
    for (int b = 0; b < team_.size; ++b) {
      const Shared& other = team_.of(b);
      const std::uint32_t count = other.in_bin;
      if (lane >= keys && lane < keys + count) own = other.ranked[lane - keys];
      keys += count;
    }
    std::uint32_t above = 0;
    for (std::uint32_t i = 0; i < keys; ++i) {
      const float score = shuffle(own.score, i);
      const std::int32_t at = shuffle(own.at, i);
      above += score > own.score || (score == own.score && at < own.at) ? 1u : 0u;
    }
    if (lane >= keys || above >= rest) return;
    if (own.at >= part.first && own.at < part.first + part.count) choose(own.at - part.first);
  }

  /// Puts this block's selected positions into s_.list, ordered. Returns how many.
  __device__ std::uint32_t order(std::uint32_t mask, std::int32_t first) {
    constexpr int kSums = kGroups * Shared::kWarps, kLaneSums = kSums / 32;
    const int lane = thread() % 32, warp = thread() / 32;
    // Per group, in 8 bits each: a warp has at most 128 keys of a group.
    std::uint32_t own[2] = {}, upto[2];
    LATHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      own[g / 4] |= static_cast<std::uint32_t>(count_bits(mask >> kGroupKeys * g & 15))
                    << g % 4 * 8;
    }
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      upto[i] = own[i];
      for (int d = 1; d < 32; d *= 2) {
        const std::uint32_t other = shuffle_up(upto[i], d);
        if (lane >= d) upto[i] += other;
      }
    }
    if (lane == 31) {
      LATHE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        s_.group_sums[g * Shared::kWarps + warp] = upto[g / 4] >> g % 4 * 8 & 0xffu;
      }
    }
    sync_block();
    // Every warp sums all of them: lane l has sums kLaneSums l and following.
    std::uint32_t sum = 0, upto_own = 0;
    LATHE_UNROLL
    for (int i = 0; i < kLaneSums; ++i) {
      if (i == warp % kLaneSums) upto_own = sum;
      sum += s_.group_sums[lane * kLaneSums + i];
    }
    std::uint32_t all = sum;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t other = shuffle_up(all, d);
      if (lane >= d) all += other;
    }
    const std::uint32_t before = all - sum + upto_own;
    auto* const positions = reinterpret_cast<std::int32_t*>(s_.list);
    LATHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      std::uint32_t to =
          shuffle(before, static_cast<std::uint32_t>((g * Shared::kWarps + warp) / kLaneSums)) +
          ((upto[g / 4] - own[g / 4]) >> g % 4 * 8 & 0xffu);
      LATHE_UNROLL
      for (int e = 0; e < kGroupKeys; ++e) {
        if ((mask >> (kGroupKeys * g + e) & 1) == 0) continue;
        positions[to++] = first + (g * kThreads + thread()) * kGroupKeys + e;
      }
    }
    return shuffle(all, 31);
  }

  /// Precondition: the row has more than k keys. Returns false, without having stored a slot, if it
  /// must be left to select_marked_kernel; then all blocks do.
  __device__ bool select(std::int32_t row, std::int32_t len, const Part& part,
                         std::int32_t* slots) {
    if (part.count > 0) {
      barrier_wait(full_, parity_);
      parity_ ^= 1;
    }
    const auto [low, high, top] = bound(len, part.count);
    const float per_score = Shared::kBins / (top - low);
    const bool usable = low < top && is_finite(per_score) && per_score > 0;
    std::uint32_t better = 0;
    if (usable) better = classify(part.count, low, high);
    team_.sync();
    copy_next();
    if (!usable) return false;
    std::uint32_t all_better = 0, all_listed = 0;
    bool fits = true;
    for (int b = 0; b < team_.size; ++b) {
      const Shared& other = team_.of(b);
      const std::uint32_t listed = other.listed;
      all_better += other.better, all_listed += listed;
      fits = fits && listed <= Shared::kListed;
    }
    const std::uint32_t rest = static_cast<std::uint32_t>(p_.k) - all_better;
    if (!fits || all_better >= p_.k || rest > all_listed) return false;
    if (!choose_candidates(part, rest, low, top)) return false;
    const std::uint32_t count = order(better | s_.chosen[threadIdx.x], part.first);
    std::uint32_t begin = 0;
    if (team_.size > 1) {
      if (thread() == 0) s_.selected = count;
      team_.sync();
      for (int b = 0; b < team_.rank; ++b) begin += team_.of(b).selected;
    } else {
      sync_block();
    }
    const std::int32_t request = p_.request[row];
    const auto* positions = reinterpret_cast<const std::int32_t*>(s_.list);
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      slots[begin + i] = slot_at(p_, request, positions[i]);
    }
    return true;
  }

  const SelectSlots& p_;
  Team& team_;
  Shared& s_;
  const std::uint32_t full_;
  std::uint32_t parity_ = 0;
  std::int32_t next_ = 0;  // this team's next row
};

template <int kThreads>
static __global__ void __launch_bounds__(kThreads, SampledShared<kThreads>::kLeastBlocks)
    sampled_slots_kernel(const __grid_constant__ SelectSlots p, int blocks) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  BlockTeam<SampledShared<kThreads>> team(shared, blocks);
  SampledSelector<kThreads>(p, team).run();
}

}  // namespace lathe::cuda
