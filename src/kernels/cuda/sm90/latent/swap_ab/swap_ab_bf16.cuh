// Latent attention on bf16 caches, A and B swapped: keys on M, 8, 16 or 32 M rows (query row x
// head) on N.
//
// Two consumer warpgroups, one producer (load_bf16_rows.cuh, load_pages.cuh). Each consumer
// computes every other tile of 64 keys, in its own buffer, with its own accumulator and row maxes:
//
//   S^T [64 keys, M rows]  = K Q^T     K as cached (K-major), Q [M rows, dims] K-major
//   O^T [512 dims, M rows] += V^T P^T  V^T: the same tile, MN-major; P [M rows, 64 keys] K-major
//
// The warpgroups synchronize only at the end of a work item, so wgmma of one overlaps the softmax
// of the other. A row's scores are spread over all four warps. A barrier with a vote tells whether
// a row max must rise (row_max.cuh); only then do the warps exchange maxima.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/load/load_bf16_rows.cuh"
#include "kernels/cuda/sm90/latent/load/load_pages.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"

namespace lathe::cuda {

/// kPages: keys come by TMA boxes of pages (load_pages.cuh).
template <class Format, int kBlockM, bool kPages>
struct LatentSwapAb {
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kMRows = kBlockM;
  static constexpr int kBuffers = 2;
  static constexpr int kThreads = 384;
  // Together they use all registers of a block.
  static constexpr int kProducerRegisters = 88, kConsumerRegisters = 208;
  static constexpr int kValues = 512;
  static constexpr bool kPaged = kPages;

  static constexpr int kKeyBytes = kDims * kDimTileBytes;
  static constexpr int kPBytes = kMRows * 128;
  static constexpr int kKeysAt = kDims * kMRows * 128;
  static constexpr int kPAt = kKeysAt + kBuffers * kKeyBytes;
  static constexpr int kSmallAt = kPAt + 2 * kPBytes;
  static constexpr int kColumnsAt = kSmallAt + 128;  // after the barriers
  static constexpr int kRowMaxAt = kColumnsAt + 2 * 4 * kMRows * 4;
  static constexpr int kSlotsAt = kRowMaxAt + 2 * kMRows * 4;
  static constexpr int kSharedBytes = kSlotsAt + LatentShared::kSlotBytes;
  static_assert(kSharedBytes <= 232448);
  static_assert(kMRows * kValues * 4 <= kKeyBytes,
                "a warpgroup's accumulator passes through its buffer");

  // Named barriers. 1 and 2 belong to the warpgroups.
  static constexpr int kBothGroups = 3;
};

template <class N>
struct LatentSwapAbShared {
  LatentShared smem;
  std::uint32_t p_tile;     // [2 warpgroups] bf16 [M rows, 64 keys], swizzled
  std::uint32_t columns;    // [2 warpgroups][4 warps][M rows] f32: maxima, then row sums
  std::uint32_t row_maxes;  // [2 warpgroups][M rows] f32

  __device__ explicit LatentSwapAbShared(std::uint32_t base) {
    smem.q = base;
    smem.keys = base + N::kKeysAt;
    p_tile = base + N::kPAt;
    const std::uint32_t small = base + N::kSmallAt;
    smem.q_full = small;
    smem.q_empty = small + 8;
    smem.full = small + 16;
    smem.empty = small + 48;
    smem.put_slots(base + N::kSlotsAt);
    columns = base + N::kColumnsAt;
    row_maxes = base + N::kRowMaxAt;
  }
};

/// A consumer warpgroup. A thread holds S of keys `key` and `key` + 8 of the tile, and in both
/// products M rows 8 j + 2 (lane % 4) + i, which are `m_row(j, i)`.
template <class N>
struct LatentSwapAbGroup {
  static constexpr int kMRows = N::kMRows;
  static constexpr int kEights = kMRows / 8;

  const LatentParams& p;
  const LatentSwapAbShared<N>& s;
  int group, warp, lane, key;
  int pair = 0;               // pairs of tiles so far, over all items
  float acc[8][kMRows / 2];   // of 64 value dimensions each
  float row_sum[kEights][2];  // over this thread's keys

