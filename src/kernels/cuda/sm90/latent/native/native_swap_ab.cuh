// Latent attention with fp8 operands, A and B swapped: 8, 16 or 32 M rows per block, on N.
//
// S^T [64 keys, M rows] = K Q^T reads both operands from shared memory, as cached. O^T [512 dims, M
// rows] += V^T P^T has V^T in registers, as in native_m64.cuh, and P [M rows, keys] in shared
// memory.
//
// The order of 16 keys along K is the one in which a thread holds its scores: column 2 g + h is key
// g + 8 h. Two elements of P are then one 16-bit unit, which stmatrix transposes.
#pragma once

#include "kernels/cuda/common/wgmma_fp8.cuh"
#include "kernels/cuda/sm90/latent/native/native_lists.cuh"
#include "kernels/cuda/sm90/latent/swap_ab/swap_ab_loop.cuh"

namespace lathe::cuda {

template <int kBlockM>
struct NativeSwapAb {
  static constexpr int kMRows = kBlockM;
  static constexpr int kGroups = 2;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kValues = Native::kValues;
  static constexpr int kBuffers = 4;
  static_assert(kBuffers % kGroups == 0,
                "a group would take the tile before its own in a buffer for its own");
  // Half of a warpgroup's accumulator is staged in its last tile.
  static_assert(kMRows * kValues * 4 / 2 <= Native::kKeyBytes);
  static constexpr float kMaxLog2P = kNativeMaxLog2P, kStartLog2P = kNativeStartLog2P;

  static constexpr int kDimQueries = kMRows * 128;  // bytes of 128 dimensions
  static constexpr int kKeysAt = (kMRows * 576 + 1023) / 1024 * 1024;
  static constexpr int kPBytes = kMRows * kLatentTile;
  static constexpr int kPAt = kKeysAt + kBuffers * Native::kKeyBytes;
  static constexpr int kSmallAt = kPAt + kGroups * kPBytes;
  static constexpr int kFactsAt = 16 + 24 * kBuffers;
  static constexpr int kColumns = 4 * kMRows * 4;  // bytes of a warpgroup's
  static constexpr int kColumnsAt = kFactsAt + 2 * static_cast<int>(LatentWorkInfo::kBytes);
  static constexpr int kSharedBytes = kSmallAt + kColumnsAt + kGroups * (kMRows * 4 + kColumns);
  static constexpr int kListedSharedBytes = kSharedBytes + NativeAddresses::kBytes;
  static_assert(kListedSharedBytes <= 232448 && kFactsAt % 16 == 0 && kSharedBytes % 16 == 0);

  // Named barriers, one per warpgroup and one for all. Native::kQueriesIssued is another.
  static constexpr int kFirstGroup = 1, kAllGroups = 1 + kGroups;
  static_assert(kAllGroups < Native::kQueriesIssued);
};

template <int kBlockM>
struct NativeSwapAbShared {
  using N = NativeSwapAb<kBlockM>;
  static constexpr int kMRows = kBlockM;

  std::uint32_t q;  // address of the first array

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
    return small(N::kFactsAt + LatentWorkInfo::kBytes * (number & 1));
  }
  __device__ std::uint32_t info() const { return item(0); }
  __device__ std::uint32_t other_info() const { return item(1); }
  __device__ std::uint32_t p_tile(int group) const {  // e4m3 [M rows, 64 keys], swizzled
    return q + static_cast<std::uint32_t>(N::kPAt + group * N::kPBytes);
  }
  __device__ std::uint32_t row_maxes(int group) const {  // [M rows] f32
    return small(static_cast<std::uint32_t>(N::kColumnsAt + group * kMRows * 4));
  }
  __device__ std::uint32_t columns(
      int group) const {  // [4 warps][M rows] f32: maxima, then row sums
    return small(
        static_cast<std::uint32_t>(N::kColumnsAt + N::kGroups * kMRows * 4 + group * N::kColumns));
  }

  /// Addresses of listed rows, after everything else.
  __device__ NativeAddresses addresses() const { return {q + N::kSharedBytes}; }

  /// Copies a work tile's M rows, [kMRows, 576] e4m3, by three warps, one row at a time; rows past
  /// the work tile's are zeros.
  __device__ void copy_queries(const LatentParams& p, const LatentWorkTile& u, std::int32_t tile,
                               int thread) const {
    const int lane = thread % 32;
    LATHE_ROLLED
    for (int m_row = thread / 32; m_row < kMRows; m_row += 3) {
      const bool valid = tile * kMRows + m_row < u.m_rows;
      const std::int32_t l = valid ? tile * kMRows + m_row : 0;
      const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      const auto* from = static_cast<const std::byte*>(p.q) + (u.row + row) * p.q_stride +
                         (l - row * p.heads) * std::int64_t{576};
      copy_async(
          swizzled_128(q + static_cast<std::uint32_t>(lane / 8 * N::kDimQueries), m_row, lane % 8),
          from + lane * 16, valid);
      if (lane >= 4) continue;
      copy_async(swizzled_64(q + 4 * N::kDimQueries, m_row, lane), from + 512 + lane * 16, valid);
    }
  }
};

