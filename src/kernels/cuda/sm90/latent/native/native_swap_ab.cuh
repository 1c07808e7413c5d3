// Latent attention in fp8 arithmetic with few lines: a block does 8, 16 or 32, on the N side of both products.
//
// S^T [keys, lines] = K Q^T reads both operands from shared memory as they lie in the cache. O^T [dims, lines] += V^T P^T
// has V^T in registers, as for 64 lines (native_m64.cuh), and the weights P [lines, keys] in shared memory.
//
// Of 16 keys the order along K is the one in which a thread has its scores: column 2 g + h is key g + 8 h, so that two
// weights are a unit of 16 bits, which stmatrix turns.
#pragma once

#include "kernels/cuda/common/wgmma_fp8.cuh"
#include "kernels/cuda/sm90/latent/native/native_config.cuh"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_loop.cuh"

namespace lathe::cuda {

template <int kTileLines>
struct NativeFew {
  static constexpr int kLines = kTileLines;
  static constexpr int kGroups = 2, kGroupRegisters = 232, kFillRegisters = 40;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kValues = Native::kValues;
  static constexpr int kBuffers = 4;
  static_assert(kBuffers % kGroups == 0,
                "a group would take the tile before its own in a buffer for its own");
  // Half of a group's sums goes through its last tile.
  static_assert(kLines * kValues * 4 / 2 <= Native::kKeyBytes);
  static constexpr float kMostWeight = kWeightLimit, kFirstWeight = kWeightOfMost;

  static constexpr int kDimQueries = kLines * 128;  // bytes of 128 dimensions
  static constexpr int kKeysAt = (kLines * 576 + 1023) / 1024 * 1024;
  static constexpr int kWeightBytes = kLines * kLatentTile;
  static constexpr int kWeightsAt = kKeysAt + kBuffers * Native::kKeyBytes;
  static constexpr int kSmallAt = kWeightsAt + kGroups * kWeightBytes;
  static constexpr int kFactsAt = 16 + 24 * kBuffers;
  static constexpr int kColumns = 4 * kLines * 4;  // bytes of a group's
  static constexpr int kColumnsAt = kFactsAt + 2 * static_cast<int>(LatentItemFacts::kBytes);
  static constexpr int kSharedBytes = kSmallAt + kColumnsAt + kGroups * (kLines * 4 + kColumns);
  static_assert(kSharedBytes <= 232448 && kFactsAt % 16 == 0);

  // Named barriers; the groups have one each. Native::kQueriesIssued is another.
  static constexpr int kFirstGroup = 1, kAllGroups = 1 + kGroups;
  static_assert(kAllGroups < Native::kQueriesIssued);
};

template <int kTileLines>
struct NativeFewShared {
  using N = NativeFew<kTileLines>;
  static constexpr int kLines = kTileLines;

  std::uint32_t q;  // the first of all

  __device__ static std::uint32_t buffer(unsigned n) { return n % N::kBuffers; }
  __device__ static std::uint32_t parity(unsigned n) { return n / N::kBuffers & 1; }
  __device__ std::uint32_t small(std::uint32_t at) const { return q + N::kSmallAt + at; }
  __device__ std::uint32_t keys(unsigned n) const {
    return q + N::kKeysAt + buffer(n) * Native::kKeyBytes;
  }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  __device__ std::uint32_t full(unsigned n) const { return small(16 + 8 * buffer(n)); }
  __device__ std::uint32_t empty(unsigned n) const {
    return small(16 + 8 * (N::kBuffers + buffer(n)));
  }
  __device__ std::uint32_t mask(unsigned n) const {  // 64 bits
    return small(16 + 8 * (2 * N::kBuffers + buffer(n)));
  }
  __device__ std::uint32_t item(unsigned number) const {
    return small(N::kFactsAt + LatentItemFacts::kBytes * (number & 1));
  }
  __device__ std::uint32_t facts() const { return item(0); }
  __device__ std::uint32_t other_facts() const { return item(1); }
  __device__ std::uint32_t weights(int group) const {  // e4m3 [lines, 64 keys], swizzled
    return q + static_cast<std::uint32_t>(N::kWeightsAt + group * N::kWeightBytes);
  }
  __device__ std::uint32_t references(int group) const {  // [lines] f32
    return small(static_cast<std::uint32_t>(N::kColumnsAt + group * kLines * 4));
  }
  __device__ std::uint32_t columns(int group) const {  // [4 warps][lines] f32: maxima, then sums
    return small(
        static_cast<std::uint32_t>(N::kColumnsAt + N::kGroups * kLines * 4 + group * N::kColumns));
  }

