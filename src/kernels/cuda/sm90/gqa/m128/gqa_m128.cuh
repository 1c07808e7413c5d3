// Grouped-query attention of many rows: 128 M rows (query row x head of a group, gqa_params.h) on
// M, keys on N.
//
// Two consumer warpgroups have 64 M rows each. They share the tiles of keys and values that a
// producer warp copies (gqa_load_pages.cuh). Another warp copies an item's queries while the item
// before it ends (gqa_load_queries.cuh). Blocks of 64 M rows have warpgroup 0 alone, and two of
// them are resident on an SM unless values are wide.
//
//                     128 keys (64 where they are wide)
//   M rows  0 -  63 | S = Q K^T of warpgroup 0 |     O of warpgroup 0 [64, value dim]
//   M rows 64 - 127 | S = Q K^T of warpgroup 1 |     O of warpgroup 1
//
//   warpgroup 0  | S1, O += P0 V0      | softmax 1           | S2, O += P1 V1 ...
//   warpgroup 1  | softmax 0           | S1, O += P0 V0      | softmax 1 ...
//
// S of a tile and P V of the tile before it are issued together. The warpgroups take turns at this,
// so that one computes P while the other one multiplies.
//
// Q and K are K-major in shared memory, V is MN-major; P stays in registers. P is made by the row
// maxes of the tiles before, without a look at the tile's own maximum. Where its sums show that
// scores exceed a row max by far, the tile's S is multiplied once more, the row max raised and O
// rescaled. An item's first tile has the row maxes made first.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma_rows_mn.cuh"
#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/attention/mask.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/attention/swizzle.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_edge.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_load_queries.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_load_rows.cuh"
#include "kernels/cuda/sm90/gqa/m128/gqa_m128_config.cuh"
#include "kernels/cuda/sm90/gqa/m128/gqa_m128_store.cuh"

namespace lathe::cuda {

/// A consumer warpgroup: a thread has M rows `row` and `row` + 8 of its 64.
template <class N>
struct GqaM128Group {
  static constexpr int kScores = N::kTile / 2;     // of a thread
  static constexpr int kOperands = N::kTile / 16;  // of P, 16 keys each
  static constexpr int kValueDim = N::kValueDims * 64;
  static constexpr int kOutputs = kValueDim / 2;  // of a thread
  // Of a thread's P of a row and tile. bf16 P has the range of f32, and the row max cancels out.
  static constexpr float kMostSum = 1 << 24;

  const GqaParams& p;
  const GqaRing<N>& ring;
  const GqaQueries<N>& queries;
  int group, warp, lane;
  GqaStage<N> stage;
  std::uint32_t parity = 0;  // of the queries
  float acc[kOutputs];
  float row_max[2];  // log2; P is divided by 2^row_max
  float row_sum[2];  // of this thread's columns

  __device__ GqaM128Group(const GqaParams& params, const GqaRing<N>& from,
                          const GqaQueries<N>& of_items, int which, int warp_of_it, int lane_of_it)
      : p(params),
        ring(from),
        queries(of_items),
        group(which),
        warp(warp_of_it),
        lane(lane_of_it) {}

  __device__ int thread() const { return warp * 32 + lane; }
  __device__ void sync() const { group_sync(1 + group, 128); }
  /// Waits until the other warpgroup has passed the turn: its S is there, so that S of both is
  /// not multiplied at the same time.
  __device__ void await_turn() const {
    if constexpr (N::kGroups == 2) group_sync(3 + group, 256);
  }
  __device__ void pass_turn() const {
    if constexpr (N::kGroups == 2) group_arrive(4 - group, 256);
  }
  /// Index of the M row in the M block.
  __device__ int m_row(int i) const { return group * 64 + warp * 16 + lane / 4 + 8 * i; }
  /// Waits for the queries.
  __device__ void begin() {
    LATHE_UNROLL
    for (int i = 0; i < kOutputs; ++i) acc[i] = 0;
    row_max[0] = row_max[1] = kNoKey;
    row_sum[0] = row_sum[1] = 0;
    barrier_wait(queries.full_at(group), parity);
    parity ^= 1;
  }
  /// Releases the queries, whose last scores are there.
  __device__ void release_queries() const {
    sync_warp();
    if (lane == 0) barrier_arrive(queries.empty_at(group));
  }

