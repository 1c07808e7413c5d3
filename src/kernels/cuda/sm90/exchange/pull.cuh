// Exchanges by flags: every rank tells its peers where its data are, reads theirs, and leaves only
// when all peers have read its own. Each block has flags of its own, so no block waits for the
// whole grid; all blocks must run at once.
#pragma once

#include "kernels/cuda/sm90/exchange/exchange.cuh"

namespace lathe::cuda {

/// The flag that `from` writes for this block of `to`.
__device__ __forceinline__ ExchangeFlag* flag_of(const ExchangePeers& p, int to, int from) {
  return p.flags[to] + static_cast<std::int64_t>(blockIdx.x) * kMostRanks + from;
}

/// Gives `address` and `other` to all peers and waits for theirs. All threads of the block
/// call it. False: a wait was given up.
__device__ __forceinline__ bool enter(const ExchangePeers& p, const ExchangeState& now,
                                      std::uint64_t address, std::uint64_t other, Wait& wait) {
  const int peer = static_cast<int>(threadIdx.x);
  bool ok = true;
  if (peer < p.size && peer != p.rank) {
    ExchangeFlag* to = flag_of(p, peer, p.rank);
    store_system(&to->address, address);
    store_system(&to->other, other);
    store_release(&to->entered, now.call + 1);
    const ExchangeFlag* from = flag_of(p, p.rank, peer);
    while (ok && load_acquire(&from->entered) != now.call + 1) ok = !wait.gives_up();
  }
  return !sync_block_or(!ok);
}
/// Waits until no peer's block accesses memory of this rank any more, and tells the peers that this
/// block accesses none of theirs.
__device__ __forceinline__ bool finish(const ExchangePeers& p, const ExchangeState& now,
                                       Wait& wait) {
  sync_block();
  const int peer = static_cast<int>(threadIdx.x);
  bool ok = true;
  if (peer < p.size && peer != p.rank) {
    store_release(&flag_of(p, peer, p.rank)->done, now.call + 1);
    const ExchangeFlag* from = flag_of(p, p.rank, peer);
    while (ok && load_acquire(&from->done) != now.call + 1) ok = !wait.gives_up();
  }
  return !sync_block_or(!ok);
}

/// After enter(): the address that a rank offered, or `mine` for this rank.
__device__ __forceinline__ std::uint64_t offered(const ExchangePeers& p, int rank,
                                                 std::uint64_t mine) {
  return rank == p.rank ? mine : load_system(&flag_of(p, p.rank, rank)->address);
}
__device__ __forceinline__ std::uint64_t offered_other(const ExchangePeers& p, int rank,
                                                       std::uint64_t mine) {
  return rank == p.rank ? mine : load_system(&flag_of(p, p.rank, rank)->other);
}
__device__ __forceinline__ std::uint64_t peer_address(const void* p) {
  return reinterpret_cast<std::uint64_t>(p);
}

/// A word of a row of all ranks' partials.
template <int kRanks>
struct RankWords {
  uint4 v[kRanks];

  /// partials: where each rank's row is.
  __device__ __forceinline__ void request(const ExchangePeers& p,
                                          const std::uint64_t (&partials)[kRanks],
                                          std::int64_t at_byte, DType dtype, int word) {
    LATHE_UNROLL
    for (int r = 0; r < kRanks; ++r) {
      v[r] = load_partial(reinterpret_cast<const std::byte*>(partials[r]) + at_byte, dtype, word,
                          r != p.rank);
    }
  }
  /// Adds them in rank order.
  __device__ __forceinline__ void add_to(Eight& sum) const {
    Eight all = zeros();
    LATHE_UNROLL
    for (int r = 0; r < kRanks; ++r) add_word(all, v[r]);
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) sum.v[i] += all.v[i];
  }
};

/// kOwned: sums only this rank's share of rows, and writes their h to all ranks.
template <int kRanks, int kWords, int kThreads, bool kOwned>
static __global__ void __launch_bounds__(kThreads)
    pull_kernel(const __grid_constant__ ExchangePeers p, const __grid_constant__ SumParams q) {
  __shared__ float room[kRowGroups];
  let_next_begin();
  const RowEnd<kWords> end(q, room);
  wait_for_previous();
  const ExchangeState now = load_state(p);
  if (now.gave_up != 0) return;
  Wait wait{p, now.call};
  if (!enter(p, now, peer_address(q.partial.data), peer_address(q.h.data), wait)) return;
  std::uint64_t partials[kRanks];
  LATHE_UNROLL
  for (int r = 0; r < kRanks; ++r) partials[r] = offered(p, r, peer_address(q.partial.data));
  const std::int64_t share = kOwned ? (q.rows + kRanks - 1) / kRanks : q.rows;
  const std::int64_t first = kOwned ? p.rank * share : 0;
  const std::int64_t last = first + share < q.rows ? first + share : q.rows;
  // Where registers suffice, the next row is requested before this one is finished.
  constexpr bool kAhead = kRanks * kWords <= 4;
  RankWords<kRanks> words[kAhead ? kWords : 1];
  const auto request = [&](std::int64_t row, int w, RankWords<kRanks>& to) {
    if (row < last && end.has(w)) {
      to.request(p, partials, row * row_bytes(q.partial), q.partial.dtype, end.word(w));
    }
  };
  if constexpr (kAhead) {
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) request(first + blockIdx.x, w, words[w]);
  }
  for (std::int64_t row = first + blockIdx.x; row < last; row += gridDim.x) {
    RowPart<kWords> sum = end.before(row);
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      RankWords<kRanks>& mine = words[kAhead ? w : 0];
      if constexpr (!kAhead) request(row, w, mine);
      if (end.has(w)) mine.add_to(sum.v[w]);
      if constexpr (kAhead) request(row + gridDim.x, w, mine);
    }
    end.finish(row, sum, [&](int w, uint4 v) {
      *end.h(row, w) = v;
      if constexpr (kOwned) {
        LATHE_UNROLL
        for (int r = 0; r < kRanks; ++r) {
          if (r == p.rank) continue;
          auto* h = reinterpret_cast<uint4*>(offered_other(p, r, 0));
          store_system(h + row * (q.h.stride / 8) + end.word(w), v);
        }
      }
    });
    sync_block();  // the next row's sum uses the same room
  }
  if (!finish(p, now, wait)) return;
  leave(p, now, false, 0);
}

