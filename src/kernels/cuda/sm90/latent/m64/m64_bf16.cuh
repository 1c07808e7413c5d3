// Latent attention on bf16 caches, 64 M rows per block: M rows on M, keys on N.
//
// Two consumer warpgroups, one producer (load_bf16_rows.cuh, load_pages.cuh). Tiles of 64 keys pass
// through two buffers in pairs. Warpgroup 0 computes S of the even tile, warpgroup 1 of the odd
// one. Each accumulates PV of both tiles over its half of the value dimensions (64 x 256 f32, 128
// registers a thread):
//
//               dims 0-255           dims 256-511
//   64 M rows | O of warpgroup 0   | O of warpgroup 1   |
//
//   warpgroup 0   S0 = Q K0'   softmax 0   O += P0 V0 (left)    O += P1 V1 (left)    S2 = Q K2' ...
//   warpgroup 1   S1 = Q K1'               O += P0 V0 (right)   softmax 1   O += P1 V1 (right) ...
//
// A warp votes on whether a row max rises (row_max.cuh). Row maxes pass from tile to tile in key
// order, through shared memory.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wait_order.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_bf16_epilogue.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"

namespace lathe::cuda {

/// A consumer warpgroup of 4 warps x 16 M rows. Each thread has two rows.
template <class W, int kGroup>
struct LatentM64Group {
  const LatentParams& p;
  const LatentM64Shared<W>& s;
  const void* out_map;
  int warp, lane, row;  // this thread's rows are row and row + 8
  float acc[128];
  float row_max[2];  // log2; P is divided by 2^row_max
  int pair = 0;      // pairs of tiles so far
  float row_sum[2];  // over this thread's columns of this group's own tiles
  RowLimits limits;  // of the work item

  __device__ LatentM64Group(const LatentParams& params, const LatentM64Shared<W>& shared,
                            const void* to, int t)
      : p(params), s(shared), out_map(to), warp(t / 32), lane(t % 32) {
    row = warp * 16 + lane / 4;
  }

  __device__ int thread() const { return warp * 32 + lane; }
  __device__ void begin() {
    LATHE_UNROLL
    for (int i = 0; i < 128; ++i) acc[i] = 0;
    row_max[0] = row_max[1] = kNoKey;
    row_sum[0] = row_sum[1] = 0;
  }