  /// Issues S of a stage's keys.
  __device__ void score(float (&d)[kScores], int of_stage) const {
    const std::uint64_t a = descriptor_here(tile_descriptor(queries.of_group(group), 1024));
    const std::uint64_t b = descriptor_here(tile_descriptor(ring.keys(of_stage), 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (int i = 0; i < N::kKeySteps; ++i) {
      const int t = i / 4, k = i % 4;
      mma_m64_bf16(d, descriptor_at(a, static_cast<std::uint32_t>(t * (64 * 128) + k * 32)),
                   descriptor_at(b, static_cast<std::uint32_t>(t * N::kDimTileBytes + k * 32)),
                   i > 0);
    }
    wgmma_commit();
  }
  /// Issues O += P V.
  __device__ void add(const std::uint32_t (&w)[kOperands][4], int of_stage) {
    const std::uint64_t b =
        descriptor_here(tile_descriptor(ring.values(of_stage), 1024, N::kDimTileBytes));
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < kOperands; ++k) {
      const std::uint64_t values = descriptor_at(b, static_cast<std::uint32_t>(k * 2048));
      if constexpr (N::kValueDims == 1) {
        mma_m64n64_bf16_rows(acc, w[k], values, true);
      } else if constexpr (N::kValueDims == 2) {
        mma_m64n128_bf16_rows(acc, w[k], values, true);
      } else {
        mma_m64n256_bf16_rows(acc, w[k], values, true);
      }
    }
    wgmma_commit();
  }
  /// Zeros the values of missing keys: P = 0 times NaN is NaN. Both warpgroups do it, because
  /// neither waits for the other. Where values are in keys, the other one may still read the keys,
  /// but masks the scores of these.
  __device__ void zero_missing(const GqaStage<N>& of) const {
    bool zeroed = false;
    LATHE_UNROLL
    for (int word = 0; word < N::kTile / 64; ++word) {
      const std::uint64_t seen = load_shared_u64(ring.mask_at(of, word));
      if (!seldom(seen != ~std::uint64_t{0})) continue;
      zeroed = true;
      const int key = thread() / 2;
      if (seen >> key & 1) continue;
      for (int t = 0; t < N::kValueDims; ++t) {
        for (int c = thread() % 2 * 4; c < thread() % 2 * 4 + 4; ++c) {
          store_shared(
              swizzled(ring.values(of.index) + static_cast<std::uint32_t>(t * N::kDimTileBytes),
                       word * 64 + key, c),
              0, 0, 0, 0);
        }
      }
    }
    if (!zeroed) return;
    fence_async_proxy();
    sync();
  }

  /// Whether keys of the current stage are missing.
  __device__ bool misses() const {
    bool any = false;
    LATHE_UNROLL
    for (int word = 0; word < N::kTile / 64; ++word) {
      any |= load_shared_u64(ring.mask_at(stage, word)) != ~std::uint64_t{0};
    }
    return any;
  }
  /// Whether some row does not see some key of the current stage. limit: GqaBlock's, counted from
  /// the tile's first key.
  __device__ bool is_edge(const GqaBlock& b, int limit) const {
    return GqaEdge(p, b, limit).template any<N::kTile>();
  }
  /// Masks S of the current stage. Returns misses(), which in edge tiles includes wild keys.
  __device__ __forceinline__ bool apply_mask(float (&d)[kScores], const GqaBlock& b,
                                             int limit) const {
    const int column = 2 * (lane & 3);
    const GqaEdge edge(p, b, limit);
    const bool is_edge = edge.template any<N::kTile>();
    bool missing = false;
    if (is_edge) barrier_wait(ring.checked_at(stage.index), stage.parity);
    LATHE_UNROLL
    for (int word = 0; word < N::kTile / 64; ++word) {
      const std::uint64_t seen = load_shared_u64(ring.mask_at(stage, word));
      if (!seldom(seen != ~std::uint64_t{0})) continue;
      missing = true;
      LATHE_UNROLL
      for (int j = 0; j < 8; ++j) {
        const auto two = static_cast<std::uint32_t>(seen >> (8 * j + column));
        const int at = 32 * word + 4 * j;
        if (!(two & 1)) d[at] = d[at + 2] = kNoKey;
        if (!(two & 2)) d[at + 1] = d[at + 3] = kNoKey;
      }
    }
    if (!is_edge) return missing;
    poison(d);
    // Of this thread's keys 8 j + i.
    const int end[2] = {limit + gqa_row_of(p, b, m_row(0)) - column,
                        limit + gqa_row_of(p, b, m_row(1)) - column};
    const auto mask = [&](auto is_unseen) {
      LATHE_UNROLL
      for (int j = 0; j < N::kTile / 8; ++j) {
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (is_unseen(8 * j + i % 2, end[i / 2])) d[4 * j + i] = kNoKey;
        }
      }
    };
    mask([](int key, int end_of_row) { return key >= end_of_row; });
    if (seldom(edge.begin > 0)) {
      mask([&](int key, int end_of_row) { return key < end_of_row - p.window; });
    }
    return missing;
  }
  /// Makes scores of keys NaN that are not finite and that some row does not see.
  __device__ __forceinline__ void poison(float (&d)[kScores]) const {
    LATHE_UNROLL
    for (int word = 0; word < N::kTile / 64; ++word) {
      const std::uint64_t wild = load_shared_u64(ring.wild_at(stage, word));
      if (!seldom(wild != 0)) continue;
      const auto bits = wild >> 2 * (lane & 3);
      LATHE_UNROLL
      for (int j = 0; j < 8; ++j) {
        const auto two = static_cast<std::uint32_t>(bits >> 8 * j);
        const int at = 32 * word + 4 * j;
        if (two & 1) d[at] = d[at + 2] = not_a_number();
        if (two & 2) d[at + 1] = d[at + 3] = not_a_number();
      }
    }
  }

