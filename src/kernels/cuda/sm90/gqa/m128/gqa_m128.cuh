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
//   S1 = Q K1^T   O += P0 V0   softmax 1        S2 = Q K2^T   O += P1 V1   softmax 2 ...
//   |----- issued together ----|---- with PV ---|
//
// Q and K are K-major in shared memory, V is MN-major; P stays in registers. A row max rises only
// where a score exceeds it by kRowMaxSlack (row_max.cuh), so O is rarely rescaled.
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

namespace lathe::cuda {

/// A consumer warpgroup: a thread has M rows `row` and `row` + 8 of its 64.
template <class N>
struct GqaM128Group {
  static constexpr int kScores = N::kTile / 2;     // of a thread
  static constexpr int kOperands = N::kTile / 16;  // of P, 16 keys each
  static constexpr int kValueDim = N::kValueDims * 64;
  static constexpr int kOutputs = kValueDim / 2;  // of a thread

  const GqaParams& p;
  const GqaRing<N>& ring;
  const GqaQueries<N>& queries;
  int group, warp, lane;
  GqaStage<N> stage;
  std::uint32_t parity = 0;  // of queries.full
  float acc[kOutputs];
  float row_max[2];  // log2; P is divided by 2^row_max
  float row_sum[2];  // of this thread's columns

  __device__ GqaM128Group(const GqaParams& params, const GqaRing<N>& from,
                          const GqaQueries<N>& of_items, int which, int thread)
      : p(params),
        ring(from),
        queries(of_items),
        group(which),
        warp(thread / 32),
        lane(thread % 32) {}

