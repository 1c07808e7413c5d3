// Latent attention on bf16 caches with the lines on the M side: a block does 64 lines.
//
// Two warpgroups multiply, a third one fills (load_bf16_rows.cuh, load_pages.cuh). Tiles of keys go through two buffers in
// pairs: group 0 makes the scores of the even tile, group 1 of the odd one, and each adds both tiles to
// its half of the value dimensions (64 x 256 f32, 128 registers a thread). So the softmax of one
// overlaps with the products of the other:
//
//   group 0   S0 = Q K0'   softmax 0   O += P0 V0 (left)    O += P1 V1 (left)    S2 = Q K2' ...
//   group 1   S1 = Q K1'               O += P0 V0 (right)   softmax 1   O += P1 V1 (right) ...
//
// Which lines' references rise (row_max.cuh) is decided by one vote of a warp. References go
// from tile to tile in the order of keys, through shared memory.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_bf16_epilogue.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"

namespace lathe::cuda {

/// A consumer warpgroup's state for its 16 x 4 rows: each thread has two.
template <class W, int kGroup>
struct LatentWideGroup {
  const LatentParams& p;
  const LatentWideShared<W>& s;
  const void* out_map;
  int warp, lane, row;  // row and row + 8
  float sums[128];
  float reference[2];  // log2 of what weights and sums are divided by
  int pair = 0;        // of tiles, of this worker
  float total[2];      // of this thread's columns of this group's own tiles

  __device__ LatentWideGroup(const LatentParams& params, const LatentWideShared<W>& shared,
                             const void* to, int t)
      : p(params), s(shared), out_map(to), warp(t / 32), lane(t % 32) {
    row = warp * 16 + lane / 4;
  }

  __device__ int thread() const { return warp * 32 + lane; }
  __device__ void begin() {
    LATHE_UNROLL
    for (int i = 0; i < 128; ++i) sums[i] = 0;
    reference[0] = reference[1] = kNoKey;
    total[0] = total[1] = 0;
  }

  template <int kFirst, int kEnd>
  __device__ void score_tiles(float (&d)[32], int buffer, bool add) {
    const std::uint64_t queries = descriptor_here(tile_descriptor(s.fill.q, 1024));
    const std::uint64_t keys =
        descriptor_here(tile_descriptor(s.fill.keys + buffer * W::kKeyBytes, 1024));
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
  /// The scores' products over the half of the values that comes first, and over the rest.
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

  /// Of this group's half; 16 keys are 2048 bytes.
  __device__ std::uint64_t values(int buffer) const {
    return descriptor_here(tile_descriptor(
        s.fill.keys + buffer * W::kKeyBytes + kGroup * 4 * kDimTileBytes, 1024, kDimTileBytes));
  }
  __device__ void add_own(const std::uint32_t (&w)[4][4], int buffer) {
    const std::uint64_t v = values(buffer);
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      mma_m64n256_bf16_rows(sums, w[k], descriptor_at(v, static_cast<std::uint32_t>(k * 2048)),
                            true);
    }
    wgmma_commit();
  }
  __device__ void add_other(int buffer) {
    const std::uint64_t v = values(buffer);
    const std::uint64_t w = descriptor_here(tile_descriptor(s.weights[buffer], 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      mma_m64n256_bf16(sums, descriptor_at(w, static_cast<std::uint32_t>(k * 32)),
                       descriptor_at(v, static_cast<std::uint32_t>(k * 2048)), true);
    }
    wgmma_commit();
  }

  /// Goes over to new references; the products must be done.
  __device__ void refer(float r0, float r1) {
    if (!seldom(warp_any(r0 != reference[0] || r1 != reference[1]))) return;
    // From -inf there is nothing to scale; the sums are 0.
    const float f0 = r0 == reference[0] ? 1.f : exp2_fast(reference[0] - r0);
    const float f1 = r1 == reference[1] ? 1.f : exp2_fast(reference[1] - r1);
    LATHE_UNROLL
    for (int i = 0; i < 128; i += 4) {
      sums[i] *= f0;
      sums[i + 1] *= f0;
      sums[i + 2] *= f1;
      sums[i + 3] *= f1;
    }
    total[0] *= f0;
    total[1] *= f1;
    reference[0] = r0;
    reference[1] = r1;
  }

  /// Scores to weights, packed as operand, and into shared memory for the other group. Gives the
  /// references that they are relative to. Group 1 gives the even tile's values back beside it.
  __device__ void weigh(float (&d)[32], float r0, float r1, int which, float& out0, float& out1,
                        float& add0, float& add1, std::uint32_t (&w)[4][4]) {
    float m0 = d[0], m1 = d[2];
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      m0 = fmaxf(m0, fmaxf(d[4 * j], d[4 * j + 1]));
      m1 = fmaxf(m1, fmaxf(d[4 * j + 2], d[4 * j + 3]));
    }
    const bool grows = m0 * p.scale > r0 + kReferenceSlack || m1 * p.scale > r1 + kReferenceSlack;
    if (seldom(warp_any(grows))) {
      m0 = fmaxf(m0, shuffle_xor(m0, 1));
      m1 = fmaxf(m1, shuffle_xor(m1, 1));
      m0 = fmaxf(m0, shuffle_xor(m0, 2)) * p.scale;
      m1 = fmaxf(m1, shuffle_xor(m1, 2)) * p.scale;
      if (m0 > r0 + kReferenceSlack) r0 = m0;
      if (m1 > r1 + kReferenceSlack) r1 = m1;
    }
    out0 = r0;
    out1 = r1;
    if ((lane & 3) == 0) {
      store_float(s.references + which * 256 + row * 4, r0);
      store_float(s.references + which * 256 + row * 4 + 32, r1);
    }
    const float z0 = r0 == kNoKey ? 0.f : r0, z1 = r1 == kNoKey ? 0.f : r1;
    add0 = add1 = 0;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      if (kGroup == 1 && j == 6) {
        // The even tile's values are added by now.
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
    const int line = warp * 16 + (lane & 15);
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      store_matrices(swizzled(s.weights[which], line, 2 * k + lane / 16), w[k][0], w[k][1], w[k][2],
                     w[k][3]);
    }
  }

