// Latent attention with fp8 operands (e4m3 queries and keys), 64 M rows per block.
//
// fp8 operands in shared memory must be K-major, but values are stored by key. So PV runs with A
// and B swapped: O^T [dims, M rows] += V^T [dims, keys] P^T [keys, M rows]. V^T comes from
// registers, by transposing loads of 16-bit units (two dimensions of a key) and a byte permutation.
// P [M rows, keys] is in shared memory, K-major.
//
// The order of 32 keys along K is one that both operands have without a shuffle: K column 4 c + 2 m
// + e (and 16 more for m 2 and 3) is key 8 m + 2 c + e. Row g of a warp's 16 values is dimension 2
// g and row g + 8 is 2 g + 1.
//
// Two consumer warpgroups, one producer (native_config.cuh). Warpgroup 0 computes S and P of even
// tiles, warpgroup 1 of odd ones. Each accumulates PV of all tiles over its 256 value dimensions
// (256 x 64 M rows, 128 registers a thread). While one is in softmax, wgmma of the other runs:
//
//   warpgroup 0   softmax 0              | O += P0 V0, S2 = Q K2 | O += P1 V1, softmax 2 | ...
//   warpgroup 1   softmax 1 | O += P0 V0 | O += P1 V1, S3 = Q K3 | O += P2 V2, softmax 3 | ...
//
// Both run the same code: an SM caches only part of the instructions, and a short work item runs
// most of them for the first time.
//
// P is 2^(score - row max), at most 2^8. When P would exceed that, a new row max is chosen 2^5
// below the true maximum, so the accumulator is rarely rescaled.
#pragma once

#include "kernels/cuda/common/wgmma_fp8.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"
#include "kernels/cuda/sm90/latent/math/scales.cuh"
#include "kernels/cuda/sm90/latent/native/native_lists.cuh"

namespace lathe::cuda {

/// 2^(from - to), for row maxes; `from` may be that of no key.
__device__ inline float native_factor(float from, float to) {
  return from == to ? 1.f : exp2_fast(from - to);
}

/// A consumer warpgroup. A thread holds S of M rows `row` and `row` + 8, and accumulates (swapped)
/// M rows 8 j + 2 c and + 1 of dimensions 16 w + 2 g and + 1 in each of four tiles of 64 values.
template <bool kLists>
struct NativeGroup {
  const LatentParams& p;
  const NativeShared& s;
  int group, thread, warp, lane, row;
  std::uint32_t
      values_at;  // what this lane loads of the first key, within a tile of 128 dimensions
  float acc[4][32];
  float row_max[2];  // log2; P is divided by 2^row_max
  float row_sum[2];  // over this thread's columns of this group's own tiles
  RowLimits limits;  // of the work item

  __device__ NativeGroup(const LatentParams& params, const NativeShared& shared, int g, int t)
      : p(params), s(shared), group(g), thread(t), warp(t / 32), lane(t % 32) {
    row = warp * 16 + lane / 4;
    values_at =
        static_cast<std::uint32_t>(group * 2 * Native::kDimBytes) + swizzled_128(0, lane, warp);
  }

  __device__ void begin() {
    LATHE_UNROLL
    for (int m = 0; m < 4; ++m) {
      LATHE_UNROLL
      for (int i = 0; i < 32; ++i) acc[m][i] = 0;
    }
    row_max[0] = row_max[1] = kNoKey;
    row_sum[0] = row_sum[1] = 0;
  }
  __device__ void pin_acc() {
    LATHE_UNROLL
    for (int m = 0; m < 4; ++m) wgmma_pin(acc[m]);
  }
  __device__ void release(std::uint32_t barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }
  __device__ std::uint64_t mask(unsigned n) const { return load_shared_u64(s.mask(n)); }

  /// Masks S of tile n. first: keys that the block's first row sees, counted from the tile's.
  __device__ __forceinline__ void apply_mask(float (&d)[32], unsigned n, int first) const {
    mask_keys(d, mask(n), lane);
    if (kLists || !seldom(first < kLatentTile)) return;
    const bool wild = mask_after(d, first, limits.rows, lane);
    if (!seldom(group_any(Native::kFirstGroup + group, 128, wild))) return;
    // Each warpgroup clears its values of masked keys before PV.
    const ValueRows<true, 4, Native::kDimBytes> rows{s.keys(n)};
    poison_keys(d, drop_wild_keys<false>(s.mask(n), rows, Native::kFirstGroup + group, warp, lane),
                lane);
    mask_after(d, first, limits.rows, lane);
  }