  /// Raises row maxes to those of scores d. factor: what O must be multiplied by.
  __device__ void raise(const float (&d)[kScores], float (&factor)[2]) {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float m = d[2 * i];
      LATHE_UNROLL
      for (int j = 0; j < N::kTile / 8; ++j) {
        m = fmaxf(m, fmaxf(d[4 * j + 2 * i], d[4 * j + 2 * i + 1]));
      }
      m = fmaxf(m, shuffle_xor(m, 1));
      m = fmaxf(m, shuffle_xor(m, 2)) * p.scale;
      factor[i] = 1;
      if (!(m > row_max[i])) continue;
      // From -inf there is nothing to scale: O is 0.
      factor[i] = exp2_fast(row_max[i] - m);
      row_max[i] = m;
      row_sum[i] *= factor[i];
    }
  }
  /// Turns S into P in place. sum: of this thread's columns.
  __device__ void exponentials(float (&d)[kScores], float (&sum)[2]) const {
    const float z0 = row_max[0] == kNoKey ? 0.f : row_max[0];
    const float z1 = row_max[1] == kNoKey ? 0.f : row_max[1];
    sum[0] = sum[1] = 0;
    LATHE_UNROLL
    for (int j = 0; j < N::kTile / 8; ++j) {
      float* e = d + 4 * j;
      e[0] = exp2_fast(fmaf(e[0], p.scale, -z0));
      e[1] = exp2_fast(fmaf(e[1], p.scale, -z0));
      e[2] = exp2_fast(fmaf(e[2], p.scale, -z1));
      e[3] = exp2_fast(fmaf(e[3], p.scale, -z1));
      sum[0] += e[0] + e[1];
      sum[1] += e[2] + e[3];
    }
  }
  /// Whether scores exceed a row max by far, or a row has none yet, in any warp: all of them take
  /// part in a product. sum: of exponentials(). A row with NaN stays NaN by any row max.
  __device__ bool exceed(const float (&sum)[2]) const {
    const float most0 = row_max[0] == kNoKey ? -1.f : kMostSum;
    const float most1 = row_max[1] == kNoKey ? -1.f : kMostSum;
    return group_any(1 + group, 128, sum[0] > most0 || sum[1] > most1);
  }
  /// P as operands of 16 keys each.
  __device__ static void pack(const float (&d)[kScores], std::uint32_t (&w)[kOperands][4]) {
    LATHE_UNROLL
    for (int k = 0; k < kOperands; ++k) {
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) w[k][i] = pack_bf16(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
    }
  }
  __device__ void rescale(const float (&factor)[2]) {
    LATHE_UNROLL
    for (int i = 0; i < kOutputs; i += 4) {
      acc[i] *= factor[0];
      acc[i + 1] *= factor[0];
      acc[i + 2] *= factor[1];
      acc[i + 3] *= factor[1];
    }
  }
  /// Releases the keys of the current stage, whose scores are there.
  __device__ void release_keys() const {
    if constexpr (N::kApart) {
      sync_warp();
      if (lane == 0) barrier_arrive(ring.empty_at(stage.index));
    }
  }
  /// Releases values, and keys with values in them.
  __device__ void release(int of_stage) const {
    sync_warp();
    if (lane == 0) barrier_arrive(ring.values_empty_at(of_stage));
  }
  __device__ void wait_values(const GqaStage<N>& of) const {
    if constexpr (N::kApart) barrier_wait(ring.values_full_at(of.index), of.parity);
  }

