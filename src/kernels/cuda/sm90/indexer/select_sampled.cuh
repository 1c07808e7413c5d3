// The exact top-k of long rows with few passes over their scores.
//
// A sample of the scores says between which two scores the k-th best one should be. Keys above both
// are selected, and those between them, a few percent, are candidates. A histogram of the
// candidates finds the bin with the k-th best key, and keys of that bin are ranked one by one.
// Selected keys are bits in shared memory, in the order of positions, until their slots are stored.
//
// Where rows are few, a team of blocks selects a row, each with a part of its scores in shared
// memory. Where they are many, a block has a row of its own, whose scores go from memory through
// registers, so that two blocks share an SM and one computes while the other waits.
//
// Where the sample misleads (the k-th best score is outside of its bounds, or has too many equals)
// the row is left to select.cuh.
#pragma once

#include "kernels/cuda/sm90/indexer/sample_bounds.cuh"
#include "kernels/cuda/sm90/indexer/select.cuh"

namespace lathe::cuda {

inline constexpr std::int64_t kSampledMostK = 4096;

/// A key that may be selected.
struct Candidate {
  float score;
  std::int32_t at;  // in the row
};

/// kThreads: of a block. kStreams: a block has a row, and scores are not kept.
template <int kThreads, bool kStreams>
struct SampledShared : BoundsShared<kThreads> {
  static constexpr int kTile = 32 * kThreads;               // keys that a block reads at a time
  static constexpr int kKeys = kStreams ? 1 << 17 : kTile;  // of a block, at most
  static constexpr int kListed = kThreads < 512 ? 2048 : 4096;
  static constexpr int kRanked = 32;
  static constexpr int kBlocksPerSm = kStreams ? 1024 / kThreads : 1;
  // For ptxas, which spills 1024 threads' registers if it is told of one block.
  static constexpr int kLeastBlocks = kBlocksPerSm == 1 ? 0 : kBlocksPerSm;