  __device__ std::uint64_t mask(int which) const {
    return load_shared_u64(s.fill.masks + pair % LatentShared::kSlots * (kFillKeys / 8) +
                           8 * which);
  }
  /// Zeros for this group's half of the values of hidden keys, as a box may bring anything there, and a
  /// weight of 0 does not make NaN vanish. parity: of the tile's buffer.
  __device__ void clear_hidden(int which, std::uint32_t parity) const {
    if constexpr (!W::kPaged) return;
    barrier_wait(s.full(which, kGroup), parity);
    const std::uint64_t seen = mask(which);
    if (!seldom(seen != ~std::uint64_t{0})) return;
    const int key = thread() / 2;
    if (!(seen >> key & 1)) {
      const std::uint32_t tiles = s.fill.keys + which * W::kKeyBytes +
                                  (kGroup * 4 + thread() % 2 * 2) * kDimTileBytes + key * 128;
      for (int c = 0; c < 8; ++c) {
        store_shared(tiles + c * 16, 0, 0, 0, 0);
        store_shared(tiles + kDimTileBytes + c * 16, 0, 0, 0, 0);
      }
    }
    fence_async_proxy();
    group_sync(W::kCleared + kGroup, 128);
  }
  __device__ float reference_of(int which, int r) const {
    return load_float(s.references + which * 256 + r * 4);
  }
  __device__ void release(std::uint32_t barrier) const {
    if (lane == 0) barrier_arrive(barrier);
  }
  /// This group's half of the values of a buffer has been used.
  __device__ void release_half(int buffer) const {
    const std::uint32_t barrier = s.fill.empty + 16 * buffer + 8 * kGroup;
    if constexpr (W::kBlocks == 1) {
      release(barrier);
    } else if (lane < W::kBlocks) {
      barrier_arrive_of(barrier, static_cast<std::uint32_t>(lane));
    }
  }

