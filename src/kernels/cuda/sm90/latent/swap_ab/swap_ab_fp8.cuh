// Latent attention on fp8 caches with f16 operands, A and B swapped: keys on M, 8, 16 or 32 M rows
// (query row x head) on N.
//
//   S^T [64 keys, M rows]  = K Q^T     O^T [512 dims, M rows] += V^T P^T
//
// Keys stay fp8 in shared memory; two consumer warpgroups convert left operands in registers, as in
// m64_fp8.cuh. Each computes every other tile of 64 keys, with its own accumulator and row maxes;
// they synchronize at an item's end.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/latent/load/load_fp8_rows.cuh"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_loop.cuh"

namespace lathe::cuda {

template <class Format, int kBlockM>
struct SwapAbFp8 {
  static constexpr int kMRows = kBlockM;
  // More warpgroups would hold tiles that memory could be filling.
  static constexpr int kGroups = 2, kConsumerRegisters = 224;
  static constexpr int kProducerRegisters = 48;
  // f16 P is from 2^-24 to 2^16.
  static constexpr float kMaxLog2P = cuda::kMaxLog2P, kStartLog2P = cuda::kStartLog2P;
  static_assert(kGroups * kConsumerRegisters + kProducerRegisters <= 504,
                "setmaxnreg would wait for ever");
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kValues = 512;
  static constexpr int kTileQueries = kMRows * 128;  // bytes of 64 dimensions
  static constexpr int kBuffers = 4;
  // Most tiles of listed rows in flight or in use. With more, blocks get uneven shares of memory
  // bandwidth and the slowest decides; with 32 M rows, fewer are not enough, as wgmma is slower.
  static constexpr int kListedWindow = kMRows == 32 ? kBuffers : 3;
  using Ring = LatentRing<Format, kBuffers>;
  static_assert(kBuffers % kGroups == 0,
                "a group would take the tile before its own in a buffer for its own");
  // Half of a warpgroup's accumulator is staged in its last tile.
  static_assert(kMRows * kValues * 4 / 2 <= LatentRows<Format>::kTileBytes);

  static constexpr int kPAt = kDimTiles<Format> * kTileQueries;
  static constexpr int kKeysAt = kPAt + kGroups * kTileQueries;
  static constexpr int kScalesAt = kKeysAt + kBuffers * LatentRows<Format>::kTileBytes;
  static constexpr int kSmallAt = kScalesAt + kBuffers * LatentRows<Format>::kScaleBytes;
  static constexpr int kColumns = 4 * kMRows * 4;  // bytes of a warpgroup's
  static constexpr int kColumnsAt = (16 + 32 * kBuffers + 15) / 16 * 16 + 64;
  static constexpr int kAddressesAt = kSmallAt + kColumnsAt + kGroups * (kMRows * 4 + kColumns);
  static constexpr int kSharedBytes = kAddressesAt + LatentRowAddresses<Format>::kBytes;
  static_assert(kSharedBytes <= 232448 && kKeysAt % 16 == 0 && kSmallAt % 16 == 0 &&
                kAddressesAt % 16 == 0);

  // Named barriers, one per warpgroup and one for all.
  static constexpr int kFirstGroup = 1, kAllGroups = 1 + kGroups;
};

template <class Format, int kBlockM>
struct SwapAbFp8Shared {
  using N = SwapAbFp8<Format, kBlockM>;
  std::uint32_t q;  // address of the first array

