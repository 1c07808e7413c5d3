// The exact top-k of few short rows, where a launch takes as long as its longest chain of loads and
// barriers. A block has a row, and a thread keeps neighbouring keys in registers: at most three
// histograms of the keys' bits find the k-th best one, and one sum over the block says where a
// thread's slots go.
#pragma once

#include "kernels/cuda/sm90/indexer/select.cuh"

namespace lathe::cuda {

inline constexpr int kShortThreads = 1024;
inline constexpr int kShortBits = 11, kShortBins = 1 << kShortBits;
static_assert(kShortBins == 2 * kShortThreads);
inline constexpr std::int64_t kShortKeys = 8 * kShortThreads;  // of a row, at most

struct ShortShared {
  static constexpr int kPasses = 3;  // 32 bits in parts of kShortBits

  alignas(16) std::uint32_t bins[kPasses][kShortBins];
  std::uint32_t least[32], most[32], warps[2][32];
  std::uint32_t bin, rest, count;  // LastBin's, which is not trivial
};

/// kEach: keys of a thread, 4 or 8.
template <int kEach>
class ShortSelector {
 public:
  __device__ ShortSelector(const SelectSlots& p, ShortShared& shared)
      : p_(p),
        s_(shared),
        row_(static_cast<std::int32_t>(blockIdx.x)),
        len_(p.lens[row_]),
        request_(p.request[row_]),
        slots_(p.slots + row_ * p.k) {}

  __device__ void run() {
    std::uint32_t keys[kEach];
    load(keys);
    // One page has all keys of a thread as a rule, and is looked up before it is needed.
    const std::int32_t first = thread() * kEach;
    const bool one_page = p_.page_tokens % kEach == 0;
    const std::int32_t own = one_page && first < len_ ? slot_at(p_, request_, first) : -1;
    clear_bins();
    const Threshold t = len_ > p_.k ? find_threshold(keys) : Threshold{};
    std::uint32_t mine = 0;  // better keys, and equal ones in the upper half
    LATHE_UNROLL
    for (const std::uint32_t key : keys) mine += (key > t.key ? 1u : 0) + (ties(t, key) << 16);
    std::uint32_t all = 0;
    const std::uint32_t before = sum_before(mine, s_.warps[1], all);
    std::uint32_t better = before & 0xffffu, equal = before >> 16;
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const std::uint32_t tie = ties(t, keys[i]);
      if (keys[i] > t.key || (tie != 0 && equal < t.equal)) {
        const std::int32_t slot = own < 0 ? -1 : own + i;
        slots_[selected(t, better, equal)] = one_page ? slot : slot_at(p_, request_, first + i);
      }
      better += keys[i] > t.key ? 1u : 0;
      equal += tie;
    }
    const std::int64_t stored = selected(t, all & 0xffffu, all >> 16);
    for (std::int64_t i = stored + thread(); i < p_.k; i += kShortThreads) slots_[i] = -1;
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ static int lane() { return thread() % 32; }
  __device__ static int warp() { return thread() / 32; }
  __device__ static std::uint32_t ties(const Threshold& t, std::uint32_t key) {
    return t.equal > 0 && key == t.key ? 1 : 0;
  }
  /// How many keys are selected if so many are better than the threshold and equal to it.
  __device__ static std::uint32_t selected(const Threshold& t, std::uint32_t better,
                                           std::uint32_t equal) {
    return better + (equal < t.equal ? equal : t.equal);
  }