  template <int kFirst, int kEnd>
  __device__ void score_tiles(float (&d)[32], int buffer, bool add) {
    const std::uint64_t queries = descriptor_here(tile_descriptor(s.smem.q, 1024));
    const std::uint64_t keys =
        descriptor_here(tile_descriptor(s.smem.keys + buffer * W::kKeyBytes, 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (int t = kFirst; t < kEnd; ++t) {
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const auto at = static_cast<std::uint32_t>(t * kDimTileBytes + k * 32);
        mma_m64n64_bf16(d, descriptor_at(queries, at), descriptor_at(keys, at),
                        add || t + k > kFirst);
      }
    }
    wgmma_commit();
  }
  /// QK over the half of the dimensions that arrives first, then over the rest.
  __device__ void score_first(float (&d)[32], int buffer, std::uint32_t parity) {
    barrier_wait(s.full(buffer, kGroup), parity);
    if constexpr (W::kCopied) fence_async_proxy();
    score_tiles<kGroup * 4, kGroup * 4 + 4>(d, buffer, false);
  }
  __device__ void score_rest(float (&d)[32], int buffer, std::uint32_t parity) {
    barrier_wait(s.full(buffer, 1 - kGroup), parity);
    if constexpr (W::kCopied) fence_async_proxy();
    score_tiles<4 - kGroup * 4, 8 - kGroup * 4>(d, buffer, true);
    if constexpr (W::kDims == 9) score_tiles<8, 9>(d, buffer, true);
  }
  __device__ void score(float (&d)[32], int buffer, std::uint32_t parity) {
    score_first(d, buffer, parity);
    score_rest(d, buffer, parity);
  }

  /// V of this warpgroup's half; 16 keys are 2048 bytes.
  __device__ std::uint64_t values(int buffer) const {
    return descriptor_here(tile_descriptor(
        s.smem.keys + buffer * W::kKeyBytes + kGroup * 4 * kDimTileBytes, 1024, kDimTileBytes));
  }
  __device__ void add_own(const std::uint32_t (&w)[4][4], int buffer) {
    const std::uint64_t v = values(buffer);
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      mma_m64n256_bf16_rows(acc, w[k], descriptor_at(v, static_cast<std::uint32_t>(k * 2048)),
                            true);
    }
    wgmma_commit();
  }
  __device__ void add_other(int buffer) {
    const std::uint64_t v = values(buffer);
    const std::uint64_t w = descriptor_here(tile_descriptor(s.p_tile[buffer], 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      mma_m64n256_bf16(acc, descriptor_at(w, static_cast<std::uint32_t>(k * 32)),
                       descriptor_at(v, static_cast<std::uint32_t>(k * 2048)), true);
    }
    wgmma_commit();
  }

  /// Rescales the accumulator to new row maxes. wgmma must have finished.
  __device__ void rescale(float r0, float r1) {
    if (!seldom(warp_any(r0 != row_max[0] || r1 != row_max[1]))) return;
    // From -inf there is nothing to scale: the accumulator is 0.
    const float f0 = r0 == row_max[0] ? 1.f : exp2_fast(row_max[0] - r0);
    const float f1 = r1 == row_max[1] ? 1.f : exp2_fast(row_max[1] - r1);
    LATHE_UNROLL
    for (int i = 0; i < 128; i += 4) {
      acc[i] *= f0;
      acc[i + 1] *= f0;
      acc[i + 2] *= f1;
      acc[i + 3] *= f1;
    }
    row_sum[0] *= f0;
    row_sum[1] *= f1;
    row_max[0] = r0;
    row_max[1] = r1;
  }

  /// Turns S into P, packed as an operand, and stores it to shared memory for the other warpgroup.
  /// out0, out1: row maxes of P. Warpgroup 1 frees the even tile's values halfway.
  __device__ void softmax(float (&d)[32], float r0, float r1, int which, float& out0, float& out1,
                          float& add0, float& add1, std::uint32_t (&w)[4][4]) {
    float m0 = d[0], m1 = d[2];
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      m0 = fmaxf(m0, fmaxf(d[4 * j], d[4 * j + 1]));
      m1 = fmaxf(m1, fmaxf(d[4 * j + 2], d[4 * j + 3]));
    }
    const bool grows = m0 * p.scale > r0 + kRowMaxSlack || m1 * p.scale > r1 + kRowMaxSlack;
    if (seldom(warp_any(grows))) {
      m0 = fmaxf(m0, shuffle_xor(m0, 1));
      m1 = fmaxf(m1, shuffle_xor(m1, 1));
      m0 = fmaxf(m0, shuffle_xor(m0, 2)) * p.scale;
      m1 = fmaxf(m1, shuffle_xor(m1, 2)) * p.scale;
      if (m0 > r0 + kRowMaxSlack) r0 = m0;
      if (m1 > r1 + kRowMaxSlack) r1 = m1;
    }
    out0 = r0;
    out1 = r1;
    if ((lane & 3) == 0) {
      store_float(s.row_maxes + which * 256 + row * 4, r0);
      store_float(s.row_maxes + which * 256 + row * 4 + 32, r1);
    }
    const float z0 = r0 == kNoKey ? 0.f : r0, z1 = r1 == kNoKey ? 0.f : r1;
    add0 = add1 = 0;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      if (kGroup == 1 && j == 6) {
        // The even tile's PV has finished by now.
        finish_before_wait(add0 + add1);
        wgmma_wait<0>();
        release_half(0);
      }
      const float a = exp2_fast(fmaf(d[4 * j], p.scale, -z0));
      const float b = exp2_fast(fmaf(d[4 * j + 1], p.scale, -z0));
      const float c = exp2_fast(fmaf(d[4 * j + 2], p.scale, -z1));
      const float e = exp2_fast(fmaf(d[4 * j + 3], p.scale, -z1));
      add0 += a + b;
      add1 += c + e;
      w[j / 2][2 * (j & 1)] = pack_bf16(a, b);
      w[j / 2][2 * (j & 1) + 1] = pack_bf16(c, e);
    }
    const int m_row = warp * 16 + (lane & 15);
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      store_matrices(swizzled(s.p_tile[which], m_row, 2 * k + lane / 16), w[k][0], w[k][1], w[k][2],
                     w[k][3]);
    }
  }

  __device__ std::uint32_t mask_at(int which) const {
    return s.smem.masks + pair % LatentShared::kSlots * (kPairKeys / 8) + 8 * which;
  }
  __device__ std::uint64_t mask(int which) const { return load_shared_u64(mask_at(which)); }
  /// Zeros the values of masked keys in this warpgroup's half: a TMA box may copy arbitrary bytes
  /// there, and P = 0 times NaN is NaN. parity: of the tile's buffer.
  __device__ void zero_masked(int which, std::uint32_t parity) const {
    if constexpr (!W::kPaged) return;
    barrier_wait(s.full(which, kGroup), parity);
    const std::uint64_t seen = mask(which);
    if (!seldom(seen != ~std::uint64_t{0})) return;
    const int key = thread() / 2;
    if (!(seen >> key & 1)) {
      const std::uint32_t tiles = s.smem.keys + which * W::kKeyBytes +
                                  (kGroup * 4 + thread() % 2 * 2) * kDimTileBytes + key * 128;
      for (int c = 0; c < 8; ++c) {
        store_shared(tiles + c * 16, 0, 0, 0, 0);
        store_shared(tiles + kDimTileBytes + c * 16, 0, 0, 0, 0);
      }
    }
    fence_async_proxy();
    group_sync(W::kCleared + kGroup, 128);
  }
  /// Masks S of a tile. first: keys that the block's first row sees, counted from the tile's.
  __device__ __forceinline__ void apply_mask(float (&d)[32], int which, std::uint64_t seen,
                                             int first) const {
    mask_keys(d, seen, lane);
    if (!seldom(first < kLatentTile)) return;
    const bool wild = mask_after(d, first, limits.rows, lane);
    if (!seldom(group_any(W::kCleared + kGroup, 128, wild))) return;
    // The other warpgroup reads the values once P is ready.
    const ValueRows<false, 8, kDimTileBytes> rows{s.smem.keys + which * W::kKeyBytes};
    poison_keys(d, drop_wild_keys<true>(mask_at(which), rows, W::kCleared + kGroup, warp, lane),
                lane);
    mask_after(d, first, limits.rows, lane);
  }
  __device__ float row_max_of(int which, int r) const {
    return load_float(s.row_maxes + which * 256 + r * 4);
  }
  __device__ void release(std::uint32_t barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }
  /// This warpgroup's PV has read its half of a buffer.
  __device__ void release_half(int buffer) const {
    const std::uint32_t barrier = s.smem.empty + 16 * buffer + 8 * kGroup;
    if constexpr (W::kBlocks == 1) {
      release(barrier);
    } else if (lane < W::kBlocks) {
      barrier_arrive_of(barrier, static_cast<std::uint32_t>(lane));
    }
  }

  /// Epilogue. Also frees the odd tile's half of the last pair.
  __device__ void finish(const LatentWorkInfo& item, std::int32_t tile) {
    // Keeps addresses from being computed early and spilled.
    asm volatile("" : "+r"(lane), "+r"(row), "+r"(warp));
    const bool boxes = item.number < 0 && has_out_boxes(p);
    const LatentM64Epilogue<W, kGroup> outputs{p, s, out_map, item, warp, lane, acc};
    if (!boxes) release_half(1);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      row_sum[i] += shuffle_xor(row_sum[i], 1);
      row_sum[i] += shuffle_xor(row_sum[i], 2);
    }
    if ((lane & 3) == 0) {
      store_float(s.row_sums + kGroup * 256 + row * 4, row_sum[0]);
      store_float(s.row_sums + kGroup * 256 + row * 4 + 32, row_sum[1]);
    }
    group_sync(W::kRowSumsReady, 256);
    const std::int32_t first = tile * W::kMRows;
    float factor[2];
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int in_tile = row + 8 * i;
      const std::int32_t m_row = first + in_tile;
      const float sum = row_sum[i] + load_float(s.row_sums + (1 - kGroup) * 256 + in_tile * 4);
      const float lse2 = sum == 0 ? kNoKey : row_max[i] + log2_fast(sum);
      factor[i] = sum == 0 ? 0.f : p.value_scale / sum;
      if (m_row >= item.m_rows) continue;
      if (item.number >= 0) {
        outputs.store_partial(tile, i, factor[i]);
        if (kGroup == 0 && (lane & 3) == 0) {
          p.partial_lse[std::int64_t{item.number} * (p.m_blocks * W::kMRows) + m_row] = lse2;
        }
        continue;
      }
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
      const std::int32_t head = m_row - r * p.heads;
      if (p.sink != nullptr) factor[i] *= sink_factor(p.sink[head], lse2);
      if (kGroup == 0 && (lane & 3) == 0 && p.lse != nullptr) {
        p.lse[(item.row + r) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
      }
      if (!boxes) outputs.store(m_row, i, factor[i]);
    }
    if (!boxes) return;
    outputs.put(first, factor);
    release_half(1);
  }

  /// Computes one work item; its queries are being loaded.
  __device__ void attend(const LatentWorkInfo& item, std::int32_t tile, std::uint32_t& parity) {
    limits = {};
    // A work tile of one row sees all of its keys.
    if (p.dense && item.m_rows > p.heads) {
      limits = RowLimits::of(p, item.limit, tile * W::kMRows, tile * W::kMRows + row);
    }
    if constexpr (kGroup == 0) {
      even(item.tiles / 2, parity);
    } else {
      odd(item.tiles / 2, parity);
    }
  }

  __device__ void run(std::int32_t worker, std::int32_t tile) {
    std::uint32_t parity = 0, q_parity = 0;
    if constexpr (W::kPaged) {
      LatentItems items(p, worker);
      while (items.take<W::kMRows>(p, tile / W::kBlocks * W::kBlocks)) {
        begin();
        barrier_wait(s.smem.q_full, q_parity);
        q_parity ^= 1;
        fence_async_proxy();
        const LatentWorkInfo item{LatentWorkInfo::tiles_of<2>(items.item),
                                  items.work_tile.limit - items.item.first, items.work_tile.row,
                                  items.work_tile.m_rows, items.part};
        attend(item, tile, parity);
        finish(item, tile);
      }
    } else {
      LATHE_ROLLED
      for (;; q_parity ^= 1) {
        begin();
        barrier_wait(s.smem.q_full, q_parity);
        const std::uint32_t info = s.info + q_parity * LatentWorkInfo::kBytes;
        const LatentWorkInfo item = LatentWorkInfo::load(info);
        if (item.tiles == 0) return;
        fence_async_proxy();
        attend(item, tile, parity);
        // Reload it to save registers.
        finish(LatentWorkInfo::load(info), tile);
      }
    }
  }

  /// Iterates over pairs of tiles; the producer pads the last one.
  __device__ void even(int pairs, std::uint32_t& parity) {
    float d[32];
    score(d, 0, parity);
    for (int t = 0; t + 1 < pairs; ++t) even_pair<true>(d, t, pairs, parity);
    even_pair<false>(d, pairs - 1, pairs, parity);
  }
  /// At the start S of pair t is in flight; with kNext, S of the next pair is at the end.
  template <bool kNext>
  __device__ void even_pair(float (&d)[32], int t, int pairs, std::uint32_t& parity) {
    std::uint32_t w[4][4];
    const std::uint64_t seen = mask(0);
    wgmma_wait<0>();
    wgmma_pin(d);
    wgmma_pin(acc);
    if (t + 1 == pairs) release(s.smem.q_empty);
    apply_mask(d, 0, seen, limits.first - 2 * t * kLatentTile);
    float r0, r1, add0, add1;
    softmax(d, row_max[0], row_max[1], 0, r0, r1, add0, add1, w);
    rescale(r0, r1);
    row_sum[0] += add0;
    row_sum[1] += add1;
    zero_masked(0, parity);
    add_own(w, 0);
    fence_async_proxy();
    barrier_arrive(s.ready);
    wgmma_wait<0>();
    wgmma_pin(acc);
    // Before waiting for the other tile's P, so that this buffer can be refilled meanwhile.
    release_half(0);
    barrier_wait(s.ready + 8, parity);
    rescale(row_max_of(1, row), row_max_of(1, row + 8));
    zero_masked(1, parity);
    parity ^= 1;
    add_other(1);
    ++pair;
    if constexpr (kNext) {
      score_first(d, 0, parity);
      wgmma_wait<1>();
      release_half(1);
      score_rest(d, 0, parity);
    } else {
      wgmma_wait<0>();
      wgmma_pin(acc);
    }
  }

  __device__ void odd(int pairs, std::uint32_t& parity) {
    float d[32];
    std::uint32_t w[4][4];
    for (int t = 0; t < pairs; ++t, ++pair) {
      score(d, 1, parity);
      const std::uint64_t seen = mask(1);
      wgmma_wait<0>();
      wgmma_pin(d);
      if (t + 1 == pairs) release(s.smem.q_empty);
      barrier_wait(s.ready, parity);
      rescale(row_max_of(0, row), row_max_of(0, row + 8));
      zero_masked(0, parity);
      add_other(0);
      apply_mask(d, 1, seen, limits.first - (2 * t + 1) * kLatentTile);
      float r0, r1, add0, add1;
      softmax(d, row_max[0], row_max[1], 1, r0, r1, add0, add1, w);
      fence_async_proxy();
      barrier_arrive(s.ready + 8);
      wgmma_pin(acc);
      rescale(r0, r1);
      row_sum[0] += add0;
      row_sum[1] += add1;
      zero_masked(1, parity);
      parity ^= 1;
      add_own(w, 1);
      wgmma_wait<0>();
      wgmma_pin(acc);
      if (t + 1 < pairs) release_half(1);
    }
  }
};