  __device__ void score(float (&d)[32], unsigned n) {
    if constexpr (kLists) fence_async_proxy();  // lanes, not TMA, copied the keys
    const std::uint32_t keys = s.keys(n);
    const std::uint64_t q = descriptor_here(tile_descriptor(s.q, 1024));
    const std::uint64_t tile = descriptor_here(tile_descriptor(keys, 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (int t = 0; t < 4; ++t) {
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const auto at = static_cast<std::uint32_t>(t * Native::kDimBytes + k * 32);
        mma_m64_e4m3(d, descriptor_at(q, at), descriptor_at(tile, at), t + k > 0);
      }
    }
    const std::uint64_t last_q = descriptor_here(half_tile_descriptor(s.q + Native::kLastAt));
    const std::uint64_t last = descriptor_here(half_tile_descriptor(keys + Native::kLastAt));
    LATHE_UNROLL
    for (std::uint32_t k = 0; k < 2; ++k) {
      mma_m64_e4m3(d, descriptor_at(last_q, k * 32), descriptor_at(last, k * 32), true);
    }
    wgmma_commit();
  }

  /// Zeros the values of masked keys, where the cache may hold anything. With lists they are zeros.
  __device__ void clear_values(unsigned n) const {
    if constexpr (kLists) return;
    const std::uint64_t m = mask(n);
    if (m == ~std::uint64_t{0}) return;
    // Four threads zero two half rows each.
    const int key = thread / 2;
    if (!(m >> key & 1)) {
      const std::uint32_t tile =
          s.keys(n) + static_cast<std::uint32_t>((group * 2 + thread % 2) * Native::kDimBytes);
      LATHE_UNROLL
      for (int c = 0; c < 8; ++c) store_shared(swizzled_128(tile, key, c), 0, 0, 0, 0);
    }
    fence_async_proxy();
    group_sync(Native::kFirstGroup + group, 128);
  }

  /// Rescales the accumulator to tile n's row maxes; wgmma must have finished.
  __device__ void rescale(unsigned n) {
    if (load_shared_u32(s.risen(n)) == 0) return;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t at = s.factors(n) + static_cast<std::uint32_t>(32 * j + 8 * (lane & 3));
      const float f0 = load_float(at), f1 = load_float(at + 4);
      LATHE_UNROLL
      for (int m = 0; m < 4; ++m) {
        acc[m][4 * j] *= f0;
        acc[m][4 * j + 1] *= f1;
        acc[m][4 * j + 2] *= f0;
        acc[m][4 * j + 3] *= f1;
      }
    }
  }