  __device__ std::uint32_t small(int at) const {
    return q + static_cast<std::uint32_t>(N::kSmallAt + at);
  }
  __device__ typename N::Ring ring() const {
    return {q + N::kKeysAt, small(16), small(16 + 8 * N::kBuffers), small(16 + 24 * N::kBuffers),
            q + N::kAddressesAt};
  }
  __device__ static std::uint32_t parity(unsigned n) { return N::Ring::parity(n); }
  __device__ std::uint32_t keys(unsigned n) const { return ring().keys(n); }
  __device__ std::uint32_t full(unsigned n) const { return ring().full(n); }
  __device__ std::uint32_t mask(unsigned n) const { return ring().mask(n); }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  __device__ std::uint32_t scales(unsigned n) const {
    return q + N::kScalesAt + N::Ring::buffer(n) * LatentRows<Format>::kScaleBytes;
  }
  __device__ std::uint32_t info() const {  // two work items, alternating
    return small(N::kColumnsAt - 2 * static_cast<int>(LatentWorkInfo::kBytes));
  }
  __device__ std::uint32_t other_info() const { return info() + LatentWorkInfo::kBytes; }
  __device__ std::uint32_t p_tile(int group) const {  // f16 [M rows, 64 keys], swizzled
    return q + static_cast<std::uint32_t>(N::kPAt + group * N::kTileQueries);
  }
  __device__ std::uint32_t row_maxes(int group) const {  // [M rows] f32
    return small(N::kColumnsAt + group * N::kMRows * 4);
  }
  __device__ std::uint32_t columns(
      int group) const {  // [4 warps][M rows] f32: maxima, then row sums
    return small(N::kColumnsAt + N::kGroups * N::kMRows * 4 + group * N::kColumns);
  }
};

/// A consumer warpgroup.
template <class Format, int kBlockM>
struct SwapAbFp8Group : SwapAbGroup<SwapAbFp8Group<Format, kBlockM>, SwapAbFp8<Format, kBlockM>,
                                    SwapAbFp8Shared<Format, kBlockM>> {
  using N = SwapAbFp8<Format, kBlockM>;
  using Ring = typename N::Ring;
  using Base = SwapAbGroup<SwapAbFp8Group, N, SwapAbFp8Shared<Format, kBlockM>>;
  using Base::Base, Base::forget, Base::group, Base::kEights, Base::kMRows, Base::lane, Base::p,
      Base::row_max, Base::m_row, Base::s, Base::acc, Base::row_sum, Base::warp;
  using Operand = std::uint32_t[2][4];
  // Register sets of left operands.
  static constexpr int kOperands = 3;
  static constexpr int kSame = LatentRows<Format>::kSame;

  Operand operands[kOperands];

  __device__ static constexpr bool is_bf16(int tile) { return ValueOperand<Format>::is_bf16(tile); }
  __device__ void arrange() const {
    arrange_queries<Format, kMRows, N::kGroups * 128>(s.q, group * 128 + warp * 32 + lane);
  }
  __device__ void prepare(unsigned n) const {
    make_scales<Format>(s.keys(n), s.scales(n), warp, lane);
  }
  __device__ Fp8ValueRows<Format> values(unsigned n) const {
    return {s.ring().keys(n), s.scales(n)};
  }
  __device__ void release(unsigned n) const {
    barrier_arrive(s.ring().empty(n, 0));
    barrier_arrive(s.ring().empty(n, 1));
  }

  __device__ __forceinline__ void score(float (&d)[kMRows / 2], unsigned n) {
    forget();
    KeyOperand<Format> keys(s.ring().keys(n), warp, lane);
    std::uint32_t words[2][4];
    keys.fetch(0);
    keys.load(0, words[0]);
    keys.load(1, words[1]);
    constexpr int kFp8 = 2 * Format::kFp8, kWide = 2 * Format::kWide;
    const std::uint64_t queries = tile_descriptor(s.q, 1024);
    const auto q = [&](int c) {
      return queries + static_cast<unsigned>((c / 2 * N::kTileQueries + c % 2 * 64) / 16);
    };
    LATHE_UNROLL
    for (int c = 0; c < kFp8; ++c) {
      if (c % (2 * kSame) == 0) {
        keys.choose();
        if (c + 2 * kSame < kFp8) keys.fetch(c / (2 * kSame) + 1);
      }
      Operand& a = operands[c % kOperands];
      keys.make(words[c & 1], a);
      if (c + 2 < kFp8) keys.load(c + 2, words[c & 1]);
      multiply_chunk<false>(d, a, q(c), c > 0);
      // ptxas serializes wgmma after a wait for 0.
      if (c >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    LATHE_UNROLL
    for (int c = 0; c < kWide; ++c) {
      Operand& a = operands[(kFp8 + c) % kOperands];
      keys.make_wide(c, a);
      multiply_chunk<true>(d, a, q(kFp8 + c), true);
      wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    wgmma_pin(d);
  }

  /// O^T += V^T P^T of tile n. Frees the halves of its buffer, unless it is the warpgroup's last
  /// tile of its item. No other warpgroup reads them: each thread arrives for one of each
  /// warpgroup.
  __device__ __forceinline__ void add(unsigned n, bool last) {
    forget();
    const ValueOperand<Format> values{s.ring().keys(n), s.scales(n), warp, lane};
    // Words are loaded two operands ahead, scales one block ahead.
    std::uint32_t words[2][4], scales[2][4] = {};
    values.load(0, 0, words[0]);
    values.load(1, 0, words[1]);
    values.choose(0, 0, scales[0]);
    const std::uint64_t p_tile = tile_descriptor(s.p_tile(group), 1024);
    LATHE_UNROLL
    for (int c = 0; c < 16; ++c) {
      const int half = c / 8, m = c % 8, next = c + kSame;
      if (c == 8) barrier_arrive_if(!last, s.ring().empty(n, 0), N::kGroups);
      Operand& a = operands[c % kOperands];
      if (c % kSame == 0 && next < 16) {
        values.choose(next % 8, next / 8, scales[next / kSame & 1]);
      }
      values.make(m, half, words[c & 1], scales[c / kSame & 1], a);
      if (c < 14) values.load((c + 2) % 8, (c + 2) / 8, words[c & 1]);
      multiply_chunk<false>(acc[m], a, p_tile + static_cast<unsigned>(half * 4), true);
      if (c >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int m = 0; m < 8; ++m) wgmma_pin(acc[m]);
    barrier_arrive_if(!last, s.ring().empty(n, 1), N::kGroups);
  }

  /// Turns S into P in shared memory.
  __device__ void softmax(const float (&d)[kMRows / 2]) {
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    std::uint32_t packed[4];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[4];
      this->probs_of(d, j, w);
      packed[2 * (j & 1)] = pack_f16(w[0], w[1]);
      packed[2 * (j & 1) + 1] = pack_f16(w[2], w[3]);
      if constexpr (kMRows == 8) {
        store_matrices_trans(swizzled(s.p_tile(group), row, chunk), packed[0], packed[1]);
      } else if (j & 1) {
        store_matrices_trans(swizzled(s.p_tile(group), 8 * (j - 1 + lane / 16) + row, chunk),
                             packed[0], packed[1], packed[2], packed[3]);
      }
    }
    fence_async_proxy();
  }
};

template <class Format, int kBlockM>
static __global__ void __launch_bounds__(SwapAbFp8<Format, kBlockM>::kThreads, 1)
    latent_swap_ab_fp8_kernel(const __grid_constant__ LatentParams p,
                              const __grid_constant__ CUtensorMap query_map) {
  using N = SwapAbFp8<Format, kBlockM>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const SwapAbFp8Shared<Format, kBlockM> s{shared_address(shared_bytes)};
  const typename N::Ring ring = s.ring();
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), kQueryArrivals);
    barrier_init(s.q_empty(), N::kGroups * 128);
    ring.init(N::kGroups * 128);
    barriers_visible();
  }
  sync_block();
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == N::kGroups) {
    lower_registers<N::kProducerRegisters>();
    const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.m_blocks;
    const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.m_blocks;
    if (thread < 64) {
      copy_rows<Format>(ring, p.once, p.dense ? N::kBuffers : N::kListedWindow, thread / 32,
                        thread % 32);
    } else if (thread < 96) {
      publish_work<Format, kBlockM, N::kGroups>(p, &query_map, s.q, s.info(), s.q_full(),
                                                s.q_empty(), worker, tile, thread - 64,
                                                [](unsigned) {});
    } else {
      SlotResolver<Format, kBlockM, N::kGroups>(p, ring.addresses, worker, tile, thread - 96).run();
      write_keyless(p, thread - 96);
    }
  } else {
    raise_registers<N::kConsumerRegisters>();
    SwapAbFp8Group<Format, kBlockM>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
