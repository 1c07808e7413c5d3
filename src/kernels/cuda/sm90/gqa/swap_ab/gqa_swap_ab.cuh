// Grouped-query attention with A and B swapped: keys on M, up to 64 M rows (query row x head of a
// group, gqa_params.h) on N.
//
//   S^T [64 keys, M rows]      = K Q^T      K as cached (K-major), Q [M rows, dims] K-major
//   O^T [head dim, M rows]    += V^T P^T    V as cached (MN-major), P [M rows, 64 keys] K-major
//
// One consumer warpgroup computes the tiles that a producer warp (gqa_load_pages.cuh) copies to a
// ring of stages. Two blocks are resident on an SM, so matrix products of one overlap the softmax
// of the other. A row's scores are spread over all four warps. A barrier with a vote tells whether
// a row max must rise (row_max.cuh); only then do the warps exchange maxima.
//
// e4m3 tiles are widened to bf16 before a matrix product, in one buffer: first the keys, then, once
// the scores are done, the values. Their scales are applied to scores and outputs.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/attention/mask.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/attention/swizzle.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_edge.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_load_rows.cuh"
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_swap_ab_config.cuh"
#include "kernels/cuda/sm90/gqa/swap_ab/gqa_widen.cuh"

namespace lathe::cuda {

/// The consumer warpgroup. A thread holds S of keys `key` and `key` + 8 of the tile, and O of those
/// two dimensions in each 64. In both it holds M rows 8 j + 2 (lane % 4) + i, which are `m_row(j,
/// i)`.
template <class N>
struct GqaSwapAbGroup {
  static constexpr int kMRows = N::kMRows;
  static constexpr int kEights = kMRows / 8;
  static constexpr int kGroupBarrier = 1, kGroupThreads = 128;

  const GqaParams& p;
  const GqaSwapAbShared<N>& s;
  int warp, lane, key;
  GqaStage<N> stage;
  float acc[N::kValueDims][kMRows / 2];  // of 64 dimensions each
  float row_sum[kEights][2];             // of this thread's keys

  __device__ GqaSwapAbGroup(const GqaParams& params, const GqaSwapAbShared<N>& shared, int thread)
      : p(params), s(shared), warp(thread / 32), lane(thread % 32) {
    key = warp * 16 + lane / 4;
  }
  __device__ int m_row(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(kGroupBarrier, kGroupThreads); }
  __device__ static std::uint32_t of_row(std::uint32_t array, int m_row) {
    return array + static_cast<std::uint32_t>(4 * m_row);
  }
  /// Address of an M row's row max in log2. In shared memory because registers are scarce.
  __device__ std::uint32_t row_max(int m_row) const { return of_row(s.row_maxes, m_row); }
  __device__ std::uint32_t column(int w, int m_row) const {
    return of_row(s.columns, w * kMRows + m_row);
  }

  __device__ void load_queries(const GqaSegment& item) const {
    constexpr int kChunks = N::kDims * 8;  // of 8 elements in an M row
    LATHE_UNROLL
    for (int i = 0; i < kMRows * kChunks; i += kGroupThreads) {
      const int at = i + warp * 32 + lane, m = at / kChunks, chunk = at % kChunks;
      if (kMRows * kChunks % kGroupThreads != 0 && m >= kMRows) break;
      // Past the M rows: zeros. Their addresses need only be valid.
      const bool some = m < item.block.m_rows && in_head<N>(p, chunk);
      const std::int32_t row = some ? gqa_row_of(p, item.block, m) : 0;
      const std::int32_t head = some ? gqa_head_of(p, item, m, row) : 0;
      copy_async(
          swizzled(s.q + static_cast<std::uint32_t>(chunk / 8 * (kMRows * 128)), m, chunk % 8),
          p.q + gqa_q_row(p, item.block.row + row) * p.q_stride +
              std::int64_t{head} * q_head<N>(p) + (some ? chunk * 8 : 0),
          some);
    }
    end_copy_group();
  }
  __device__ void begin(const GqaSegment& item) {
    load_queries(item);
    LATHE_UNROLL
    for (int t = 0; t < N::kValueDims; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kMRows / 2; ++i) acc[t][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) row_sum[j][0] = row_sum[j][1] = 0;
    if (warp * 32 + lane < kMRows) store_float(row_max(warp * 32 + lane), kNoKey);
    wait_copy_groups<0>();
    fence_async_proxy();
    sync();
  }