  alignas(128) float scores[kStreams ? 32 : kKeys];
  // Candidates' positions in the block's part, and then the selected keys' in the row.
  alignas(16) std::int32_t list[kSampledMostK];
  alignas(16) std::uint32_t chosen[kKeys / 32];  // a bit for each key
  alignas(8) std::uint64_t full;                 // barrier: the scores are here
  Candidate ranked[kRanked];
  // What other blocks read.
  std::uint32_t better, listed, in_bin, selected;
};

template <int kThreads, bool kStreams>
class SampledSelector : SampleBounds<SampledShared<kThreads, kStreams>, kThreads,
                                     SampledShared<kThreads, kStreams>::kListed> {
 public:
  using Shared = SampledShared<kThreads, kStreams>;
  using Base = SampleBounds<Shared, kThreads, Shared::kListed>;
  using Team = BlockTeam<Shared>;

  __device__ SampledSelector(const SelectSlots& p, Team& team)
      : Base(p, team), full_(shared_address(&team.s.full)) {}

  __device__ void run() {
    if (!kStreams && thread() == 0) {
      barrier_init(full_, 1);
      barriers_visible();
    }
    sync_block();
    const auto teams = static_cast<std::int32_t>(gridDim.x) / team_.size;
    auto row = static_cast<std::int32_t>(blockIdx.x) / team_.size;
    if (row < p_.rows) begin_copy(row);
    std::int32_t len = row < p_.rows ? p_.lens[row] : 0;
    for (; row < p_.rows; row = next_) {
      const Part part = part_of(len);
      next_ = row + teams;
      // Loaded long before they are used.
      const std::int32_t request = p_.request[row];
      const std::int32_t next_len = next_ < p_.rows ? p_.lens[next_] : 0;
      std::int32_t* const slots = p_.slots + row * p_.k;
      if (len <= p_.k) {
        for (std::int64_t i = team_.rank * kThreads + thread(); i < p_.k;
             i += team_.size * kThreads) {
          slots[i] = i < len ? slot_at(p_, request, static_cast<std::int32_t>(i)) : -1;
        }
        copy_next();
      } else if (!select(row, len, part, request, slots)) {
        if (team_.rank == 0 && thread() == 0) slots[0] = kUnselected;
      }
      len = next_len;
      team_.sync();  // before what other blocks read is overwritten
    }
  }

 private:
  using Base::lane;
  using Base::p_;
  using Base::s_;
  using Base::team_;
  using Base::thread;

  struct Part {
    std::int32_t first, count;
  };
  __device__ Part part_of(std::int32_t len) const {
    if (kStreams) return {0, len};
    const std::int32_t each = (len + 32 * team_.size - 1) / (32 * team_.size) * 32;
    const std::int32_t first = each * team_.rank < len ? each * team_.rank : len;
    return {first, first + each < len ? each : len - first};
  }
  /// By all threads, or none of them calls it for the row.
  __device__ void begin_copy(std::int32_t row) const {
    if (kStreams) return;
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

  __device__ static float4 load_scores(const float* from) {
    if constexpr (kStreams) return load_once(reinterpret_cast<const float4*>(from));
    return load_floats(shared_address(from));
  }
  /// From this thread's four keys of eight groups each, a nibble a group, to 32 neighbouring keys:
  /// lane l gets what lanes l / 8 * 8 and following have of group l % 8.
  __device__ static std::uint32_t neighbours(std::uint32_t nibbles) {
    const std::uint32_t other = shuffle_xor(nibbles, 1);
    const std::uint32_t upper = other << 4 & 0xf0f0f0f0u, lower = other >> 4 & 0x0f0f0f0fu;
    std::uint32_t v =
        (lane() & 1) == 0 ? (nibbles & 0x0f0f0f0fu) | upper : (nibbles & 0xf0f0f0f0u) | lower;
    v = permute_bytes(v, shuffle_xor(v, 2), (lane() & 2) == 0 ? 0x6240u : 0x3715u);
    return permute_bytes(v, shuffle_xor(v, 4), (lane() & 4) == 0 ? 0x5410u : 0x3276u);
  }

  __device__ static std::uint32_t first_bits(std::int32_t count) {
    return count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1;
  }

  /// Marks the keys above `high` and lists those from low to high. scores: of a tile, `rest` of
  /// them or more if kWhole.
  template <bool kWhole>
  __device__ void classify_tile(const float* scores, std::int32_t tile, std::int32_t rest,
                                float low, float high) {
    // Scores from memory are loaded before any of them is compared.
    constexpr int kAhead = kStreams ? kGroups : 2;
    std::uint32_t better = 0, maybe = 0;
    LATHE_UNROLL
    for (int first = 0; first < kGroups; first += kAhead) {
      float4 x[kAhead];
      LATHE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int at = ((first + i) * kThreads + thread()) * kGroupKeys;
        x[i] = {};
        if (kWhole || at < rest) x[i] = load_scores(scores + at);
      }
      LATHE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const float v[kGroupKeys] = {x[i].x, x[i].y, x[i].z, x[i].w};
        LATHE_UNROLL
        for (int e = 0; e < kGroupKeys; ++e) {
          const std::uint32_t bit = 1u << (kGroupKeys * (first + i) + e);
          if (v[e] >= low) maybe |= bit;
          if (v[e] > high) better |= bit;
        }
      }
    }
    const int of_tile = thread() % 8 * (kThreads / 8) + thread() / 8;
    const std::int32_t word = tile * kThreads + of_tile;  // of s_.chosen
    const std::uint32_t is_key = kWhole ? ~0u : first_bits(rest - 32 * of_tile);
    better = neighbours(better) & is_key;
    maybe = neighbours(maybe) & is_key & ~better;
    s_.chosen[word] = better;
    const std::uint32_t own = static_cast<std::uint32_t>(count_bits(maybe)) |
                              static_cast<std::uint32_t>(count_bits(better)) << 16;
    const std::uint32_t upto = Base::sum_upto(own);
    std::uint32_t to = 0;
    if (lane() == 31) {
      to = atomicAdd(&s_.listed, upto & 0xffffu);
      atomicAdd(&s_.better, upto >> 16);
    }
    to = shuffle(to, 31) + ((upto - own) & 0xffffu);
    LATHE_ROLLED
    for (; maybe != 0; maybe &= maybe - 1, ++to) {
      const int bit = count_bits((maybe & (0u - maybe)) - 1);
      if (to < Shared::kListed) s_.list[to] = word * 32 + bit;
    }
  }
  __device__ void classify(const float* scores, std::int32_t count, float low, float high) {
    for (std::int32_t tile = 0; tile * Shared::kTile < count; ++tile) {
      const std::int32_t first = tile * Shared::kTile, rest = count - first;
      if (rest >= Shared::kTile) {
        classify_tile<true>(scores + first, tile, rest, low, high);
      } else {
        classify_tile<false>(scores + first, tile, rest, low, high);
      }
    }
  }

