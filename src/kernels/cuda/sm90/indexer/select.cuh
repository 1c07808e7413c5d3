// The indexer's exact top-k: a team of blocks per row, each with a part of the keys. Scores
// are kept in shared memory, so they are read once if a block has at most kTileKeys of them. A
// bound from below and a histogram narrow the k-th best key to a short list as a rule; then the
// positions of better keys, and of the first equal ones, are stored in order.
#pragma once

#include "kernels/cuda/common/block_team.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

inline constexpr int kSlotThreads = 256;    // of the kernels without scores
inline constexpr int kSelectThreads = 512;  // two blocks share an SM
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kGroups = 8, kGroupKeys = 4;  // of a thread
inline constexpr std::int32_t kTileKeys = kSelectThreads * kGroups * kGroupKeys;
inline constexpr int kKeyBins = 4 * kSelectThreads;
inline constexpr std::uint32_t kKeysListed = 512;

/// Ascending as scores are; -0 equals 0; NaN is 0, which no other score is.
__device__ inline std::uint32_t score_key(float score) {
  if (score != score) return 0;
  const std::uint32_t bits = float_to_bits(score == 0 ? 0.f : score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// In the first slot of a row that select_sampled.cuh has left to select_marked_kernel.
inline constexpr std::int32_t kUnselected = -(1 << 30);

struct Threshold {
  std::uint32_t key = 0;    // keys above it are selected
  std::uint32_t equal = 0;  // and the first `equal` equal ones
};

/// The bin of the last selected key.
struct LastBin {
  std::uint32_t bin = 0;
  std::uint32_t rest = 0;   // how many keys of the bin are selected
  std::uint32_t count = 0;  // keys of the bin; 0: there are fewer keys than wanted
};

/// Neighbouring keys, which are one load.
struct alignas(16) KeyGroup {
  std::uint32_t keys[kGroupKeys];
};

/// What other blocks read has two slots (BlockTeam::next_slot()).
struct SelectShared {
  KeyGroup tile[kGroups][kSelectThreads];       // a thread reads only what it has stored
  alignas(16) std::uint32_t bins[2][kKeyBins];  // of this block's keys
  std::uint32_t least[2], most[2], sets[2];     // bounds of this block, and its sets
  std::uint32_t totals[2];                      // this block's better and equal keys
  std::uint32_t listed, own[kKeysListed];
  alignas(16) std::uint32_t list[kKeysListed + kGroupKeys];  // of all blocks
  std::uint32_t warps[2][kSelectWarps];
  std::uint32_t group_sums[kGroups * kSelectWarps];
  LastBin last;
  Threshold threshold;
};

__device__ inline std::int32_t slot_at(const SelectSlots& p, std::int32_t request,
                                       std::int32_t position) {
  const auto n = static_cast<std::int32_t>(p.page_of(static_cast<std::uint32_t>(position)));
  if (request < 0 || n >= p.width) return -1;
  const std::int32_t page = p.page_table[request * p.width + n];
  if (page < 0 || page >= p.pages) return -1;
  return page * p.page_tokens + position - n * p.page_tokens;
}

class RowSelector {
 public:
  using Team = BlockTeam<SelectShared>;

  __device__ RowSelector(const SelectSlots& p, std::int32_t row, Team& team)
      : p_(p), row_(row), team_(team), s_(team.s), len_(p.lens[row]) {
    const std::int32_t each = (len_ + 32 * team.size - 1) / (32 * team.size) * 32;
    first_ = each * team.rank < len_ ? each * team.rank : len_;
    end_ = first_ + each < len_ ? first_ + each : len_;
  }

  __device__ void run() {
    std::int32_t begin = first_, end = end_;  // of the slots that this block stores
    std::int32_t stored = len_;               // by all blocks
    if (len_ > p_.k) {
      stored = store_positions(find_threshold(), begin, end);
      sync_block();
    }
    // Pages are looked up for neighbouring slots, not where a position is found.
    const std::int32_t request = p_.request[row_];
    std::int32_t* slots = row_slots();
    for (std::int32_t i = begin + thread(); i < end; i += kSelectThreads) {
      slots[i] = slot_at(p_, request, len_ > p_.k ? slots[i] : i);
    }
    const std::int32_t after = stored + team_.rank * kSelectThreads + thread();
    for (std::int64_t i = after; i < p_.k; i += team_.size * kSelectThreads) slots[i] = -1;
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ std::int32_t* row_slots() const { return p_.slots + row_ * p_.k; }
  /// From a tile's begin to key e of this thread's group g.
  __device__ static std::int32_t offset_of(int g, int e) {
    return (g * kSelectThreads + thread()) * kGroupKeys + e;
  }

  // Copies need no registers, so all are issued at once.
  __device__ __forceinline__ void load(std::int32_t tile) {
    const float* scores = p_.logits + row_ * p_.cols + tile;
    const std::int32_t count = end_ - tile;
    // A row's last group may end beyond its keys, but not beyond the row.
    const bool aligned =
        p_.cols % kGroupKeys == 0 && reinterpret_cast<std::uintptr_t>(scores) % 16 == 0;
    for (int g = 0; g < kGroups; ++g) {
      const std::int32_t at = offset_of(g, 0);
      const std::uint32_t to = shared_address(&s_.tile[g][threadIdx.x]);
      if (aligned) {
        if (at < count) copy_async(to, scores + at, true);
      } else {
        for (int e = 0; e < kGroupKeys; ++e) {
          if (at + e < count) copy_async_4(to + 4 * e, scores + at + e);
        }
      }
    }
    end_copy_group();
    wait_copy_groups<0>();
    LATHE_UNROLL_BY(2)
    for (int g = 0; g < kGroups; ++g) {
      KeyGroup& group = s_.tile[g][threadIdx.x];
      KeyGroup keys = group;
      const std::int32_t rest = count - offset_of(g, 0);
      LATHE_UNROLL
      for (int e = 0; e < kGroupKeys; ++e) {
        keys.keys[e] = e < rest ? score_key(bits_to_float(keys.keys[e])) : 0;
      }
      group = keys;
    }
    loaded_ = tile;
    constexpr int kKeysOfGroup = kSelectThreads * kGroupKeys;
    groups_ = count < kTileKeys ? (count + kKeysOfGroup - 1) / kKeysOfGroup : kGroups;
  }
  // Calls visit(tile) for each tile, whose keys are loaded.
  template <class Visit>
  __device__ __forceinline__ void for_tiles(const Visit& visit) {
    for (std::int32_t tile = first_; tile < end_; tile += kTileKeys) {
      if (loaded_ != tile) load(tile);
      visit(tile);
    }
  }
  // Calls visit(g, key) for this thread's keys in their order; g is the group.
  template <class Visit>
  __device__ __forceinline__ void for_keys(const Visit& visit) const {
    LATHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      if (g >= groups_) break;
      const KeyGroup group = s_.tile[g][threadIdx.x];
      LATHE_UNROLL
      for (int e = 0; e < kGroupKeys; ++e) visit(g, group.keys[e]);
    }
  }

  // The sum of the values of the threads before this one; `total`: of all. Consecutive calls need
  // different `warps`.
  __device__ static std::uint32_t sum_before(std::uint32_t value, std::uint32_t* warps,
                                             std::uint32_t& total) {
    const int lane = thread() % 32, warp = thread() / 32;
    std::uint32_t sum = value;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t before = shuffle_up(sum, d);
      if (lane >= d) sum += before;
    }
    if (lane == 31) warps[warp] = sum;
    sync_block();
    std::uint32_t before = sum - value;
    total = 0;
    LATHE_UNROLL
    for (int w = 0; w < kSelectWarps; ++w) {
      const std::uint32_t of_warp = warps[w];
      if (w < warp) before += of_warp;
      total += of_warp;
    }
    return before;
  }

  /// Precondition: the row has more than k keys.
  __device__ __forceinline__ Threshold find_threshold() {
    std::uint32_t low = 0, high = 0;
    bound_keys(low, high);
    auto rest = static_cast<std::uint32_t>(p_.k);
    while (true) {
      int shift = 0;
      while ((high - low) >> shift >= kKeyBins) ++shift;
      count_keys(low, high, shift);
      const LastBin last = find_bin(rest);
      if (last.count == 0) return {};  // NaN is not selected
      rest = last.rest;
      low += last.bin << shift;
      // All keys of the bin are selected: their order does not matter.
      if (rest == last.count) return {low - 1, 0};
      if (shift == 0) return {low, rest};
      const std::uint32_t last_of_bin = low + ((1u << shift) - 1);
      if (last_of_bin < high) high = last_of_bin;
      if (last.count <= kKeysListed) return rank_keys(low, high, rest);
    }
  }

  // Bounds of the k-th best key. Sets of a thread's neighbouring groups: if at least k sets have a
  // key, the least of their best keys has k - 1 others that are not below it, so the k-th best key
  // is not below it either.
  __device__ __forceinline__ void bound_keys(std::uint32_t& low, std::uint32_t& high) {
    int each = 1;  // groups of a set
    while (each < kGroups && len_ >= 2 * each * kGroupKeys * p_.k) each *= 2;
    std::uint32_t least = ~0u, most = 0, sets = 0;
    for_tiles([&](std::int32_t) {
      std::uint32_t best = 0;
      LATHE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        if (g >= groups_) break;
        const KeyGroup group = s_.tile[g][threadIdx.x];
        LATHE_UNROLL
        for (const std::uint32_t key : group.keys) best = key > best ? key : best;
        if (((g + 1) & (each - 1)) != 0 && g + 1 < groups_) continue;
        if (best > 0) {
          least = best < least ? best : least;
          most = best > most ? best : most;
          ++sets;
        }
        best = 0;
      }
    });
    least = ~warp_max(~least);
    most = warp_max(most);
    for (int d = 16; d > 0; d /= 2) sets += shuffle_xor(sets, d);
    const int slot = team_.next_slot();
    if (thread() == 0) s_.least[slot] = ~0u, s_.most[slot] = 0, s_.sets[slot] = 0;
    sync_block();
    if (thread() % 32 == 0) {
      atomicMin(&s_.least[slot], least);
      atomicMax(&s_.most[slot], most);
      atomicAdd(&s_.sets[slot], sets);
    }
    team_.sync();
    low = ~0u, high = 1, sets = 0;
    LATHE_UNROLL  // so that the loads overlap
        for (int b = 0; b < kMostTeamBlocks; ++b) {
      if (b >= team_.size) continue;
      const SelectShared& other = team_.of(b);
      const std::uint32_t other_least = other.least[slot], other_most = other.most[slot];
      low = other_least < low ? other_least : low;
      high = other_most > high ? other_most : high;
      sets += other.sets[slot];
    }
    if (sets < p_.k) low = 1;
  }

  __device__ __forceinline__ void count_keys(std::uint32_t low, std::uint32_t high, int shift) {
    slot_ = team_.next_slot();
    auto* bins = s_.bins[slot_];
    for (int i = thread(); i < kKeyBins; i += kSelectThreads) bins[i] = 0;
    sync_block();
    for_tiles([&](std::int32_t) {
      for_keys([&](int, std::uint32_t key) {
        if (key - low <= high - low) atomicAdd(&bins[(key - low) >> shift], 1u);
      });
    });
    team_.sync();
  }

  // The bin where the number of keys, from the highest bin on, reaches `rest`. A thread has four
  // bins, the first thread the highest.
  __device__ LastBin find_bin(std::uint32_t rest) {
    const int low = kKeyBins - kGroupKeys * (thread() + 1);
    std::uint32_t n[4] = {};
    LATHE_UNROLL_BY(2)  // so that loads overlap
    for (int b = 0; b < kMostTeamBlocks; ++b) {
      if (b >= team_.size) continue;
      const auto group = *reinterpret_cast<const KeyGroup*>(team_.of(b).bins[slot_] + low);
      LATHE_UNROLL
      for (int i = 0; i < kGroupKeys; ++i) n[i] += group.keys[i];
    }
    std::uint32_t total = 0;
    std::uint32_t before = sum_before(n[0] + n[1] + n[2] + n[3], s_.warps[slot_], total);
    LATHE_UNROLL
    for (int i = 3; i >= 0; --i) {
      if (before < rest && rest <= before + n[i]) {
        s_.last = {static_cast<std::uint32_t>(low + i), rest - before, n[i]};
      }
      before += n[i];
    }
    if (thread() == 0 && total < rest) s_.last = {};
    sync_block();
    return s_.last;
  }

  // The threshold among the few keys from low to high, of which `rest` are selected.
  __device__ __forceinline__ Threshold rank_keys(std::uint32_t low, std::uint32_t high,
                                                 std::uint32_t rest) {
    if (thread() == 0) s_.listed = 0;
    sync_block();
    for_tiles([&](std::int32_t) {
      for_keys([&](int, std::uint32_t key) {
        if (key - low <= high - low) s_.own[atomicAdd(&s_.listed, 1u)] = key;
      });
    });
    team_.sync();
    std::uint32_t count = 0;
    for (int b = 0; b < team_.size; ++b) {
      const SelectShared& other = team_.of(b);
      const std::uint32_t listed = other.listed;
      for (std::uint32_t i = threadIdx.x; i < listed; i += kSelectThreads) {
        s_.list[count + i] = other.own[i];
      }
      count += listed;
    }
    if (threadIdx.x < kGroupKeys) s_.list[count + threadIdx.x] = 0;  // read with the last keys
    sync_block();
    if (threadIdx.x < count) {
      const std::uint32_t mine = s_.list[threadIdx.x];
      std::uint32_t above = 0, equal = 0;
      LATHE_UNROLL_BY(4)
      for (std::uint32_t i = 0; i < count; i += kGroupKeys) {
        const KeyGroup group = *reinterpret_cast<const KeyGroup*>(s_.list + i);
        LATHE_UNROLL
        for (const std::uint32_t other : group.keys) {
          above += other > mine ? 1u : 0u;
          equal += other == mine ? 1u : 0u;
        }
      }
      if (above < rest && rest <= above + equal) {
        s_.threshold =
            rest == above + equal ? Threshold{mine - 1, 0} : Threshold{mine, rest - above};
      }
    }
    sync_block();
    return s_.threshold;
  }

  /// Stores the positions of this block's selected keys in slots[begin .. end - 1]. Returns how
  /// many all blocks store.
  __device__ __forceinline__ std::int32_t store_positions(const Threshold& t, std::int32_t& begin,
                                                          std::int32_t& end) {
    std::uint32_t better = 0, equal = 0;  // of earlier blocks, then of earlier tiles too
    std::uint32_t all_better = 0, all_equal = 0;
    if (team_.size > 1) count_of_blocks(t, better, equal, all_better, all_equal);
    const auto selected = [&](std::uint32_t above, std::uint32_t ties) {
      return static_cast<std::int32_t>(above + (ties < t.equal ? ties : t.equal));
    };
    begin = selected(better, equal);
    for_tiles([&](std::int32_t tile) {
      if (t.equal > 0) {
        store_tile<true>(t, tile, better, equal);
      } else {
        store_tile<false>(t, tile, better, equal);
      }
    });
    end = selected(better, equal);
    return team_.size > 1 ? selected(all_better, all_equal) : end;
  }

  // Better and equal keys of earlier blocks, and of all.
  __device__ __forceinline__ void count_of_blocks(const Threshold& t, std::uint32_t& better,
                                                  std::uint32_t& equal, std::uint32_t& all_better,
                                                  std::uint32_t& all_equal) {
    if (threadIdx.x < 2) s_.totals[threadIdx.x] = 0;
    sync_block();
    std::uint32_t mine[2] = {};
    for_tiles([&](std::int32_t) {
      for_keys([&](int, std::uint32_t key) { mine[0] += key > t.key ? 1u : 0u; });
      if (t.equal == 0) return;
      for_keys([&](int, std::uint32_t key) { mine[1] += key == t.key ? 1u : 0u; });
    });
    for (int i = 0; i < 2; ++i) {
      for (int d = 16; d > 0; d /= 2) mine[i] += shuffle_xor(mine[i], d);
      if (thread() % 32 == 0) atomicAdd(&s_.totals[i], mine[i]);
    }
    team_.sync();
    LATHE_UNROLL
    for (int b = 0; b < kMostTeamBlocks; ++b) {
      if (b >= team_.size) continue;
      const SelectShared& other = team_.of(b);
      if (b == team_.rank) better = all_better, equal = all_equal;
      all_better += other.totals[0];
      all_equal += other.totals[1];
    }
  }

  // Positions ascend by group, then by thread, then within the group. kTies: some keys that equal
  // the threshold are selected.
  template <bool kTies>
  __device__ __forceinline__ void store_tile(const Threshold& t, std::int32_t tile,
                                             std::uint32_t& better, std::uint32_t& equal) {
    const int lane = thread() % 32, warp = thread() / 32;
    // Per group, in 8 bits each: a warp has at most 128 keys of a group.
    std::uint32_t own[2][kGroups / 4] = {}, upto[2][kGroups / 4] = {};
    for_keys([&](int g, std::uint32_t key) {
      const std::uint32_t one = 1u << g % 4 * 8;
      own[0][g / 4] += key > t.key ? one : 0;
      if (kTies) own[1][g / 4] += key == t.key ? one : 0;
    });
    LATHE_UNROLL
    for (int i = 0; i < (kTies ? 4 : 2); ++i) {
      std::uint32_t sum = own[i / 2][i % 2];
      for (int d = 1; d < 32; d *= 2) {
        const std::uint32_t before = shuffle_up(sum, d);
        if (lane >= d) sum += before;
      }
      upto[i / 2][i % 2] = sum;
    }
    LATHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const std::uint32_t above = upto[0][g / 4] >> g % 4 * 8 & 0xffu;
      const std::uint32_t ties = upto[1][g / 4] >> g % 4 * 8 & 0xffu;
      // Better keys in the low half: a tile has at most 2^14.
      if (lane == 31) s_.group_sums[g * kSelectWarps + warp] = above | ties << 16;
    }
    sync_block();
    constexpr int kSums = kGroups * kSelectWarps;
    static_assert(kSums <= kSelectThreads);
    std::uint32_t total = 0;
    const std::uint32_t before =
        sum_before(thread() < kSums ? s_.group_sums[thread()] : 0, s_.warps[0], total);
    if (thread() < kSums) s_.group_sums[thread()] = before;
    sync_block();
    std::int32_t* slots = row_slots();
    LATHE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const std::uint32_t sums = s_.group_sums[g * kSelectWarps + warp];
      const auto before_lane = [&](int i) {
        return (upto[i][g / 4] - own[i][g / 4]) >> g % 4 * 8 & 0xffu;
      };
      if (g >= groups_) break;
      std::uint32_t above = better + (sums & 0xffffu) + before_lane(0);
      std::uint32_t ties = equal + (sums >> 16) + before_lane(1);
      const KeyGroup group = s_.tile[g][threadIdx.x];
      LATHE_UNROLL
      for (int e = 0; e < kGroupKeys; ++e) {
        const std::uint32_t key = group.keys[e];
        if constexpr (kTies) {
          const bool tie = key == t.key;
          if (key > t.key || (tie && ties < t.equal)) {
            slots[above + (ties < t.equal ? ties : t.equal)] = tile + offset_of(g, e);
          }
          ties += tie ? 1u : 0u;
        } else if (key > t.key) {
          slots[above] = tile + offset_of(g, e);
        }
        above += key > t.key ? 1u : 0u;
      }
    }
    better += total & 0xffffu;
    equal += total >> 16;
    sync_block();  // before the next tile's sums
  }

  const SelectSlots& p_;
  const std::int32_t row_;
  Team& team_;
  SelectShared& s_;
  const std::int32_t len_;
  std::int32_t first_ = 0, end_ = 0;  // positions of this block
  std::int32_t loaded_ = -1;          // the tile in shared memory
  int groups_ = 0;                    // with keys
  int slot_ = 0;                      // of the bins
};