inline constexpr int kDealThreads = 512;

/// x = (add ? x : 0) + the sum of f32 partials, not rounded.
template <int kRanks>
static __global__ void __launch_bounds__(kDealThreads)
    exact_sum_kernel(const __grid_constant__ ExchangePeers p, const __grid_constant__ SumParams q) {
  let_next_begin();
  wait_for_previous();
  const ExchangeState now = load_state(p);
  if (now.gave_up != 0) return;
  Wait wait{p, now.call};
  if (!enter(p, now, peer_address(q.partial.data), 0, wait)) return;
  const int words = static_cast<int>(q.cols / 4);
  for (std::int64_t row = blockIdx.x; row < q.rows; row += gridDim.x) {
    for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) {
      float sum[4] = {0, 0, 0, 0};
      LATHE_UNROLL
      for (int r = 0; r < kRanks; ++r) {
        const auto* from =
            reinterpret_cast<const std::byte*>(offered(p, r, peer_address(q.partial.data))) +
            row * row_bytes(q.partial);
        const uint4 v = load_word(reinterpret_cast<const uint4*>(from) + i, r != p.rank);
        sum[0] += bits_to_float(v.x);
        sum[1] += bits_to_float(v.y);
        sum[2] += bits_to_float(v.z);
        sum[3] += bits_to_float(v.w);
      }
      auto* x =
          reinterpret_cast<float4*>(reinterpret_cast<float*>(q.x.data) + row * q.x.stride) + i;
      float4 out = {0, 0, 0, 0};
      if (q.add) out = *x;
      *x = {out.x + sum[0], out.y + sum[1], out.z + sum[2], out.w + sum[3]};
    }
  }
  if (!finish(p, now, wait)) return;
  leave(p, now, false, 0);
}

static __global__ void __launch_bounds__(kDealThreads)
    trade_columns_kernel(const __grid_constant__ ExchangePeers p,
                         const __grid_constant__ TradeParams q) {
  let_next_begin();
  wait_for_previous();
  const ExchangeState now = load_state(p);
  if (now.gave_up != 0) return;
  Wait wait{p, now.call};
  if (!enter(p, now, peer_address(q.columns), static_cast<std::uint64_t>(q.stride), wait)) return;
  const unsigned step = gridDim.x * blockDim.x;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const auto own_rows = static_cast<unsigned>((q.rows + p.size - 1 - p.rank) / p.size);
  const std::int64_t size = p.size, rank = p.rank;
  constexpr unsigned kInFlight = 4;
  for (int r = 0; r < p.size; ++r) {
    const auto* from =
        reinterpret_cast<const std::uint32_t*>(offered(p, r, peer_address(q.columns)));
    const auto stride =
        static_cast<std::int64_t>(offered_other(p, r, static_cast<std::uint64_t>(q.stride)));
    const auto cols = static_cast<unsigned>(q.first[r + 1] - q.first[r]);
    // All elements of all own rows in turn, so that every thread has some whatever a row's width.
    const unsigned count = own_rows * cols;
    for (unsigned first = thread; first < count; first += kInFlight * step) {
      std::uint32_t v[kInFlight];
      LATHE_UNROLL
      for (unsigned j = 0; j < kInFlight; ++j) {
        const unsigned i = first + j * step, own = i / cols;
        if (i < count) v[j] = load_system(from + (own * size + rank) * stride + i % cols);
      }
      LATHE_UNROLL
      for (unsigned j = 0; j < kInFlight; ++j) {
        const unsigned i = first + j * step, own = i / cols;
        if (i < count) q.whole[own * q.whole_stride + q.first[r] + i % cols] = bits_to_float(v[j]);
      }
    }
  }
  if (!finish(p, now, wait)) return;
  leave(p, now, false, 0);
}

static __global__ void __launch_bounds__(kDealThreads)
    share_records_kernel(const __grid_constant__ ExchangePeers p,
                         const __grid_constant__ ShareParams q) {
  let_next_begin();
  wait_for_previous();
  const ExchangeState now = load_state(p);
  if (now.gave_up != 0) return;
  Wait wait{p, now.call};
  if (!enter(p, now, peer_address(q.records), 0, wait)) return;
  auto* records = static_cast<uint4*>(q.records);
  for (std::int64_t i = threadIdx.x; i < q.count; i += blockDim.x) {
    const int owner = static_cast<int>(i % p.size);
    if (owner != p.rank) {
      records[i] = load_system(reinterpret_cast<const uint4*>(offered(p, owner, 0)) + i);
    }
  }
  if (!finish(p, now, wait)) return;
  leave(p, now, false, 0);
}

}  // namespace lathe::cuda