  /// Gives the odd tile's half of the last pair back, too.
  __device__ void finish(const LatentItemFacts& item, std::int32_t tile) {
    // Else addresses are made early, and spilled.
    asm volatile("" : "+r"(lane), "+r"(row), "+r"(warp));
    const bool boxes = has_out_boxes(p);
    const LatentWideOutputs<W, kGroup> outputs{p, s, out_map, item, warp, lane, sums};
    if (!boxes) release_half(1);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      total[i] += shuffle_xor(total[i], 1);
      total[i] += shuffle_xor(total[i], 2);
    }
    if ((lane & 3) == 0) {
      store_float(s.sums + kGroup * 256 + row * 4, total[0]);
      store_float(s.sums + kGroup * 256 + row * 4 + 32, total[1]);
    }
    group_sync(W::kSumsReady, 256);
    const std::int32_t first = tile * W::kLines;
    float factor[2];
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int in_tile = row + 8 * i;
      const std::int32_t line = first + in_tile;
      const float sum = total[i] + load_float(s.sums + (1 - kGroup) * 256 + in_tile * 4);
      const float lse2 = sum > 0 ? reference[i] + log2_fast(sum) : kNoKey;
      factor[i] = sum > 0 ? p.value_scale / sum : 0.f;
      if (line >= item.lines) continue;
      if (item.number >= 0) {
        outputs.store_part(tile, i, factor[i]);
        if (kGroup == 0 && (lane & 3) == 0) {
          p.part_lse[std::int64_t{item.number} * (p.tiles * W::kLines) + line] = lse2;
        }
        continue;
      }
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(line)));
      const std::int32_t head = line - r * p.heads;
      constexpr float kLn2 = 0.6931471805599453f;
      if (p.sink != nullptr) factor[i] *= sink_factor(p.sink[head], lse2);
      if (kGroup == 0 && (lane & 3) == 0 && p.lse != nullptr) {
        p.lse[(item.row + r) * p.lse_stride + head] = lse2 * kLn2;
      }
      if (!boxes) outputs.store(line, i, factor[i]);
    }
    if (!boxes) return;
    outputs.put(first, factor);
    release_half(1);
  }

  /// One item, whose queries are on their way.
  __device__ void attend(const LatentItemFacts& item, std::int32_t tile, std::uint32_t& parity) {
    // How many keys of the item each of this thread's rows sees.
    int limit[2] = {INT32_MAX, INT32_MAX};
    if (p.dense) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const auto r = static_cast<std::int32_t>(
            p.by_heads(static_cast<std::uint32_t>(tile * W::kLines + row + 8 * i)));
        limit[i] = item.limit + r;
      }
    }
    if constexpr (kGroup == 0) {
      even(item.tiles / 2, limit, parity);
    } else {
      odd(item.tiles / 2, limit, parity);
    }
  }

  __device__ void run(std::int32_t worker, std::int32_t tile) {
    std::uint32_t parity = 0, q_parity = 0;
    if constexpr (W::kPaged) {
      LatentItems items(p, worker);
      while (items.take<W::kLines>(p, tile / W::kBlocks * W::kBlocks)) {
        begin();
        barrier_wait(s.fill.q_full, q_parity);
        q_parity ^= 1;
        fence_async_proxy();
        const LatentItemFacts item{LatentItemFacts::tiles_of<2>(items.item),
                                   items.unit.limit - items.item.first, items.unit.row,
                                   items.unit.lines, items.split ? items.number : -1};
        attend(item, tile, parity);
        finish(item, tile);
      }
    } else {
      LATHE_ROLLED
      for (;; q_parity ^= 1) {
        begin();
        barrier_wait(s.fill.q_full, q_parity);
        const std::uint32_t facts = s.facts + q_parity * LatentItemFacts::kBytes;
        const LatentItemFacts item = LatentItemFacts::load(facts);
        if (item.tiles == 0) return;
        fence_async_proxy();
        attend(item, tile, parity);
        // Read again, as registers are few.
        finish(LatentItemFacts::load(facts), tile);
      }
    }
  }

  /// Pairs of tiles; the producer fills up the last one.
  __device__ void even(int pairs, const int (&limit)[2], std::uint32_t& parity) {
    float d[32];
    score(d, 0, parity);
    for (int t = 0; t + 1 < pairs; ++t) even_pair<true>(d, t, pairs, limit, parity);
    even_pair<false>(d, pairs - 1, pairs, limit, parity);
  }
  /// The scores of pair t are under way; with kNext the next ones' are at the end.
  template <bool kNext>
  __device__ void even_pair(float (&d)[32], int t, int pairs, const int (&limit)[2],
                            std::uint32_t& parity) {
    std::uint32_t w[4][4];
    const std::uint64_t seen = mask(0);
    wgmma_wait<0>();
    wgmma_pin(d);
    wgmma_pin(sums);
    if (t + 1 == pairs) release(s.fill.q_empty);
    hide_keys(d, seen, lane);
    hide_after(d, limit[0] - 2 * t * kLatentTile, limit[1] - 2 * t * kLatentTile, lane);
    float r0, r1, add0, add1;
    weigh(d, reference[0], reference[1], 0, r0, r1, add0, add1, w);
    refer(r0, r1);
    total[0] += add0;
    total[1] += add1;
    clear_hidden(0, parity);
    add_own(w, 0);
    fence_async_proxy();
    barrier_arrive(s.ready);
    wgmma_wait<0>();
    wgmma_pin(sums);
    // Before the other tile's weights are waited for: this one's buffer can be filled meanwhile.
    release_half(0);
    barrier_wait(s.ready + 8, parity);
    refer(reference_of(1, row), reference_of(1, row + 8));
    clear_hidden(1, parity);
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
      wgmma_pin(sums);
    }
  }

  __device__ void odd(int pairs, const int (&limit)[2], std::uint32_t& parity) {
    float d[32];
    std::uint32_t w[4][4];
    for (int t = 0; t < pairs; ++t, ++pair) {
      score(d, 1, parity);
      const std::uint64_t seen = mask(1);
      wgmma_wait<0>();
      wgmma_pin(d);
      if (t + 1 == pairs) release(s.fill.q_empty);
      barrier_wait(s.ready, parity);
      refer(reference_of(0, row), reference_of(0, row + 8));
      clear_hidden(0, parity);
      add_other(0);
      hide_keys(d, seen, lane);
      hide_after(d, limit[0] - (2 * t + 1) * kLatentTile, limit[1] - (2 * t + 1) * kLatentTile,
                 lane);
      float r0, r1, add0, add1;
      weigh(d, reference[0], reference[1], 1, r0, r1, add0, add1, w);
      fence_async_proxy();
      barrier_arrive(s.ready + 8);
      wgmma_pin(sums);
      refer(r0, r1);
      total[0] += add0;
      total[1] += add1;
      clear_hidden(1, parity);
      parity ^= 1;
      add_own(w, 1);
      wgmma_wait<0>();
      wgmma_pin(sums);
      if (t + 1 < pairs) release_half(1);
    }
  }
};