  __device__ LatentSwapAbGroup(const LatentParams& params, const LatentSwapAbShared<N>& shared,
                               int which, int thread)
      : p(params), s(shared), group(which), warp(thread / 32), lane(thread % 32) {
    key = warp * 16 + lane / 4;
  }
  /// Address of an M row's row max in log2. In shared memory because registers are scarce.
  __device__ std::uint32_t row_max(int l) const { return s.row_maxes + (group * kMRows + l) * 4; }
  __device__ int m_row(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(1 + group, 128); }

  __device__ void begin() {
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kMRows / 2; ++i) acc[t][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      row_sum[j][0] = row_sum[j][1] = 0;
    }
    if (warp == 0 && lane < kMRows) store_float(row_max(lane), kNoKey);
    sync();
  }

  __device__ std::uint32_t keys() const { return s.smem.keys + group * N::kKeyBytes; }

  __device__ void score(float (&d)[kMRows / 2]) const {
    wgmma_fence();
    LATHE_UNROLL
    for (int t = 0; t < N::kDims; ++t) {
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        mma_m64_bf16(d, tile_descriptor(keys() + t * kDimTileBytes + k * 32, 1024),
                     tile_descriptor(s.smem.q + t * (kMRows * 128) + k * 32, 1024), t + k > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);
  }
  __device__ void add(std::uint32_t p_tile) {
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const std::uint64_t w = tile_descriptor(p_tile + k * 32, 1024);
      LATHE_UNROLL
      for (int t = 0; t < 8; ++t) {
        mma_m64_bf16_trans_a(acc[t], tile_descriptor(keys() + t * kDimTileBytes + k * 2048, 1024),
                             w, true);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) wgmma_pin(acc[t]);
  }

  __device__ std::uint64_t mask() const {
    return load_shared_u64(s.smem.masks + pair % LatentShared::kSlots * (kPairKeys / 8) +
                           8 * group);
  }
  /// Zeros the rows of masked keys: P = 0 times NaN is NaN.
  __device__ void zero_masked() const {
    const std::uint64_t seen = mask();
    if (seen == ~std::uint64_t{0}) return;
    const int row = 32 * (warp & 1) + lane;
    if (!(seen >> row & 1)) {
      for (int t = warp / 2; t < N::kDims; t += 2) {
        for (int c = 0; c < 8; ++c) {
          store_shared(keys() + t * kDimTileBytes + row * 128 + c * 16, 0, 0, 0, 0);
        }
      }
    }
    fence_async_proxy();
    sync();
  }

  /// Turns S into P in shared memory.
  __device__ void softmax(const float (&d)[kMRows / 2], std::uint32_t to) {
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    std::uint32_t packed[4];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[4];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float r = load_float(row_max(m_row(j, i)));
        const float zero = r == kNoKey ? 0.f : r;
        w[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, -zero));
        w[2 + i] = exp2_fast(fmaf(d[4 * j + 2 + i], p.scale, -zero));
        row_sum[j][i] += w[i] + w[2 + i];
      }
      packed[2 * (j & 1)] = pack_bf16(w[0], w[1]);
      packed[2 * (j & 1) + 1] = pack_bf16(w[2], w[3]);
      if constexpr (kMRows == 8) {
        store_matrices_trans(swizzled(to, row, chunk), packed[0], packed[1]);
      } else if (j & 1) {
        store_matrices_trans(swizzled(to, 8 * (j - 1 + lane / 16) + row, chunk), packed[0],
                             packed[1], packed[2], packed[3]);
      }
    }
    fence_async_proxy();
  }

  __device__ bool outgrows(const float (&d)[kMRows / 2]) const {
    bool grows = false;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        grows |= fmaxf(d[4 * j + i], d[4 * j + 2 + i]) * p.scale >
                 load_float(row_max(m_row(j, i))) + kRowMaxSlack;
      }
    }
    return grows;
  }

  __device__ std::uint32_t column(int w, int l) const {
    return s.columns + ((group * 4 + w) * kMRows + l) * 4;
  }
  /// An M row's row max after the tile; `now`: before it.
  __device__ float raised(int l, float now) const {
    const float m = fmaxf(fmaxf(load_float(column(0, l)), load_float(column(1, l))),
                          fmaxf(load_float(column(2, l)), load_float(column(3, l))));
    return m > now + kRowMaxSlack ? m : now;
  }
  __device__ void tile(int limit) {
    if constexpr (N::kPaged) zero_masked();
    float d[kMRows / 2];
    score(d);
    if (seldom(limit < kLatentTile)) {
      drop_wild_keys_swapped(d, ValueRows<false, 8, kDimTileBytes>{keys()}, warp, lane);
    }
    mask_keys_swapped(d, mask(), key);
    mask_after_swapped(d, p, limit, key, lane);
    // From here on no wgmma of the warpgroup reads the previous P.
    if (group_any(1 + group, 128, outgrows(d))) raise_row_max(*this, d);
    const std::uint32_t p_tile = s.p_tile + group * N::kPBytes;
    softmax(d, p_tile);
    sync();
    add(p_tile);
  }

  /// Where value dimension `dim` of an M row is staged on its way out: each warpgroup's accumulator
  /// goes to its own buffer, [M rows, 512] f32, shifted so that neither writers nor readers have
  /// bank conflicts.
  __device__ static std::uint32_t place(std::uint32_t buffer, int l, int dim) {
    return buffer + ((l * N::kValues + (dim ^ (l >> 1 & 3) << 3)) << 2);
  }
  __device__ void give_half() {
    // Keeps these addresses from being computed before the tiles and spilled.
    asm volatile("" : "+r"(lane), "+r"(key));
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float t = row_sum[j][i];
        for (int l = 4; l < 32; l *= 2) t += shuffle_xor(t, l);
        if (lane < 4) store_float(column(warp, m_row(j, i)), t);
      }
    }
    sync();  // wgmma of the whole warpgroup has read the buffer
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kMRows / 2; ++i) {
        store_float(place(keys(), m_row(i / 4, i & 1), 64 * t + key + (i & 2) * 4), acc[t][i]);
      }
    }
  }
  /// Adds up the warpgroups' accumulators, always in the same order; a warp does every eighth M
  /// row.
  __device__ void finish(const LatentItems& items) {
    give_half();
    group_sync(N::kBothGroups, 256);
    LATHE_ROLLED
    for (int l = group * 4 + warp; l < kMRows && l < items.work_tile.m_rows; l += 8) {
      float r[2], sum[2];
      LATHE_UNROLL
      for (int g = 0; g < 2; ++g) {
        r[g] = load_float(s.row_maxes + (g * kMRows + l) * 4);
        sum[g] = 0;
        for (int w = 0; w < 4; ++w) {
          sum[g] += load_float(s.columns + ((g * 4 + w) * kMRows + l) * 4);
        }
      }
      const float most = fmaxf(r[0], r[1]);
      const float zero = most == kNoKey ? 0.f : most;
      float a = exp2_fast(r[0] - zero), b = exp2_fast(r[1] - zero);
      const float all = sum[0] * a + sum[1] * b;
      const float lse2 = all == 0 ? kNoKey : most + log2_fast(all);
      float factor = all == 0 ? 0.f : p.value_scale / all;
      const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      const std::int32_t head = l - row * p.heads;
      const bool split = items.part >= 0;
      if (!split && p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
      a *= factor;
      b *= factor;
      float4* part =
          partial_chunks<PartialLayout::rows>(p, kMRows, split ? items.part : 0, 0) + l * 128;
      std::uint16_t* out =
          p.out + (items.work_tile.row + row) * p.out_stride + std::int64_t{head} * N::kValues;
      LATHE_UNROLL
      for (int dim = 4 * lane; dim < N::kValues; dim += 128) {
        const float4 x = load_floats(place(s.smem.keys, l, dim));
        const float4 y = load_floats(place(s.smem.keys + N::kKeyBytes, l, dim));
        const float4 v = {x.x * a + y.x * b, x.y * a + y.y * b, x.z * a + y.z * b,
                          x.w * a + y.w * b};
        if (split) {
          part[dim / 4] = v;
        } else {
          *reinterpret_cast<uint2*>(out + dim) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
        }
      }
      if (lane != 0) continue;
      if (split) {
        p.partial_lse[std::int64_t{items.part} * kMRows + l] = lse2;
      } else if (p.lse != nullptr) {
        p.lse[(items.work_tile.row + row) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
      }
    }
    group_sync(N::kBothGroups, 256);
  }

  /// Only this warpgroup has used the buffer, so each thread also arrives for one of the other.
  __device__ void release_keys() const {
    barrier_arrive(s.smem.empty + 16 * group, 2);
    barrier_arrive(s.smem.empty + 16 * group + 8, 2);
  }
  /// At an item's end both warpgroups have read both buffers.
  __device__ void release_all() const {
    for (int i = 0; i < 2 * N::kBuffers; ++i) barrier_arrive(s.smem.empty + 8 * i);
  }

  __device__ void run(std::int32_t worker) {
    LatentItems items(p, worker);
    std::uint32_t parity = 0, q_parity = 0;
    while (items.take<kMRows>(p, 0)) {
      begin();
      barrier_wait(s.smem.q_full, q_parity);
      q_parity ^= 1;
      fence_async_proxy();
      // The producer pads the last pair of tiles.
      const int pairs = (items.item.count + 2 * kLatentTile - 1) / (2 * kLatentTile);
      // A work tile of one row sees all of its keys.
      const int limit = p.dense && items.work_tile.m_rows > p.heads
                            ? items.work_tile.limit - items.item.first
                            : INT32_MAX;
      for (int t = 0; t < pairs; ++t, ++pair) {
        if (t > 0) release_keys();
        if constexpr (N::kPaged) {
          barrier_wait(s.smem.full + 8 * group, parity);
        } else {
          barrier_wait(s.smem.full + 16 * group, parity);
          barrier_wait(s.smem.full + 16 * group + 8, parity);
          fence_async_proxy();
        }
        parity ^= 1;
        tile(limit == INT32_MAX ? limit : limit - (2 * t + group) * kLatentTile);
      }
      if (lane == 0) barrier_arrive(s.smem.q_empty);
      items.look_up(p);
      finish(items);
      if constexpr (N::kPaged) fence_async_proxy();
      release_all();
    }
  }
};

template <class Format, int kBlockM, bool kPages>
static __global__ void __launch_bounds__(LatentSwapAb<Format, kBlockM, kPages>::kThreads, 1)
    latent_swap_ab_kernel(const __grid_constant__ LatentParams p,
                          const __grid_constant__ CUtensorMap map) {
  using N = LatentSwapAb<Format, kBlockM, kPages>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const LatentSwapAbShared<N> s(shared_address(shared_bytes));
  const LatentRowAddresses<Format> addresses{s.smem.addresses};
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (threadIdx.x == 0) {
    barrier_init(s.smem.q_full, 32);
    barrier_init(s.smem.q_empty, 8);
    if constexpr (!kPages) addresses.init();
    for (int b = 0; b < N::kBuffers; ++b) {
      if constexpr (kPages) {
        barrier_init(s.smem.full + 8 * b, 1);
      } else {
        barrier_init(s.smem.full + 24 * b, kFirstHalfArrivals);
        barrier_init(s.smem.full + 8 + 8 * b, kSecondHalfArrivals);
      }
      barrier_init(s.smem.empty + 16 * b, 256);
      barrier_init(s.smem.empty + 16 * b + 8, 256);
    }
    barriers_visible();
  }
  sync_block();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 256) {
    lower_registers<N::kProducerRegisters>();
    if constexpr (!kPages) {
      if (thread < 320) {
        RowCopy<Format>(s.smem, (thread - 256) / 32, thread % 32).run(addresses);
      } else if (thread < 352) {
        load_queries<kBlockM, N::kDims, 32, 1>(p, s.smem, worker, 0, thread - 320);
      } else {
        resolve_pairs<Format, kBlockM>(p, addresses, worker, 0, thread - 352);
      }
    } else if (thread < 288) {
      LatentPageProducer<Format, N::kMRows, N::kBuffers, true>(p, s.smem, &map, 0).run(worker);
    }
    if (thread >= N::kThreads - 32) write_keyless(p, thread - (N::kThreads - 32));
  } else {
    raise_registers<N::kConsumerRegisters>();
    LatentSwapAbGroup<N>(p, s, thread / 128, thread % 128).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