  /// Waits for the keys of the current stage and issues S.
  __device__ void score_next(float (&d)[kScores]) const {
    barrier_wait(ring.full_at(stage.index), stage.parity);
    see_rows<N>(p);
    await_turn();
    score(d, stage.index);
  }
  /// Issues O += P V of a stage. missing: misses() of its tile.
  __device__ void add_values(const std::uint32_t (&w)[kOperands][4], const GqaStage<N>& of,
                             bool missing) {
    wait_values(of);
    if (seldom(missing)) zero_missing(of);
    add(w, of.index);
  }
  /// Issues the products of an item's tiles; there is at least one. The last one is not awaited.
  /// All tiles run through one copy of the softmax: a thread's code of an item with few tiles is
  /// not in the instruction cache.
  __device__ void attend(const GqaSegment& item) {
    int limit = item.block.limit - item.first_key<N::kTile>();
    std::uint32_t w[kOperands][4];
    float d[kScores], factor[2], sum[2];
    GqaStage<N> before = stage;
    score_next(d);
    // No product may be open where the loop begins, or ptxas waits after each one.
    wgmma_wait<0>();
    wgmma_pin(d);
    wgmma_pin(acc);
    bool missing;
    LATHE_ROLLED
    for (int t = 0;; ++t) {
      missing = misses();
      const bool masked = missing || is_edge(item.block, limit);
      const bool first = t == 0, last = t + 1 == item.count;
      wgmma_wait<1>();
      wgmma_pin(d);
      pass_turn();
      bool raises = first;
      LATHE_ROLLED
      for (;;) {
        if (seldom(masked)) missing = apply_mask(d, item.block, limit);
        if (seldom(raises)) raise(d, factor);  // factor unused where first: O is 0
        exponentials(d, sum);
        if (seldom(raises) || !seldom(exceed(sum))) break;
        raises = true;
        score(d, stage.index);
        wgmma_wait<0>();
        wgmma_pin(d);
      }
      row_sum[0] += sum[0];
      row_sum[1] += sum[1];
      release_keys();
      if (last) release_queries();
      wgmma_wait<0>();
      wgmma_pin(acc);
      if (!first) release(before.index);
      if (seldom(raises && !first)) rescale(factor);
      pack(d, w);
      if (last) break;
      before = stage;
      stage.advance();
      limit -= N::kTile;
      score_next(d);
      add_values(w, before, missing);
    }
    add_values(w, stage, missing);
  }
  /// Awaits the last product.
  __device__ void end() {
    wgmma_wait<0>();
    wgmma_pin(acc);
    release(stage.index);
    stage.advance();
  }