  __device__ int thread() const { return warp * 32 + lane; }
  __device__ void sync() const { group_sync(1 + group, 128); }
  /// Index of the M row in the M block.
  __device__ int m_row(int i) const { return group * 64 + warp * 16 + lane / 4 + 8 * i; }
  /// Waits for the queries.
  __device__ void begin() {
    LATHE_UNROLL
    for (int i = 0; i < kOutputs; ++i) acc[i] = 0;
    row_max[0] = row_max[1] = kNoKey;
    row_sum[0] = row_sum[1] = 0;
    barrier_wait(queries.full, parity);
    parity ^= 1;
    fence_async_proxy();  // they were copied by ordinary stores
  }
  /// Releases the queries, whose last scores are there.
  __device__ void release_queries() const {
    sync_warp();
    if (lane == 0) barrier_arrive(queries.empty);
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

  /// Masks S of the current stage. limit: GqaBlock's, counted from the tile's first key.
  __device__ void apply_mask(float (&d)[kScores], const GqaBlock& b, int limit) const {
    const int column = 2 * (lane & 3);
    const bool edge = GqaEdge(p, b, limit).template any<N::kTile>();
    if (seldom(edge)) barrier_wait(ring.checked_at(stage.index), stage.parity);
    LATHE_UNROLL
    for (int word = 0; word < N::kTile / 64; ++word) {
      const std::uint64_t seen = load_shared_u64(ring.mask_at(stage, word));
      if (!seldom(seen != ~std::uint64_t{0})) continue;
      LATHE_UNROLL
      for (int j = 0; j < 8; ++j) {
        const auto two = static_cast<std::uint32_t>(seen >> (8 * j + column));
        const int at = 32 * word + 4 * j;
        if (!(two & 1)) d[at] = d[at + 2] = kNoKey;
        if (!(two & 2)) d[at + 1] = d[at + 3] = kNoKey;
      }
    }
    if (!seldom(edge)) return;
    poison(d);
    const int end0 = limit + gqa_row_of(p, b, m_row(0)), end1 = limit + gqa_row_of(p, b, m_row(1));
    LATHE_UNROLL
    for (int j = 0; j < N::kTile / 8; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int key = 8 * j + column + i;
        if (key >= end0 || key < end0 - p.window) d[4 * j + i] = kNoKey;
        if (key >= end1 || key < end1 - p.window) d[4 * j + 2 + i] = kNoKey;
      }
    }
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

  /// Raises row maxes for scores d. factor: what O and the row sums must be multiplied by. False:
  /// no row max rose.
  __device__ bool raise(const float (&d)[kScores], float (&factor)[2]) {
    float m[2] = {d[0], d[2]};
    LATHE_UNROLL
    for (int j = 0; j < N::kTile / 8; ++j) {
      m[0] = fmaxf(m[0], fmaxf(d[4 * j], d[4 * j + 1]));
      m[1] = fmaxf(m[1], fmaxf(d[4 * j + 2], d[4 * j + 3]));
    }
    const bool grows =
        m[0] * p.scale > row_max[0] + kRowMaxSlack || m[1] * p.scale > row_max[1] + kRowMaxSlack;
    if (!seldom(warp_any(grows))) return false;
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      m[i] = fmaxf(m[i], shuffle_xor(m[i], 1));
      m[i] = fmaxf(m[i], shuffle_xor(m[i], 2)) * p.scale;
      factor[i] = 1;
      if (!(m[i] > row_max[i] + kRowMaxSlack)) continue;
      // From -inf there is nothing to scale: the accumulator is 0.
      factor[i] = exp2_fast(row_max[i] - m[i]);
      row_max[i] = m[i];
    }
    return true;
  }
  /// Turns S into P in place.
  __device__ void exponentials(float (&d)[kScores]) {
    const float z0 = row_max[0] == kNoKey ? 0.f : row_max[0];
    const float z1 = row_max[1] == kNoKey ? 0.f : row_max[1];
    LATHE_UNROLL
    for (int j = 0; j < N::kTile / 8; ++j) {
      float* e = d + 4 * j;
      e[0] = exp2_fast(fmaf(e[0], p.scale, -z0));
      e[1] = exp2_fast(fmaf(e[1], p.scale, -z0));
      e[2] = exp2_fast(fmaf(e[2], p.scale, -z1));
      e[3] = exp2_fast(fmaf(e[3], p.scale, -z1));
      row_sum[0] += e[0] + e[1];
      row_sum[1] += e[2] + e[3];
    }
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

  /// Computes an item's tiles; there is at least one.
  __device__ void attend(const GqaSegment& item) {
    int limit = item.block.limit - item.first_key<N::kTile>();
    std::uint32_t w[kOperands][4];
    float d[kScores], factor[2];
    barrier_wait(ring.full_at(stage.index), stage.parity);
    see_rows<N>(p);
    score(d, stage.index);
    wgmma_wait<0>();
    wgmma_pin(d);
    release_keys();
    if (item.count == 1) release_queries();
    apply_mask(d, item.block, limit);
    raise(d, factor);  // factor unused: O is 0
    exponentials(d);
    pack(d, w);
    LATHE_ROLLED
    for (int t = 1; t < item.count; ++t) {
      const GqaStage<N> before = stage;
      stage.advance();
      limit -= N::kTile;
      barrier_wait(ring.full_at(stage.index), stage.parity);
      see_rows<N>(p);
      score(d, stage.index);
      wait_values(before);
      zero_missing(before);
      add(w, before.index);
      wgmma_wait<1>();
      wgmma_pin(d);
      release_keys();
      if (t + 1 == item.count) release_queries();
      apply_mask(d, item.block, limit);
      const bool raised = raise(d, factor);
      if (seldom(raised)) {
        row_sum[0] *= factor[0];
        row_sum[1] *= factor[1];
      }
      exponentials(d);
      wgmma_wait<0>();
      wgmma_pin(acc);
      release(before.index);
      if (seldom(raised)) rescale(factor);
      pack(d, w);
    }
    wait_values(stage);
    zero_missing(stage);
    add(w, stage.index);
    wgmma_wait<0>();
    wgmma_pin(acc);
    release(stage.index);
    stage.advance();
  }

  __device__ void finish(const GqaSegment& item) {
    // Keeps these addresses from being computed before the tiles and spilled.
    asm volatile("" : "+r"(lane), "+r"(warp));
    const bool split = item.partial >= 0;
    float factor[2];
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
    if (split) {
      float* const to = p.partial_out + std::int64_t{item.partial} * N::kMRows * kValueDim;
      store_pairs(item, factor, [&](int m) { return to + m * kValueDim; });
    } else if (p.out_f32) {
      store<float, 8>(item, factor);
    } else if (rows_begin_at<16>(2)) {
      store_words(item, factor);
    } else {
      store<std::uint16_t, 4>(item, factor);
    }
  }
  /// Whether rows of out, of elements of `bytes` bytes, begin at multiples of kBytes.
  template <int kBytes>
  __device__ bool rows_begin_at(int bytes) const {
    return reinterpret_cast<std::uintptr_t>(p.out) % kBytes == 0 &&
           p.out_stride * bytes % kBytes == 0;
  }
  /// kPairBytes: of two elements.
  template <class T, int kPairBytes>
  __device__ void store(const GqaSegment& item, const float (&factor)[2]) const {
    if (rows_begin_at<kPairBytes>(kPairBytes / 2)) {
      store_pairs(item, factor, [&](int m) { return out_at<T>(item, m); });
    } else {
      store_pairs<false>(item, factor, [&](int m) { return out_at<T>(item, m); });
    }
  }
  /// An M row's out.
  template <class T>
  __device__ T* out_at(const GqaSegment& item, int m) const {
    const std::int32_t row = gqa_row_of(p, item.block, m);
    return static_cast<T*>(p.out) + (item.block.row + row) * p.out_stride +
           std::int64_t{gqa_head_of(p, item, m, row)} * kValueDim;
  }
  /// at(m): where M row m goes. kWhole: pairs of elements are stored as words.
  template <bool kWhole = true, class At>
  __device__ void store_pairs(const GqaSegment& item, const float (&factor)[2],
                              const At& at) const {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int m = m_row(i);
      if (m >= item.block.m_rows) continue;
      auto* const to = at(m) + 2 * (lane & 3);
      LATHE_UNROLL
      for (int j = 0; j < kValueDim / 8; ++j) {
        const float a = acc[4 * j + 2 * i] * factor[i], b = acc[4 * j + 2 * i + 1] * factor[i];
        store_pair<kWhole>(to + 8 * j, a, b);
      }
    }
  }
  template <bool kWhole>
  __device__ static void store_pair(float* to, float a, float b) {
    if constexpr (kWhole) {
      *reinterpret_cast<float2*>(to) = make_float2(a, b);
    } else {
      to[0] = a, to[1] = b;
    }
  }
  template <bool kWhole>
  __device__ static void store_pair(std::uint16_t* to, float a, float b) {
    const std::uint32_t pair = pack_bf16(a, b);
    if constexpr (kWhole) {
      *reinterpret_cast<std::uint32_t*>(to) = pair;
    } else {
      to[0] = static_cast<std::uint16_t>(pair), to[1] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
  /// Transposes 4 x 4 words over four neighbouring lanes: lane l gets their words l.
  __device__ uint4 transpose_words(const std::uint32_t (&v)[4]) const {
    const bool odd = (lane & 1) != 0, high = (lane & 2) != 0;
    const std::uint32_t a = shuffle_xor(odd ? v[0] : v[1], 1);
    const std::uint32_t b = shuffle_xor(odd ? v[2] : v[3], 1);
    const std::uint32_t w[4] = {odd ? a : v[0], odd ? v[1] : a, odd ? b : v[2], odd ? v[3] : b};
    const std::uint32_t c = shuffle_xor(high ? w[0] : w[2], 2);
    const std::uint32_t d = shuffle_xor(high ? w[1] : w[3], 2);
    return {high ? c : w[0], high ? d : w[1], high ? w[2] : c, high ? w[3] : d};
  }
  /// Stores bf16, four lanes 64 bytes of a row. Without the transposition they would write 16.
  __device__ void store_words(const GqaSegment& item, const float (&factor)[2]) const {
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int m = m_row(i);
      const bool stores = m < item.block.m_rows;
      std::uint16_t* const to = out_at<std::uint16_t>(item, stores ? m : 0) + (lane & 3) * 8;
      LATHE_UNROLL
      for (int j = 0; j < kValueDim / 8; j += 4) {
        std::uint32_t v[4];
        LATHE_UNROLL
        for (int k = 0; k < 4; ++k) {
          const float* const from = acc + 4 * (j + k) + 2 * i;
          v[k] = pack_bf16(from[0] * factor[i], from[1] * factor[i]);
        }
        const uint4 word = transpose_words(v);
        if (stores) *reinterpret_cast<uint4*>(to + 8 * j) = word;
      }
    }
  }

  __device__ void run(std::int32_t worker) {
    GqaSegments segments(p, worker);
    GqaSegment item;
    while (segments.next(item)) {
      begin();
      attend(item);
      finish(item);
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
  if (thread == 0) {
    queries.init();
    ring.init(lists_rows<N>(p));
  }
  sync_block();
  wait_for_previous();
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (thread >= 128 * N::kGroups) {
    if constexpr (N::kMovesRegisters) lower_registers<N::kProducerRegisters>();
    const int warp = thread / 32 - 4 * N::kGroups;
    if (warp == 0) {
      produce_tiles<N>(p, ring, &keys, &values, worker);
    } else if (warp <= N::kCheckWarps) {
      GqaChecker<N>{p, ring, warp - 1, thread % 32}.run(worker);
    } else {
      GqaQueryProducer<N>{p, queries, thread % 32}.run(worker);
    }
  } else {
    if constexpr (N::kMovesRegisters) raise_registers<N::kConsumerRegisters>();
    const int group = N::kGroups == 1 ? 0 : thread / 128;
    GqaM128Group<N>(p, ring, queries, group, thread % 128).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
