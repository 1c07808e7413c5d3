// Sums by push. Each rank stores its rows into its slot of the peers' planes of this call, and
// polls its own plane until no word is unsent. No flag and no fence is needed: the data themselves
// say that they have arrived.
//
// Why three planes suffice: a rank leaves a call only after every peer has entered it, so at most
// one call separates them. While a slow rank reads plane c, a fast one writes plane c + 1, and both
// fill c - 1 again, each its own. The fill is complete before a peer writes there, because the peer
// enters call c + 2 only after this rank has entered c + 1, when its kernel of call c has ended.
#pragma once

#include "kernels/cuda/sm90/exchange/exchange.cuh"

namespace lathe::cuda {

/// A plane, packed: a slot of `rows` rows from each peer, in order of rank. Where rows are owned, a
/// slot has only the owner's share of rows, and h of all rows follows the slots.
struct PlaneMap {
  int words = 0;           // of a row
  int rows = 0;            // of a slot
  std::int64_t start = 0;  // of the plane of this call

  /// In a plane: the first word of a row in slot `slot`.
  __device__ __forceinline__ int in_slot(int slot, int row) const {
    return (slot * rows + row) * words;
  }
  /// Of the words that `from` sends to `to`, the first of a row.
  __device__ __forceinline__ std::int64_t at(int to, int from, int row) const {
    return start + in_slot(from < to ? from : from - 1, row);
  }
};

__device__ __forceinline__ uint4* plane_of(const ExchangePeers& p, int rank) {
  return static_cast<uint4*>(p.planes[rank]);
}

/// Fills this rank's plane of the push before, so that it can be used two pushes from now.
__device__ __forceinline__ void clear_last_plane(const ExchangePeers& p, const ExchangeState& now) {
  const std::uint32_t last = now.plane == 0 ? kPlanes - 1 : now.plane - 1;
  uint4* plane = plane_of(p, p.rank) + last * p.plane_words;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < now.used; i += step) {
    plane[i] = {kUnsent, kUnsent, kUnsent, kUnsent};
  }
}

/// Adds all ranks' words of a row in rank order: this rank's from its partial, the others' from
/// this rank's plane, which it polls until they have arrived. Few words are all requested before
/// the first is used. False: the wait was given up.
template <int kRanks, int kWords>
__device__ __forceinline__ bool sum_arriving(const ExchangePeers& p, const RowEnd<kWords>& end,
                                             const std::byte* mine, DType dtype,
                                             const PlaneMap& map, int slot_row,
                                             RowPart<kWords>& sum, Wait& wait) {
  constexpr int kPeers = kRanks - 1;
  constexpr int kAtOnce = kPeers * kWords <= 6 ? kWords : 1;
  const uint4* plane = plane_of(p, p.rank) + map.start;
  bool ok = true;
  LATHE_UNROLL
  for (int first = 0; first < kWords; first += kAtOnce) {
    uint4 theirs[kAtOnce][kPeers] = {}, own[kAtOnce] = {};
    LATHE_UNROLL
    for (int w = 0; w < kAtOnce; ++w) {
      LATHE_UNROLL
      for (int k = 0; k < kPeers; ++k) {
        if (end.has(first + w)) {
          theirs[w][k] = load_system(plane + (map.in_slot(k, slot_row) + end.word(first + w)));
        }
      }
      if (end.has(first + w)) own[w] = load_partial(mine, dtype, end.word(first + w));
    }
    LATHE_ROLLED
    while (ok) {
      bool missing = false;
      LATHE_UNROLL
      for (int w = 0; w < kAtOnce; ++w) {
        LATHE_UNROLL
        for (int k = 0; k < kPeers; ++k) {
          if (has_arrived(theirs[w][k])) continue;
          missing = true;
          theirs[w][k] = load_system(plane + (map.in_slot(k, slot_row) + end.word(first + w)));
        }
      }
      if (!missing) break;
      ok = !wait.gives_up();
    }
    LATHE_UNROLL
    for (int w = 0; w < kAtOnce; ++w) {
      Eight all = zeros();
      LATHE_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        uint4 word = own[w];
        if (r < p.rank) word = theirs[w][r < kPeers ? r : 0];
        if (r > p.rank) word = theirs[w][r > 0 ? r - 1 : 0];
        add_word(all, word);
      }
      LATHE_UNROLL
      for (int i = 0; i < 8; ++i) sum.v[first + w].v[i] += all.v[i];
    }
  }
  return ok;
}