template <class Format, bool kPages, int kBlocks>
static __global__ void __launch_bounds__(384, 1)
    latent_wide_kernel(const __grid_constant__ LatentParams p,
                       const __grid_constant__ CUtensorMap map,
                       const __grid_constant__ CUtensorMap out_map) {
  using W = LatentWide<Format, kPages, kBlocks>;
  if (!kPages && p.early) wait_for_previous();
  if (!kPages && left_to_another(p)) return;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const LatentWideShared<W> s(shared_address(shared_bytes));
  const LatentNames<Format> names{s.fill.names};
  const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.tiles;
  const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.tiles;
  if (threadIdx.x == 0) {
    barrier_init(s.fill.q_full, kPages ? kFillThreads - 32 : kQueryArrivals);
    barrier_init(s.fill.q_empty, 8);
    for (int b = 0; b < W::kBuffers; ++b) {
      barrier_init(s.full(b, b), kPages ? 1 : kFirstHalfArrivals);
      barrier_init(s.full(b, 1 - b), kPages ? 1 : kSecondHalfArrivals);
      barrier_init(s.ready + 8 * b, 128);
      barrier_init(s.fill.empty + 16 * b, 4 * kBlocks);
      barrier_init(s.fill.empty + 16 * b + 8, 4 * kBlocks);
    }
    if constexpr (!kPages) names.init();
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
    lower_registers<W::kFillRegisters>();
    if constexpr (!kPages) {
      if (thread < 64) {
        LineCopy<Format>(s.fill, thread / 32, thread % 32).run(names);
      } else if (thread < 96) {
        tell_items<Format, W::kLines, 2>(p, &map, s.fill.q, s.facts, s.fill.q_full, s.fill.q_empty,
                                         worker, tile, thread - 64, [](unsigned) {});
      } else {
        name_pairs<Format, W::kLines>(p, names, worker, tile, thread - 96);
      }
    } else if (thread < 32) {
      LatentPageFill<Format, W::kLines, W::kBuffers, false, 2, kBlocks>(p, s.fill, &map, tile)
          .run(worker);
    } else {
      fill_queries<W::kLines, W::kDims, kFillThreads - 32, kBlocks>(p, s.fill, worker, tile,
                                                                    thread - 32);
    }
    if (thread >= 96) write_keyless(p, thread - 96);
  } else if (group == 0) {
    raise_registers<W::kGroupRegisters>();
    LatentWideGroup<W, 0>(p, s, &out_map, thread).run(worker, tile);
  } else {
    raise_registers<W::kGroupRegisters>();
    LatentWideGroup<W, 1>(p, s, &out_map, thread).run(worker, tile);
  }
  let_next_begin();
  // The other block arrives at this one's barriers to the end.
  if constexpr (kBlocks > 1) sync_cluster();
}

}  // namespace lathe::cuda