  /// Issues O += P V of tile n.
  __device__ void add(unsigned n) {
    barrier_wait(s.full(n), NativeShared::parity(n));
    barrier_wait(s.p_full(n), NativeShared::parity(n));
    rescale(n);
    clear_values(n);
    const std::uint32_t from = s.keys(n) + values_at;
    const std::uint64_t tile = descriptor_here(half_tile_descriptor(s.p_tile(n)));
    LATHE_UNROLL
    for (int m = 0; m < 4; ++m) {
      std::uint32_t a[2][4];
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        std::uint32_t v[4];
        // Four chunks to the right flip one bit of the swizzled address.
        load_matrices_trans((from ^ (m & 1) << 6) + m / 2 * Native::kDimBytes + k * 32 * 128, v);
        a[k][0] = permute_bytes(v[0], v[1], 0x6420);
        a[k][1] = permute_bytes(v[0], v[1], 0x7531);
        a[k][2] = permute_bytes(v[2], v[3], 0x6420);
        a[k][3] = permute_bytes(v[2], v[3], 0x7531);
      }
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        mma_m64_e4m3_rows(acc[m], a[k], descriptor_at(tile, static_cast<std::uint32_t>(k * 32)));
      }
    }
    wgmma_commit();
  }

  /// Turns S of tile n into P in shared memory. first: as of apply_mask(). r0, r1: the
  /// accumulator's row maxes.
  __device__ void softmax(float (&d)[32], unsigned n, int first, float r0, float r1) {
    apply_device_scales(d, p);
    apply_mask(d, n, first);
    float m0 = d[0], m1 = d[2];
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      m0 = fmaxf(m0, fmaxf(d[4 * j], d[4 * j + 1]));
      m1 = fmaxf(m1, fmaxf(d[4 * j + 2], d[4 * j + 3]));
    }
    const bool grows = m0 * p.scale > r0 + kNativeMaxLog2P || m1 * p.scale > r1 + kNativeMaxLog2P;
    const bool rises = warp_any(grows);
    float f0 = 1, f1 = 1;
    if (rises) {
      m0 = fmaxf(m0, shuffle_xor(m0, 1));
      m1 = fmaxf(m1, shuffle_xor(m1, 1));
      m0 = fmaxf(m0, shuffle_xor(m0, 2)) * p.scale;
      m1 = fmaxf(m1, shuffle_xor(m1, 2)) * p.scale;
      const float s0 = m0 > r0 + kNativeMaxLog2P ? m0 - kNativeStartLog2P : r0;
      const float s1 = m1 > r1 + kNativeMaxLog2P ? m1 - kNativeStartLog2P : r1;
      f0 = native_factor(r0, s0);
      f1 = native_factor(r1, s1);
      r0 = s0;
      r1 = s1;
    }
    if ((lane & 3) == 0) {
      const auto at = static_cast<std::uint32_t>(row * 4);
      store_float(s.row_maxes(n) + at, r0);
      store_float(s.row_maxes(n) + at + 32, r1);
      store_float(s.factors(n) + at, f0);
      store_float(s.factors(n) + at + 32, f1);
    }
    if (lane == 0) {
      store_shared_u8(s.risen(n) + static_cast<std::uint32_t>(warp), rises);
    }
    row_sum[0] *= native_factor(row_max[0], r0);
    row_sum[1] *= native_factor(row_max[1], r1);
    row_max[0] = r0;
    row_max[1] = r1;
    const float z0 = r0 == kNoKey ? 0.f : r0, z1 = r1 == kNoKey ? 0.f : r1;
    std::uint32_t w[2][4];
    LATHE_UNROLL
    for (int j = 0; j < 8; j += 2) {
      float x[8];
      LATHE_UNROLL
      for (int i = 0; i < 8; ++i) {
        x[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, (i & 2) == 0 ? -z0 : -z1));
      }
      row_sum[0] += (x[0] + x[1]) + (x[4] + x[5]);
      row_sum[1] += (x[2] + x[3]) + (x[6] + x[7]);
      w[j / 4][j % 4] = pack_e4m3(x[0], x[1]) | pack_e4m3(x[4], x[5]) << 16;
      w[j / 4][j % 4 + 1] = pack_e4m3(x[2], x[3]) | pack_e4m3(x[6], x[7]) << 16;
    }
    const int m_row = warp * 16 + (lane & 15);
    LATHE_UNROLL
    for (int k = 0; k < 2; ++k) {
      store_matrices(swizzled_64(s.p_tile(n), m_row, 2 * k + lane / 16), w[k][0], w[k][1], w[k][2],
                     w[k][3]);
    }
    fence_async_proxy();
    barrier_arrive(s.p_full(n));
  }

  __device__ void add_alone(unsigned n) {
    add(n);
    wgmma_wait<0>();
    pin_acc();
    release(s.empty(n));
  }
  /// This thread's row maxes after tile n, whose P is ready.
  __device__ void row_maxes(unsigned n, float& r0, float& r1) const {
    const std::uint32_t at = s.row_maxes(n) + static_cast<std::uint32_t>(row * 4);
    r0 = load_float(at);
    r1 = load_float(at + 32);
  }

  /// Computes tiles n to end - 1, at least two.
  __device__ void tiles(unsigned n, unsigned end) {
    float d[32];
    int first = limits.first;
    unsigned own = n + static_cast<unsigned>(group);
    barrier_wait(s.full(own), NativeShared::parity(own));
    score(d, own);
    wgmma_wait<0>();
    wgmma_pin(d);
    float r0 = kNoKey, r1 = kNoKey;
    if (group == 1) {
      barrier_wait(s.p_full(n), NativeShared::parity(n));
      row_maxes(n, r0, r1);
      first -= kLatentTile;
    }
    softmax(d, own, first, r0, r1);
    if (group == 1) add_alone(n);
    LATHE_ROLLED
    for (; own + 2 < end; own += 2) {
      // PV of the own tile, and QK of the next one.
      add(own);
      barrier_wait(s.full(own + 2), NativeShared::parity(own + 2));
      score(d, own + 2);
      wgmma_wait<1>();
      release(s.empty(own));
      wgmma_wait<0>();
      pin_acc();
      wgmma_pin(d);
      // PV of the other warpgroup's tile, and the own softmax.
      add(own + 1);
      first -= 2 * kLatentTile;
      row_maxes(own + 1, r0, r1);
      softmax(d, own + 2, first, r0, r1);
      wgmma_wait<0>();
      pin_acc();
      release(s.empty(own + 1));
    }
    release(s.q_empty());
    LATHE_ROLLED
    for (; own < end; ++own) add_alone(own);
  }

  /// last: the item's last tile.
  __device__ void finish(const LatentWorkInfo& item, unsigned last) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      row_sum[i] *= native_factor(
          row_max[i],
          load_float(s.row_maxes(last) + static_cast<std::uint32_t>((row + 8 * i) * 4)));
      row_sum[i] += shuffle_xor(row_sum[i], 1);
      row_sum[i] += shuffle_xor(row_sum[i], 2);
    }
    if ((lane & 3) == 0) {
      store_float(s.row_sums(group) + static_cast<std::uint32_t>(row * 4), row_sum[0]);
      store_float(s.row_sums(group) + static_cast<std::uint32_t>(row * 4 + 32), row_sum[1]);
    }
    group_sync(Native::kRowSumsReady, 256);
    if (thread < Native::kMRows) {
      const auto at = static_cast<std::uint32_t>(thread * 4);
      const std::int32_t m_row = item.first + thread;
      const float sum = load_float(s.row_sums(0) + at) + load_float(s.row_sums(1) + at);
      const float lse2 = sum == 0 ? kNoKey : load_float(s.row_maxes(last) + at) + log2_fast(sum);
      float factor = sum == 0 ? 0.f : (item.number < 0 ? value_scale(p) : 1.f) / sum;
      if (m_row < item.m_rows) {
        const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
        const std::int32_t head = m_row - r * p.heads;
        if (item.number >= 0) {
          if (group == 0) {
            p.partial_lse[std::int64_t{item.number} * (p.m_blocks * Native::kMRows) + m_row] = lse2;
          }
        } else {
          if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
          if (group == 0 && p.lse != nullptr) {
            p.lse[(item.row + r) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
          }
        }
      }
      store_float(s.scales(group) + at, factor);
    }
    group_sync(Native::kFirstGroup + group, 128);
    if (item.number >= 0) {
      store_partial(item);
    } else {
      store_out(item);
    }
  }
  __device__ float scale_of(int in_tile) const {
    return load_float(s.scales(group) + static_cast<std::uint32_t>(in_tile * 4));
  }
  __device__ void store_partial(const LatentWorkInfo& item) const {
    uint2* to = partial_chunks<PartialLayout::swapped>(p, Native::kMRows, item.number,
                                                       item.first / Native::kMRows) +
                thread;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int in_tile = 8 * j + 2 * (lane & 3) + e;
        if (item.first + in_tile >= item.m_rows) continue;
        const float factor = scale_of(in_tile);
        LATHE_UNROLL
        for (int m = 0; m < 4; m += 2) {
          to[((group * 2 + m / 2) * 16 + 2 * j + e) * 128] =
              f16_chunk(acc[m][4 * j + e] * factor, acc[m][4 * j + 2 + e] * factor,
                        acc[m + 1][4 * j + e] * factor, acc[m + 1][4 * j + 2 + e] * factor);
        }
      }
    }
  }
  __device__ void store_out(const LatentWorkInfo& item) const {
    const int column = group * 256 + warp * 16 + lane / 4 * 2;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int in_tile = 8 * j + 2 * (lane & 3) + e;
        const std::int32_t m_row = item.first + in_tile;
        if (m_row >= item.m_rows) continue;
        const float factor = scale_of(in_tile);
        const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
        const std::int32_t head = m_row - r * p.heads;
        std::uint16_t* to =
            p.out + (item.row + r) * p.out_stride + std::int64_t{head} * Native::kValues + column;
        LATHE_UNROLL
        for (int m = 0; m < 4; ++m) {
          *reinterpret_cast<std::uint32_t*>(to + 64 * m) =
              pack_bf16(acc[m][4 * j + e] * factor, acc[m][4 * j + 2 + e] * factor);
        }
      }
    }
  }

  __device__ void run() {
    unsigned n = 0;
    for (unsigned number = 0;; ++number) {
      begin();
      barrier_wait(s.q_full(), number & 1);
      const LatentWorkInfo item = LatentWorkInfo::load(s.item(number));
      if (item.tiles == 0) return;
      fence_async_proxy();
      if constexpr (!kLists) {
        limits = RowLimits::of(p, item.limit, item.first, item.first + row);
        // A work tile of one row sees all of its keys.
        if (item.m_rows <= p.heads) limits.first = INT32_MAX;
      }
      const unsigned end = n + static_cast<unsigned>(item.tiles);
      tiles(n, end);
      n = end;
      finish(LatentWorkInfo::load(s.item(number)), n - 1);
    }
  }
};

/// kLists: keys by index lists, not by page table; maps are unused.
template <bool kLists>
static __global__ void __launch_bounds__(Native::kThreads, 1)
    latent_native_kernel(const __grid_constant__ LatentParams p,
                         const __grid_constant__ NativeMaps maps) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const NativeShared s{shared_address(shared_bytes)};
  const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.m_blocks;
  const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.m_blocks;
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), (kLists ? Native::kListedQueryThreads : Native::kQueryThreads) + 1);
    barrier_init(s.q_empty(), 8);
    if constexpr (kLists) s.addresses().init();
    for (unsigned b = 0; b < Native::kBuffers; ++b) {
      barrier_init(s.full(b), kLists ? Native::kListedArrivals : 1);
      barrier_init(s.empty(b), 8);
      barrier_init(s.p_full(b), 128);
    }
    barriers_visible();
  }
  sync_block();
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == 2) {
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
    NativeGroup<kLists>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