template <int kRanks, int kWords, int kThreads>
static __global__ void __launch_bounds__(kThreads, kRanks == 2 && kThreads <= 512 ? 2 : 1)
    push_kernel(const __grid_constant__ ExchangePeers p, const __grid_constant__ SumParams q) {
  __shared__ float room[kRowGroups];
  let_next_begin();
  const RowEnd<kWords> end(q, room);
  wait_for_previous();
  const ExchangeState now = load_state(p);
  if (now.gave_up != 0) return;
  const PlaneMap map{end.words, static_cast<int>(q.rows), now.plane * p.plane_words};
  // All of the block's rows go out before the first wait.
  for (int row = blockIdx.x; row < q.rows; row += gridDim.x) {
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      if (!end.has(w)) continue;
      const uint4 v =
          load_partial(q.partial.data + row * row_bytes(q.partial), q.partial.dtype, end.word(w));
      LATHE_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        if (r != p.rank) store_system(plane_of(p, r) + map.at(r, p.rank, row) + end.word(w), v);
      }
    }
  }
  clear_last_plane(p, now);
  Wait wait{p, now.call};
  for (int row = blockIdx.x; row < q.rows; row += gridDim.x) {
    RowPart<kWords> sum = end.before(row);
    const bool ok = sum_arriving<kRanks>(p, end, q.partial.data + row * row_bytes(q.partial),
                                         q.partial.dtype, map, row, sum, wait);
    if (sync_block_or(!ok)) return;
    end.finish(row, sum, [&](int w, uint4 v) { *end.h(row, w) = v; });
  }
  leave(p, now, true, static_cast<std::uint32_t>((p.size - 1) * q.rows * end.words));
}

template <int kRanks, int kWords, int kThreads>
static __global__ void __launch_bounds__(kThreads)
    push_owned_kernel(const __grid_constant__ ExchangePeers p,
                      const __grid_constant__ SumParams q) {
  __shared__ float room[kRowGroups];
  let_next_begin();
  const RowEnd<kWords> end(q, room);
  wait_for_previous();
  const ExchangeState now = load_state(p);
  if (now.gave_up != 0) return;
  const int share = (static_cast<int>(q.rows) + kRanks - 1) / kRanks;
  const PlaneMap map{end.words, share, now.plane * p.plane_words};
  const std::int64_t h_start = map.start + (kRanks - 1) * share * end.words;
  const auto owner = [&](int row) { return row / share; };
  for (int row = blockIdx.x; row < q.rows; row += gridDim.x) {
    const int to = owner(row);
    if (to == p.rank) continue;
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      if (!end.has(w)) continue;
      store_system(
          plane_of(p, to) + map.at(to, p.rank, row - to * share) + end.word(w),
          load_partial(q.partial.data + row * row_bytes(q.partial), q.partial.dtype, end.word(w)));
    }
  }
  clear_last_plane(p, now);
  Wait wait{p, now.call};
  for (int row = blockIdx.x; row < q.rows; row += gridDim.x) {
    if (owner(row) != p.rank) continue;
    RowPart<kWords> sum = end.before(row);
    const bool ok = sum_arriving<kRanks>(p, end, q.partial.data + row * row_bytes(q.partial),
                                         q.partial.dtype, map, row - p.rank * share, sum, wait);
    if (sync_block_or(!ok)) return;
    end.finish(row, sum, [&](int w, uint4 v) {
      *end.h(row, w) = v;
      LATHE_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        if (r != p.rank) {
          store_system(plane_of(p, r) + h_start + row * end.words + end.word(w), v);
        }
      }
    });
  }
  bool ok = true;
  for (int row = blockIdx.x; row < q.rows; row += gridDim.x) {
    if (owner(row) == p.rank) continue;
    for (int w = 0; w < kWords; ++w) {
      if (!end.has(w)) continue;
      const uint4* from = plane_of(p, p.rank) + h_start + row * end.words + end.word(w);
      uint4 v = load_system(from);
      while (ok && !has_arrived(v)) {
        if (wait.gives_up()) ok = false;
        v = load_system(from);
      }
      if (ok) *end.h(row, w) = v;
    }
  }
  if (sync_block_or(!ok)) return;
  leave(p, now, true, static_cast<std::uint32_t>(((kRanks - 1) * share + q.rows) * end.words));
}

}  // namespace lathe::cuda