  /// Makes factor what O must be multiplied by, and stores the LSE.
  __device__ void sum_up(const GqaSegment& item, float (&factor)[2]) {
    // Keeps these addresses from being computed before the tiles and spilled.
    asm volatile("" : "+r"(lane));
    const bool split = item.partial >= 0;
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float sum = row_sum[i] + shuffle_xor(row_sum[i], 1);
      sum += shuffle_xor(sum, 2);
      const float lse2 = sum == 0 ? kNoKey : row_max[i] + log2_fast(sum);
      factor[i] = sum == 0 ? 0.f : p.value_scale / sum;
      const int m = m_row(i);
      if (m >= item.block.m_rows) continue;
      if (split) {
        if ((lane & 3) == 0) p.partial_lse[std::int64_t{item.partial} * N::kMRows + m] = lse2;
        continue;
      }
      const std::int32_t row = gqa_row_of(p, item.block, m), head = gqa_head_of(p, item, m, row);
      if (p.sink != nullptr) factor[i] *= sink_factor(p.sink[head], lse2);
      if ((lane & 3) == 0 && p.lse != nullptr) {
        p.lse[(item.block.row + row) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
      }
    }
  }

  __device__ void run(std::int32_t worker) {
    GqaSegments segments(p, worker);
    GqaSegment item;
    if (group == 1) pass_turn();  // group 0 has the first one
    bool more = segments.next(item);
    while (more) {
      begin();
      attend(item);
      // While the last product is computed.
      float factor[2];
      sum_up(item, factor);
      GqaSegment next;
      more = segments.next(next);
      end();
      GqaM128Outputs<N>{p, item, acc, factor, m_row(0), lane}.store();
      item = next;
    }
  }
};

template <int kHeadDim, int kValueDim = kHeadDim, bool kOneRow = false, int kBlockM = 128>
static __global__ void __launch_bounds__(
    GqaM128<kHeadDim, kValueDim, kOneRow, kBlockM>::kThreads,
    GqaM128<kHeadDim, kValueDim, kOneRow, kBlockM>::kBlocksPerSm)
    gqa_m128_kernel(const __grid_constant__ GqaParams p, const __grid_constant__ CUtensorMap keys,
                    const __grid_constant__ CUtensorMap values) {
  using N = GqaM128<kHeadDim, kValueDim, kOneRow, kBlockM>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const std::uint32_t base = shared_address(shared_bytes);
  const GqaRing<N> ring(base + N::kRingAt, base + N::kSmallAt);
  const GqaQueries<N> queries(base, base + N::kQueryBarriersAt);
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = warp_value(thread / 32);
  if (thread == 0) {
    queries.init();
    ring.init(lists_rows<N>(p));
  }
  sync_block();
  wait_for_previous();
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (warp >= 4 * N::kGroups) {
    if constexpr (N::kMovesRegisters) lower_registers<N::kProducerRegisters>();
    const int role = warp - 4 * N::kGroups;
    if (role == 0) {
      produce_tiles<N>(p, ring, &keys, &values, worker);
    } else if (role <= N::kCheckWarps) {
      GqaChecker<N>{p, ring, role - 1, thread % 32}.run(worker);
    } else {
      GqaQueryProducer<N>{p, queries, thread % 32}.run(worker);
    }
  } else {
    if constexpr (N::kMovesRegisters) raise_registers<N::kConsumerRegisters>();
    const int group = N::kGroups == 1 ? 0 : warp / 4;
    GqaM128Group<N>(p, ring, queries, group, warp % 4, thread % 32).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