  __device__ void score(float (&d)[kMRows / 2], std::uint32_t keys) const {
    wgmma_fence();
    LATHE_UNROLL
    for (int i = 0; i < N::kKeySteps; ++i) {
      const int t = i / 4, k = i % 4;
      const std::uint64_t a =
          tile_descriptor(keys + static_cast<std::uint32_t>(t * N::kDimTileBytes + k * 32), 1024);
      const std::uint64_t b =
          tile_descriptor(s.q + static_cast<std::uint32_t>(t * (kMRows * 128) + k * 32), 1024);
      mma_m64_bf16(d, a, b, i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);
  }
  __device__ void add(std::uint32_t values) {
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const std::uint64_t b = tile_descriptor(s.p + static_cast<std::uint32_t>(k * 32), 1024);
      LATHE_UNROLL
      for (int t = 0; t < N::kValueDims; ++t) {
        mma_m64_bf16_trans_a(
            acc[t],
            tile_descriptor(values + static_cast<std::uint32_t>(t * N::kDimTileBytes + k * 2048),
                            1024),
            b, true);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int t = 0; t < N::kValueDims; ++t) wgmma_pin(acc[t]);
  }

  /// Masks S of the current stage. limit: GqaBlock's, counted from the tile's first key. Returns
  /// whether this thread has found values that are not finite of a key that some row does not see.
  __device__ bool apply_mask(float (&d)[kMRows / 2], const GqaBlock& b, std::uint64_t seen,
                             int limit) const {
    mask_keys_swapped(d, seen, key);
    const GqaEdge edge(p, b, limit);
    if (!seldom(edge.template any<N::kTile>())) return false;
    mask_unseen(d, b, limit);
    return finds_wild(edge.first_keys() & seen);
  }
  __device__ __forceinline__ void mask_unseen(float (&d)[kMRows / 2], const GqaBlock& b,
                                              int limit) const {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int end = limit + gqa_row_of(p, b, m_row(j, i)), begin = end - p.window;
        if (key >= end || key < begin) d[4 * j + i] = kNoKey;
        if (key + 8 >= end || key + 8 < begin) d[4 * j + 2 + i] = kNoKey;
      }
    }
  }
  /// Whether this thread's share of the values of these keys has one that is not finite.
  __device__ __forceinline__ bool finds_wild(std::uint64_t keys) const {
    using Rows = GqaValueRows<N>;
    constexpr int kChunks = Rows::kChunks * N::kValueBoxes, kKeys = kGroupThreads / kChunks;
    const Rows rows{s.ring.values(stage.index)};
    const int thread = opaque(warp * 32 + lane);
    keys >>= thread / kChunks;
    bool wild = false;
    LATHE_ROLLED
    for (int i = 0; i < N::kTile; i += kKeys) {
      if (keys >> i & 1) wild |= rows.wild_chunk(i + thread / kChunks, thread % kChunks);
    }
    return wild;
  }
  /// Keeps values that are not finite from rows that do not see them (nonfinite.cuh): clears their
  /// bits in the stage's mask.
  __device__ __forceinline__ void drop_wild(float (&d)[kMRows / 2], const GqaBlock& b, int limit) {
    const int own_warp = opaque(warp), own_lane = opaque(lane);
    const std::uint32_t at = s.ring.mask_at(stage) + static_cast<std::uint32_t>(2 * own_warp);
    const std::uint32_t seen = load_shared_u16(at);
    const auto keys =
        static_cast<std::uint32_t>(GqaEdge(p, b, limit).first_keys() >> 16 * own_warp);
    const std::uint32_t wild =
        wild_of(GqaValueRows<N>{s.ring.values(stage.index)}, keys & seen, own_warp, own_lane);
    if (own_lane == 0) store_shared_u16(at, seen & ~wild);
    poison_keys_swapped(d, wild, own_lane);
    mask_unseen(d, b, limit);
    sync();
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
  /// The M row's new row max after the tile; `was`: before it.
  __device__ float raised(int m_row, float was) const {
    float m = load_float(column(0, m_row));
    LATHE_UNROLL
    for (int w = 1; w < 4; ++w) m = fmaxf(m, load_float(column(w, m_row)));
    return m > was + kRowMaxSlack ? m : was;
  }

  /// Turns S into P in shared memory.
  __device__ void softmax(const float (&d)[kMRows / 2]) {
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
        store_matrices_trans(swizzled(s.p, row, chunk), packed[0], packed[1]);
      } else if (j & 1) {
        store_matrices_trans(swizzled(s.p, 8 * (j - 1 + lane / 16) + row, chunk), packed[0],
                             packed[1], packed[2], packed[3]);
      }
    }
  }
  /// Zeros the values of missing keys: P = 0 times NaN is NaN.
  __device__ void zero_missing(std::uint32_t values, std::uint64_t seen) const {
    if (!seldom(seen != ~std::uint64_t{0})) return;
    const int row = 32 * (warp & 1) + lane;
    if (seen >> row & 1) return;
    for (int t = warp / 2; t < N::kValueDims; t += 2) {
      for (int c = 0; c < 8; ++c) {
        store_shared(swizzled(values + static_cast<std::uint32_t>(t * N::kDimTileBytes), row, c), 0,
                     0, 0, 0);
      }
    }
  }
  __device__ void release() const {
    sync_warp();
    if (lane == 0) barrier_arrive(s.ring.empty_at(stage.index));
  }

  __device__ void tile(const GqaBlock& b, int limit) {
    barrier_wait(s.ring.full_at(stage.index), stage.parity);
    see_rows<N>(p);
    std::uint64_t seen = load_shared_u64(s.ring.mask_at(stage));
    std::uint32_t keys = s.ring.keys(stage.index), values = s.ring.values(stage.index);
    if constexpr (N::kWidens) {
      sync();  // all products with the previous values are done
      widen_tile<N, N::kBoxes>(keys, ~std::uint64_t{0}, s.wide, warp * 32 + lane);
      fence_async_proxy();
      sync();
      keys = s.wide;
    }
    float d[kMRows / 2];
    score(d, keys);
    const bool wild = apply_mask(d, b, seen, limit);
    // From here on no matrix product of the warpgroup reads the keys and the previous P.
    if (seldom(group_any(kGroupBarrier, kGroupThreads, outgrows(d) || wild))) {
      if (GqaEdge(p, b, limit).template any<N::kTile>() &&
          group_any(kGroupBarrier, kGroupThreads, wild)) {
        drop_wild(d, b, limit);
        seen = load_shared_u64(s.ring.mask_at(stage));
      }
      raise_row_max(*this, d);
    }
    if constexpr (N::kWidens) {
      // Reload mask and addresses here rather than keep them over the scores: registers are scarce.
      asm volatile("" : "+r"(lane), "+r"(warp));
      widen_tile<N, N::kValueBoxes>(values, load_shared_u64(s.ring.mask_at(stage)), s.wide,
                                    warp * 32 + lane);
      values = s.wide;
    } else {
      zero_missing(values, seen);
    }
    softmax(d);
    fence_async_proxy();
    sync();
    if constexpr (N::kWidens) release();
    add(values);
    if constexpr (!N::kWidens) release();
    stage.advance();
  }

  /// Writes an M row's LSE, and the factor of its outputs to shared memory.
  __device__ void settle(const GqaSegment& item, int m_row) const {
    float sum = 0;
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) sum += load_float(column(w, m_row));
    const float lse2 = sum == 0 ? kNoKey : load_float(row_max(m_row)) + log2_fast(sum);
    float factor = sum == 0 ? 0.f : p.value_scale / sum;
    if (m_row < item.block.m_rows) {
      const std::int32_t row = gqa_row_of(p, item.block, m_row),
                         head = gqa_head_of(p, item, m_row, row);
      if (item.partial >= 0) {
        p.partial_lse[std::int64_t{item.partial} * kMRows + m_row] = lse2;
      } else {
        if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
        if (p.lse != nullptr) {
          p.lse[(item.block.row + row) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
        }
      }
    }
    store_float(of_row(s.factors, m_row), factor);
  }
  __device__ void finish(const GqaSegment& item) {
    constexpr int kHeadDim = N::kValueDims * 64;
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
    sync();
    if (warp * 32 + lane < kMRows) settle(item, warp * 32 + lane);
    sync();
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int m = m_row(j, i);
        if (m >= item.block.m_rows) continue;
        const float factor = load_float(of_row(s.factors, m));
        const std::int32_t row = gqa_row_of(p, item.block, m);
        const std::int64_t at = (item.block.row + row) * p.out_stride +
                                std::int64_t{gqa_head_of(p, item, m, row)} * kHeadDim + key;
        const bool split = item.partial >= 0;
        float* wide =
            split ? p.partial_out + (std::int64_t{item.partial} * kMRows + m) * kHeadDim + key
                  : static_cast<float*>(p.out) + at;
        std::uint16_t* narrow = static_cast<std::uint16_t*>(p.out) + at;
        LATHE_UNROLL
        for (int t = 0; t < N::kValueDims; ++t) {
          LATHE_UNROLL
          for (int h = 0; h < 2; ++h) {
            const float v = acc[t][4 * j + 2 * h + i] * factor;
            const int dim = 64 * t + 8 * h;
            if (split || p.out_f32) {
              wide[dim] = v;
            } else {
              narrow[dim] = static_cast<std::uint16_t>(pack_bf16(v, 0));
            }
          }
        }
      }
    }
  }

  __device__ void run(std::int32_t worker) {
    GqaSegments segments(p, worker);
    GqaSegment item;
    while (segments.next(item)) {
      begin(item);
      int limit = item.block.limit - item.first_key<N::kTile>();
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t, limit -= N::kTile) tile(item.block, limit);
      finish(item);
    }
  }
};

template <int kHeadDim, int kBlockM, bool kFp8, int kValueDim = kHeadDim, bool kOneRow = false>
static __global__ void __launch_bounds__(
    GqaSwapAb<kHeadDim, kBlockM, kFp8, kValueDim, kOneRow>::kThreads,
    GqaSwapAb<kHeadDim, kBlockM, kFp8, kValueDim, kOneRow>::kBlocksPerSm)
    gqa_swap_ab_kernel(const __grid_constant__ GqaParams p,
                       const __grid_constant__ CUtensorMap keys,
                       const __grid_constant__ CUtensorMap values) {
  using N = GqaSwapAb<kHeadDim, kBlockM, kFp8, kValueDim, kOneRow>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const GqaSwapAbShared<N> s(shared_address(shared_bytes));
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.ring.init(lists_rows<N>(p));
  sync_block();
  wait_for_previous();
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (thread >= GqaSwapAbGroup<N>::kGroupThreads) {
    produce_tiles<N>(p, s.ring, &keys, &values, worker);
  } else {
    GqaSwapAbGroup<N>(p, s, thread).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