  /// Copies the lines of a unit, [kLines, 576] e4m3, by three warps, a line at a time; lines beyond the unit's are zeros.
  __device__ void copy_queries(const LatentParams& p, const LatentUnitPlace& u, std::int32_t tile,
                               int thread) const {
    const int lane = thread % 32;
    LATHE_ROLLED
    for (int line = thread / 32; line < kLines; line += 3) {
      const bool valid = tile * kLines + line < u.lines;
      const std::int32_t l = valid ? tile * kLines + line : 0;
      const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      const auto* from = static_cast<const std::byte*>(p.q) + (u.row + row) * p.q_stride +
                         (l - row * p.heads) * std::int64_t{576};
      copy_async(
          swizzled_128(q + static_cast<std::uint32_t>(lane / 8 * N::kDimQueries), line, lane % 8),
          from + lane * 16, valid);
      if (lane >= 4) continue;
      copy_async(swizzled_64(q + 4 * N::kDimQueries, line, lane), from + 512 + lane * 16, valid);
    }
  }
};

/// A multiplying group.
template <int kTileLines>
struct NativeFewGroup
    : TurnedGroup<NativeFewGroup<kTileLines>, NativeFew<kTileLines>, NativeFewShared<kTileLines>> {
  using N = NativeFew<kTileLines>;
  using Base = TurnedGroup<NativeFewGroup, N, NativeFewShared<kTileLines>>;
  using Base::Base, Base::forget, Base::group, Base::kEights, Base::kLines, Base::lane, Base::p,
      Base::reference, Base::line, Base::s, Base::sums, Base::total, Base::warp;
  // Sets of registers for left operands, of 64 dimensions and 64 keys.
  static constexpr int kOperands = 3;

  __device__ static constexpr bool wide(int) { return false; }
  __device__ void arrange() const { fence_async_proxy(); }
  __device__ void release(unsigned n) const { barrier_arrive(s.empty(n)); }

  __device__ __forceinline__ void score(float (&d)[kLines / 2], unsigned n) {
    const std::uint32_t keys = s.keys(n);
    const std::uint64_t q = descriptor_here(tile_descriptor(s.q, 1024));
    const std::uint64_t tile = descriptor_here(tile_descriptor(keys, 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (std::uint32_t t = 0; t < 4; ++t) {
      LATHE_UNROLL
      for (std::uint32_t k = 0; k < 4; ++k) {
        mma_m64_e4m3(d, descriptor_at(tile, t * Native::kDimBytes + k * 32),
                     descriptor_at(q, t * N::kDimQueries + k * 32), t + k > 0);
      }
    }
    const std::uint64_t last_q = descriptor_here(half_tile_descriptor(s.q + 4 * N::kDimQueries));
    const std::uint64_t last = descriptor_here(half_tile_descriptor(keys + Native::kLastAt));
    LATHE_UNROLL
    for (std::uint32_t k = 0; k < 2; ++k) {
      mma_m64_e4m3(d, descriptor_at(last, k * 32), descriptor_at(last_q, k * 32), true);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);
  }

  /// Values of keys that are none become zeros; the cache may hold anything there. The group synchronizes before it
  /// adds them.
  __device__ void prepare(unsigned n) const {
    const std::uint64_t seen = load_shared_u64(s.mask(n));
    if (!seldom(seen != ~std::uint64_t{0})) return;
    const int thread = warp * 32 + lane, key = thread / 2;
    if (seen >> key & 1) return;
    LATHE_ROLLED
    for (int c = thread % 2; c < 32; c += 2) {
      const std::uint32_t tile = s.keys(n) + static_cast<std::uint32_t>(c / 8 * Native::kDimBytes);
      store_shared(swizzled_128(tile, key, c % 8), 0, 0, 0, 0);
    }
    fence_async_proxy();
  }

  /// Scores to weights in shared memory.
  __device__ __forceinline__ void weigh(const float (&d)[kLines / 2]) {
    std::uint32_t packed[kEights];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[4];
      this->weights_of(d, j, w);
      packed[j] = pack_e4m3(w[0], w[2]) | pack_e4m3(w[1], w[3]) << 16;
    }
    const std::uint32_t to = swizzled_64(s.weights(group), lane % kLines, warp);
    if constexpr (kLines == 8) {
      store_matrices_turned(to, packed[0]);
    } else if constexpr (kLines == 16) {
      store_matrices_turned(to, packed[0], packed[1]);
    } else {
      store_matrices_turned(to, packed[0], packed[1], packed[2], packed[3]);
    }
    fence_async_proxy();
  }

  /// Sums += V^T P^T of tile n, which nobody else has read: each thread stands for one of each group where it frees the
  /// buffer, but for the group's last tile of its item.
  __device__ __forceinline__ void add(unsigned n, bool last) {
    forget();
    const std::uint32_t from = s.keys(n) + swizzled_128(0, lane, warp);
    const std::uint64_t weights = descriptor_here(half_tile_descriptor(s.weights(group)));
    std::uint32_t operands[kOperands][2][4];
    LATHE_UNROLL
    for (int m = 0; m < 8; ++m) {
      std::uint32_t(&a)[2][4] = operands[m % kOperands];
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        std::uint32_t v[4];
        // Four chunks to the right is one bit of the swizzled address.
        load_matrices_turned(
            (from ^ static_cast<std::uint32_t>((m & 1) << 6)) +
                static_cast<std::uint32_t>(m / 2 * Native::kDimBytes + k * 32 * 128),
            v);
        a[k][0] = permute_bytes(v[0], v[1], 0x6240);
        a[k][1] = permute_bytes(v[0], v[1], 0x7351);
        a[k][2] = permute_bytes(v[2], v[3], 0x6240);
        a[k][3] = permute_bytes(v[2], v[3], 0x7351);
      }
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        mma_m64_e4m3_rows(sums[m], a[k],
                          descriptor_at(weights, static_cast<std::uint32_t>(k * 32)));
      }
      wgmma_commit();
      // ptxas serializes products after a wait for none.
      if (m >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int m = 0; m < 8; ++m) wgmma_pin(sums[m]);
    barrier_arrive_if(!last, s.empty(n), N::kGroups);
  }
};

template <int kTileLines>
static __global__ void __launch_bounds__(NativeFew<kTileLines>::kThreads, 1)
    latent_native_few_kernel(const __grid_constant__ LatentParams p,
                             const __grid_constant__ NativeMaps maps) {
  using N = NativeFew<kTileLines>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const NativeFewShared<kTileLines> s{shared_address(shared_bytes)};
  const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.tiles;
  const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.tiles;
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), Native::kQueryThreads + 1);
    barrier_init(s.q_empty(), N::kGroups * 128);
    for (unsigned b = 0; b < N::kBuffers; ++b) {
      barrier_init(s.full(b), 1);
      barrier_init(s.empty(b), N::kGroups * 128);
    }
    barriers_visible();
  }
  sync_block();
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == N::kGroups) {
    lower_registers<N::kFillRegisters>();
    if (thread < 32) {
      native_fill_keys(p, maps, s, worker, tile, thread);
      write_keyless(p, thread);
    } else {
      native_fill_queries(p, s, worker, tile, thread - 32);
    }
  } else {
    raise_registers<N::kGroupRegisters>();
    NativeFewGroup<kTileLines>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