template <class Format, bool kPages, int kBlocks>
static __global__ void __launch_bounds__(384, 1)
    latent_m64_kernel(const __grid_constant__ LatentParams p,
                      const __grid_constant__ CUtensorMap map,
                      const __grid_constant__ CUtensorMap out_map) {
  using W = LatentM64<Format, kPages, kBlocks>;
  if (!kPages && p.early) wait_for_previous();
  if (!kPages && another_launch_runs(p)) return;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const LatentM64Shared<W> s(shared_address(shared_bytes));
  const LatentRowAddresses<Format> addresses{s.smem.addresses};
  const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.m_blocks;
  const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.m_blocks;
  if (threadIdx.x == 0) {
    barrier_init(s.smem.q_full, kPages ? kProducerThreads - 32 : kQueryArrivals);
    barrier_init(s.smem.q_empty, 8);
    for (int b = 0; b < W::kBuffers; ++b) {
      barrier_init(s.full(b, b), kPages ? 1 : kFirstHalfArrivals);
      barrier_init(s.full(b, 1 - b), kPages ? 1 : kSecondHalfArrivals);
      barrier_init(s.ready + 8 * b, 128);
      barrier_init(s.smem.empty + 16 * b, 4 * kBlocks);
      barrier_init(s.smem.empty + 16 * b + 8, 4 * kBlocks);
    }
    if constexpr (!kPages) addresses.init();
    barriers_visible();
  }
  if constexpr (kBlocks > 1) {
    sync_cluster();
  } else {
    sync_block();
  }
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == 2) {
    lower_registers<W::kProducerRegisters>();
    if constexpr (!kPages) {
      if (thread < 64) {
        RowCopy<Format>(s.smem, thread / 32, thread % 32).run(addresses);
      } else if (thread < 96) {
        publish_work<Format, W::kMRows, 2>(p, &map, s.smem.q, s.info, s.smem.q_full, s.smem.q_empty,
                                           worker, tile, thread - 64, [](unsigned) {});
      } else {
        resolve_pairs<Format, W::kMRows>(p, addresses, worker, tile, thread - 96);
      }
    } else if (thread < 32) {
      LatentPageProducer<Format, W::kMRows, W::kBuffers, false, 2, kBlocks>(p, s.smem, &map, tile)
          .run(worker);
    } else {
      load_queries<W::kMRows, W::kDims, kProducerThreads - 32, kBlocks>(p, s.smem, worker, tile,
                                                                        thread - 32);
    }
    if (thread >= 96) write_keyless(p, thread - 96);
  } else if (group == 0) {
    raise_registers<W::kConsumerRegisters>();
    LatentM64Group<W, 0>(p, s, &out_map, thread).run(worker, tile);
  } else {
    raise_registers<W::kConsumerRegisters>();
    LatentM64Group<W, 1>(p, s, &out_map, thread).run(worker, tile);
  }
  let_next_begin();
  // Until here the other block may arrive at this one's barriers.
  if constexpr (kBlocks > 1) sync_cluster();
}

}  // namespace lathe::cuda