  /// The keys of scores (score_key()), 0 past the row's; all equal if all are selected. Loads what
  /// the row has room for, as its length is still being loaded.
  __device__ void load(std::uint32_t (&keys)[kEach]) const {
    const std::int32_t first = thread() * kEach;
    const auto cols = static_cast<std::int32_t>(p_.cols);
    const float* scores = p_.logits + row_ * p_.cols + first;
    float x[kEach] = {};
    if (cols % 4 == 0 && reinterpret_cast<std::uintptr_t>(p_.logits) % 16 == 0) {
      LATHE_UNROLL
      for (int i = 0; i < kEach; i += 4) {
        if (first + i >= cols) continue;
        const float4 v = *reinterpret_cast<const float4*>(scores + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
      }
    } else {
      LATHE_UNROLL
      for (int i = 0; i < kEach; ++i) {
        if (first + i < cols) x[i] = scores[i];
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const std::uint32_t key = len_ > p_.k ? score_key(x[i]) : 1;
      keys[i] = first + i < len_ ? key : 0;
    }
  }

  __device__ void clear_bins() {
    auto* const bins = reinterpret_cast<uint4*>(s_.bins);
    for (int i = thread(); i < ShortShared::kPasses * kShortBins / 4; i += kShortThreads) {
      bins[i] = {};
    }
  }

  /// The sum of `value` over the threads before this one; `all`: over all of them.
  __device__ std::uint32_t sum_before(std::uint32_t value, std::uint32_t* warps,
                                      std::uint32_t& all) const {
    std::uint32_t upto = value;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint32_t other = shuffle_up(upto, d);
      if (lane() >= d) upto += other;
    }
    if (lane() == 31) warps[warp()] = upto;
    sync_block();
    const std::uint32_t of_warp = warps[lane()];
    all = warp_sum(of_warp);
    return warp_sum(lane() < warp() ? of_warp : 0) + upto - value;
  }

  /// A shift after which `range` is below kShortBins: its exponent as a float, which may be rounded
  /// up, says how many bits it has.
  __device__ static int shift_of(std::uint32_t range) {
    const int bits = static_cast<int>(float_to_bits(static_cast<float>(range)) >> 23) - 126;
    return bits > kShortBits ? bits - kShortBits : 0;
  }

  /// Bounds of the keys, by which the first histogram's bins are narrower.
  __device__ void bound_keys(const std::uint32_t (&keys)[kEach], std::uint32_t& low,
                             std::uint32_t& high) {
    std::uint32_t least = ~0u, most = 1;
    LATHE_UNROLL
    for (const std::uint32_t key : keys) {
      if (key > 0 && key < least) least = key;
      if (key > most) most = key;
    }
    least = ~warp_max(~least), most = warp_max(most);
    if (lane() == 0) s_.least[warp()] = least, s_.most[warp()] = most;
    sync_block();
    low = ~warp_max(~s_.least[lane()]);
    high = warp_max(s_.most[lane()]);
  }

  /// Precondition: the row has more than k keys.
  __device__ Threshold find_threshold(const std::uint32_t (&keys)[kEach]) {
    std::uint32_t low, high;
    bound_keys(keys, low, high);
    if (low > high) return {};  // NaN is not selected
    auto rest = static_cast<std::uint32_t>(p_.k);
    LATHE_ROLLED
    for (auto* bins = s_.bins;; ++bins) {
      const int shift = shift_of(high - low);
      LATHE_UNROLL
      for (const std::uint32_t key : keys) {
        if (key - low <= high - low) atomicAdd(&(*bins)[(key - low) >> shift], 1u);
      }
      sync_block();
      const LastBin last = find_bin(*bins, rest);
      if (last.count == 0) return {};
      rest = last.rest;
      low += last.bin << shift;
      // All keys of the bin are selected: their order does not matter.
      if (rest == last.count) return {low - 1, 0};
      if (shift == 0) return {low, rest};
      const std::uint32_t last_of_bin = low + ((1u << shift) - 1);
      if (last_of_bin < high) high = last_of_bin;
    }
  }

  /// The bin where the number of keys, from the highest bin on, reaches `rest`. A thread has two
  /// neighbouring bins, the first thread the highest.
  __device__ LastBin find_bin(const std::uint32_t (&bins)[kShortBins], std::uint32_t rest) {
    const int low = kShortBins - 2 * (thread() + 1);
    const auto n = *reinterpret_cast<const uint2*>(bins + low);
    std::uint32_t total = 0;
    const std::uint32_t before = sum_before(n.x + n.y, s_.warps[0], total);
    const auto found = static_cast<std::uint32_t>(low);
    if (before < rest && rest <= before + n.y) {
      s_.bin = found + 1, s_.rest = rest - before, s_.count = n.y;
    } else if (before + n.y < rest && rest <= before + n.y + n.x) {
      s_.bin = found, s_.rest = rest - before - n.y, s_.count = n.x;
    }
    if (thread() == 0 && total < rest) s_.count = 0;
    sync_block();
    return {s_.bin, s_.rest, s_.count};
  }

  const SelectSlots& p_;
  ShortShared& s_;
  const std::int32_t row_, len_, request_;
  std::int32_t* const slots_;
};

template <int kEach>
static __global__ void __launch_bounds__(kShortThreads, 1)
    short_slots_kernel(const __grid_constant__ SelectSlots p) {
  __shared__ ShortShared shared;
  let_next_begin();
  wait_for_previous();
  ShortSelector<kEach>(p, shared).run();
}

}  // namespace lathe::cuda