  /// Selects a key of this block's part.
  __device__ void choose(std::int32_t at) { atomicAdd(&s_.chosen[at / 32], 1u << at % 32); }

  /// Among the candidates: chooses all above the bin of the `rest`-th best, and the best of that
  /// bin. Returns false if too many are in the bin.
  __device__ bool choose_candidates(const float* scores, const Part& part, std::uint32_t rest,
                                    float low, float top) {
    constexpr int kOwn = Shared::kListed / kThreads, kPlaceBits = 17;
    constexpr std::uint32_t kNone = ~0u, kPlaces = (1u << kPlaceBits) - 1;
    static_assert(Shared::kKeys <= 1 << kPlaceBits);
    const float per_score = kScoreBins / (top - low);
    const auto listed = static_cast<int>(s_.listed);
    std::uint32_t own[kOwn];  // a candidate's bin and its place in the part
    LATHE_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      const int i = n * kThreads + thread();
      own[n] = kNone;
      if (i >= listed) continue;
      const auto at = static_cast<std::uint32_t>(s_.list[i]);
      own[n] = Base::bin_of(scores[at], top, per_score) << kPlaceBits | at;
    }
    LATHE_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      if (own[n] != kNone) atomicAdd(&s_.bins[1][own[n] >> kPlaceBits], 1u);
    }
    team_.sync();
    typename Base::OwnBins bins;
    Base::sum_bins(1, bins);
    const std::uint32_t ranks[1] = {rest};
    Base::template locate<1>(bins, ranks, s_.warps[1]);
    const std::uint32_t bin = s_.bin[0], before = s_.before[0];
    if (s_.count[0] > Shared::kRanked) return false;
    LATHE_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      if (own[n] == kNone) continue;
      const auto at = static_cast<std::int32_t>(own[n] & kPlaces);
      if (own[n] >> kPlaceBits < bin) choose(at);
      if (own[n] >> kPlaceBits == bin) {
        s_.ranked[atomicAdd(&s_.in_bin, 1u)] = {scores[at], part.first + at};
      }
    }
    team_.sync();
    if (threadIdx.x < 32) rank_bin(part, rest - before);
    sync_block();
    return true;
  }
  /// By one warp: chooses the `rest` best of the bin's keys; ties go to the lower position.
  __device__ void rank_bin(const Part& part, std::uint32_t rest) {
    const auto me = static_cast<std::uint32_t>(thread());
    Candidate own = {0, -1};
    std::uint32_t keys = 0;
    LATHE_ROLLED
    for (int b = 0; b < team_.size; ++b) {
      const Shared& other = team_.of(b);
      const std::uint32_t count = other.in_bin;
      if (me >= keys && me < keys + count) own = other.ranked[me - keys];
      keys += count;
    }
    std::uint32_t above = 0;
    for (std::uint32_t i = 0; i < keys; ++i) {
      const float score = shuffle(own.score, i);
      const std::int32_t at = shuffle(own.at, i);
      above += score > own.score || (score == own.score && at < own.at) ? 1u : 0u;
    }
    if (me >= keys || above >= rest) return;
    if (own.at >= part.first && own.at < part.first + part.count) choose(own.at - part.first);
  }

  /// Puts the selected positions of this block into s_.list, ordered. Returns how many.
  __device__ std::uint32_t order(const Part& part) {
    // As many words for each thread as there were tiles, so all have been written.
    const std::int32_t each = (part.count + Shared::kTile - 1) / Shared::kTile;
    const std::int32_t first = thread() * each;
    std::uint32_t sum = 0, all = 0;
    for (std::int32_t i = 0; i < each; ++i) {
      sum += static_cast<std::uint32_t>(count_bits(s_.chosen[first + i]));
    }
    std::uint32_t to = Base::sum_before(sum, s_.warps[0], all);
    for (std::int32_t i = 0; i < each; ++i) {
      const std::int32_t position = part.first + 32 * (first + i);
      LATHE_ROLLED
      for (std::uint32_t bits = s_.chosen[first + i]; bits != 0; bits &= bits - 1, ++to) {
        s_.list[to] = position + count_bits((bits & (0u - bits)) - 1);
      }
    }
    return all;
  }

  /// Precondition: the row has more than k keys. Returns false, without having stored a slot, if it
  /// must be left to select_marked_kernel; then all blocks do.
  __device__ bool select(std::int32_t row, std::int32_t len, const Part& part, std::int32_t request,
                         std::int32_t* slots) {
    if (!kStreams && part.count > 0) {
      barrier_wait(full_, parity_);
      parity_ ^= 1;
    }
    const float* const scores = kStreams ? p_.logits + row * p_.cols : s_.scores;
    if (thread() == 0) s_.better = s_.listed = s_.in_bin = 0;
    const auto [low, high, top] = Base::bound(len, scores, part.count);
    const float per_score = kScoreBins / (top - low);
    const bool usable = low < top && Base::is_finite(per_score) && per_score > 0;
    if (usable) classify(scores, part.count, low, high);
    team_.sync();
    const bool done = usable && choose_best(scores, part, low, top);
    copy_next();
    if (!done) return false;
    const std::uint32_t count = order(part);
    std::uint32_t begin = 0;
    if (team_.size > 1) {
      if (thread() == 0) s_.selected = count;
      team_.sync();
      LATHE_ROLLED
      for (int b = 0; b < team_.rank; ++b) begin += team_.of(b).selected;
    } else {
      sync_block();
    }
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      slots[begin + i] = slot_at(p_, request, s_.list[i]);
    }
    return true;
  }
  /// Chooses among the candidates, if the sample's bounds were right and the lists had room.
  __device__ bool choose_best(const float* scores, const Part& part, float low, float top) {
    std::uint32_t better = 0, all_listed = 0;
    bool fits = true;
    LATHE_ROLLED
    for (int b = 0; b < team_.size; ++b) {
      const Shared& other = team_.of(b);
      const std::uint32_t listed = other.listed;
      better += other.better, all_listed += listed;
      fits = fits && listed <= Shared::kListed;
    }
    const std::uint32_t rest = static_cast<std::uint32_t>(p_.k) - better;
    if (!fits || better >= p_.k || rest > all_listed) return false;
    return choose_candidates(scores, part, rest, low, top);
  }

  const std::uint32_t full_;
  std::uint32_t parity_ = 0;
  std::int32_t next_ = 0;  // this team's next row
};

template <int kThreads, bool kStreams>
static __global__ void __launch_bounds__(kThreads, SampledShared<kThreads, kStreams>::kLeastBlocks)
    sampled_slots_kernel(const __grid_constant__ SelectSlots p, int blocks) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  BlockTeam<SampledShared<kThreads, kStreams>> team(shared, kStreams ? 1 : blocks);
  SampledSelector<kThreads, kStreams>(p, team).run();
}

}  // namespace lathe::cuda