/// A consumer warpgroup.
template <int kBlockM, bool kLists>
struct NativeSwapAbGroup : SwapAbGroup<NativeSwapAbGroup<kBlockM, kLists>, NativeSwapAb<kBlockM>,
                                       NativeSwapAbShared<kBlockM>> {
  using N = NativeSwapAb<kBlockM>;
  using Base = SwapAbGroup<NativeSwapAbGroup, N, NativeSwapAbShared<kBlockM>>;
  using Base::Base, Base::forget, Base::group, Base::kEights, Base::kMRows, Base::lane, Base::p,
      Base::row_max, Base::m_row, Base::s, Base::acc, Base::row_sum, Base::warp;
  // Register sets of left operands, of 64 dimensions and 64 keys.
  static constexpr int kOperands = 3;

  __device__ static constexpr bool is_bf16(int) { return false; }
  __device__ void arrange() const { fence_async_proxy(); }
  __device__ ValueRows<true, 4, Native::kDimBytes> values(unsigned n) const { return {s.keys(n)}; }
  __device__ void release(unsigned n) const { barrier_arrive(s.empty(n)); }

  __device__ __forceinline__ void score(float (&d)[kMRows / 2], unsigned n) {
    if constexpr (kLists) fence_async_proxy();  // lanes, not TMA, copied the keys
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
    apply_device_scales(d, p);
  }

  /// Zeros the values of masked keys, where the cache may hold anything. The warpgroup synchronizes
  /// before it reads them.
  __device__ void prepare(unsigned n) const {
    if constexpr (kLists) return;  // they are zeros already
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

  /// Turns S into P in shared memory.
  __device__ __forceinline__ void softmax(const float (&d)[kMRows / 2]) {
    std::uint32_t packed[kEights];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[4];
      this->probs_of(d, j, w);
      packed[j] = pack_e4m3(w[0], w[2]) | pack_e4m3(w[1], w[3]) << 16;
    }
    const std::uint32_t to = swizzled_64(s.p_tile(group), lane % kMRows, warp);
    if constexpr (kMRows == 8) {
      store_matrices_trans(to, packed[0]);
    } else if constexpr (kMRows == 16) {
      store_matrices_trans(to, packed[0], packed[1]);
    } else {
      store_matrices_trans(to, packed[0], packed[1], packed[2], packed[3]);
    }
    fence_async_proxy();
  }

  /// O^T += V^T P^T of tile n. Only this warpgroup reads the tile, so each thread arrives for one
  /// of each warpgroup when it frees the buffer, except for the warpgroup's last tile of an item.
  __device__ __forceinline__ void add(unsigned n, bool last) {
    forget();
    const std::uint32_t from = s.keys(n) + swizzled_128(0, lane, warp);
    const std::uint64_t p_tile = descriptor_here(half_tile_descriptor(s.p_tile(group)));
    std::uint32_t operands[kOperands][2][4];
    LATHE_UNROLL
    for (int m = 0; m < 8; ++m) {
      std::uint32_t(&a)[2][4] = operands[m % kOperands];
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        std::uint32_t v[4];
        // Four chunks to the right flip one bit of the swizzled address.
        load_matrices_trans(
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
        mma_m64_e4m3_rows(acc[m], a[k], descriptor_at(p_tile, static_cast<std::uint32_t>(k * 32)));
      }
      wgmma_commit();
      // ptxas serializes wgmma after a wait for 0.
      if (m >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int m = 0; m < 8; ++m) wgmma_pin(acc[m]);
    barrier_arrive_if(!last, s.empty(n), N::kGroups);
  }
};

template <int kBlockM, bool kLists>
static __global__ void __launch_bounds__(NativeSwapAb<kBlockM>::kThreads, 1)
    latent_native_swap_ab_kernel(const __grid_constant__ LatentParams p,
                                 const __grid_constant__ NativeMaps maps) {
  using N = NativeSwapAb<kBlockM>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const NativeSwapAbShared<kBlockM> s{shared_address(shared_bytes)};
  const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.m_blocks;
  const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.m_blocks;
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), (kLists ? Native::kListedQueryThreads : Native::kQueryThreads) + 1);
    barrier_init(s.q_empty(), N::kGroups * 128);
    if constexpr (kLists) s.addresses().init();
    for (unsigned b = 0; b < N::kBuffers; ++b) {
      barrier_init(s.full(b), kLists ? Native::kListedArrivals : 1);
      barrier_init(s.empty(b), N::kGroups * 128);
    }
    barriers_visible();
  }
  sync_block();
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == N::kGroups) {
    lower_registers<kLists ? Native::kListedProducerRegisters : Native::kProducerRegisters>();
    if constexpr (kLists) {
      native_load_lists(p, s, worker, tile, thread);
    } else if (thread < 32) {
      native_load_keys(p, maps, s, worker, tile, thread);
      write_keyless(p, thread);
    } else {
      native_load_queries<false>(p, s, worker, tile, thread - 32);
    }
  } else {
    raise_registers<kLists ? Native::kListedConsumerRegisters : Native::kConsumerRegisters>();
    NativeSwapAbGroup<kBlockM, kLists>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