static __global__ void __launch_bounds__(kSelectThreads, 2)
    select_slots_kernel(const __grid_constant__ SelectSlots p, int blocks) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  BlockTeam<SelectShared> team(shared, blocks);
  RowSelector(p, static_cast<std::int32_t>(blockIdx.x) / blocks, team).run();
  team.sync();
}

/// The same for rows with kUnselected in their first slot.
static __global__ void __launch_bounds__(kSelectThreads, 1)
    select_marked_kernel(const __grid_constant__ SelectSlots p, int blocks) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  BlockTeam<SelectShared> team(shared, blocks);
  const auto teams = static_cast<std::int32_t>(gridDim.x) / blocks;
  for (auto row = static_cast<std::int32_t>(blockIdx.x) / blocks; row < p.rows; row += teams) {
    if (p.slots[row * p.k] != kUnselected) continue;
    team.sync();  // all blocks have read the mark
    RowSelector(p, row, team).run();
    team.sync();
  }
}

static __global__ void __launch_bounds__(kSlotThreads)
    take_choices_kernel(const __grid_constant__ TakeChoices p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  const std::int64_t choice = p.choice_rows[row];
  const std::int64_t keys = choice >= 0 ? p.choice_width : p.select.lens[row];
  for (std::int64_t i = threadIdx.x; i < p.select.k; i += kSlotThreads) {
    std::int32_t slot = -1;
    if (i < keys) {
      slot = choice >= 0 ? p.choices[choice * p.choice_width + i]
                         : slot_at(p.select, p.select.request[row], static_cast<std::int32_t>(i));
    }
    p.select.slots[row * p.select.k + i] = slot;
  }
}

static __global__ void __launch_bounds__(kSlotThreads)
    count_up_kernel(std::int32_t* slots, const std::int32_t* like, std::int64_t count) {
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  if (i >= count) return;
  slots[i] = like != nullptr && like[i] < 0 ? -1 : static_cast<std::int32_t>(i);
}

}  // namespace lathe::cuda
