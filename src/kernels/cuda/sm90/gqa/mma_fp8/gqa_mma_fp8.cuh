// Grouped-query attention over e4m3 pages for few M rows (query row x head of a group,
// gqa_params.h).
//
// A producer warp (gqa_load_pages.cuh) copies tiles of 64 keys to a ring of stages. Each of four
// warps computes 16 keys of every tile by itself, with row maxes and outputs of its own, which are
// joined once an item is done:
//
//   S^T [16 keys, M rows]    = K Q^T
//   O^T [head dim, M rows]  += V^T P^T
//
// Keys and values are the left operands, so they are widened to bf16 in registers and never stored.
// The instructions of one warp (mma_sync.cuh) need no barrier between warps, and P stays in
// registers, too: a transposition makes a right operand of it.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/cluster_store.cuh"
#include "kernels/cuda/common/mma_sync.cuh"
#include "kernels/cuda/sm90/attention/mask.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_edge.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_load_pages.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_widen_pairs.cuh"
#include "kernels/cuda/sm90/gqa/mma_fp8/gqa_mma_fp8_config.cuh"

namespace lathe::cuda {

/// A warp. With g = lane / 4 and c = lane % 4, a lane holds S of keys g and g + 8 of
/// the warp's 16, and O of dimensions 2 g and + 1 of each 16, in both of M rows 8 j + 2 c + i,
/// which are `m_row(j, i)`.
template <class N>
struct GqaMmaFp8Warp {
  static constexpr int kMRows = N::kMRows, kDim = N::kDim;
  static constexpr int kEights = kMRows / 8;
  static constexpr int kSixteens = kDim / 16;  // of dimensions
  static constexpr int kPairs = kDim / 32;     // of sixteens, which one load of matrices gets
  // Chains of products that do not wait for one another, as far as registers allow.
  static constexpr int kChains = kMRows <= 16 ? 2 : 1;
  static constexpr int kBarrier = 1, kConsumers = 128;
  using Scores = float[kEights * 4];

  const GqaParams& p;
  const GqaMmaFp8Shared<N>& s;
  int warp, lane;
  GqaStage<N> stage;
  float acc[kSixteens][kEights * 4];
  float row_max[kEights][2];  // log2; the same in all lanes of a column
  float row_sum[kEights][2];  // of this lane's keys

  __device__ GqaMmaFp8Warp(const GqaParams& params, const GqaMmaFp8Shared<N>& shared, int thread)
      : p(params), s(shared), warp(thread / 32), lane(thread % 32) {}
  __device__ int m_row(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(kBarrier, kConsumers); }
  __device__ static std::uint32_t of_row(std::uint32_t array, int m_row) {
    return array + static_cast<std::uint32_t>(4 * m_row);
  }
  /// The query row of an M row, counted from the block's first one, and its head.
  __device__ std::int32_t row_of(const GqaBlock& b, int m_row) const {
    return static_cast<std::int32_t>(p.group(static_cast<std::uint32_t>(b.head + m_row)));
  }
  __device__ std::int32_t head_of(const GqaSegment& item, int m_row, std::int32_t row) const {
    const auto group = static_cast<std::int32_t>(p.group.divisor);
    return item.head * group + item.block.head + m_row - row * group;
  }

  __device__ void load_queries(const GqaSegment& item) const {
    constexpr int kChunks = kDim / 8;  // of 8 elements in an M row
    LATHE_UNROLL
    for (int i = 0; i < kMRows * kChunks; i += kConsumers) {
      const int at = i + warp * 32 + lane, m = at / kChunks, chunk = at % kChunks;
      if (kMRows * kChunks % kConsumers != 0 && m >= kMRows) break;
      uint4 v = {0, 0, 0, 0};
      if (m < item.block.m_rows) {
        const std::int32_t row = row_of(item.block, m);
        v = load_global<uint4>(reinterpret_cast<unsigned long long>(
            p.q + gqa_q_row(p, item.block.row + row) * p.q_stride +
            std::int64_t{head_of(item, m, row)} * kDim + chunk * 8));
      }
      store_shared(s.q + static_cast<std::uint32_t>(m * N::kQueryBytes + chunk * 16), v.x, v.y, v.z,
                   v.w);
    }
  }
  __device__ void begin(const GqaSegment& item) {
    load_queries(item);
    LATHE_UNROLL
    for (int t = 0; t < kSixteens; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kEights * 4; ++i) acc[t][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) row_sum[j][i] = 0, row_max[j][i] = kNoKey;
    }
    sync();
  }

  /// Address of this lane's row of the first four matrices of a tile's codes. A matrix has 8 of the
  /// warp's 16 keys and 16 dimensions; a pair of sixteens has four. Pairs are 32 bytes apart,
  /// before the swizzle.
  __device__ std::uint32_t codes_at(std::uint32_t tile) const {
    const int key = 16 * warp + (lane & 15);
    const int swizzle = N::kBoxBytes == 128 ? key & 7 : key >> 1 & 3;
    return tile + static_cast<std::uint32_t>(key * N::kBoxBytes + ((lane >> 4 ^ swizzle) << 4));
  }
  __device__ static std::uint32_t pair_at(std::uint32_t codes, int pair) {
    constexpr int kOfBox = N::kBoxBytes / 32;
    return (codes + static_cast<std::uint32_t>(pair / kOfBox * N::kBoxTileBytes)) ^
           static_cast<std::uint32_t>(pair % kOfBox * 32);
  }

  /// Makes the scores of keys with NaN in them NaN. nan: nan_bits() of keys g and g + 8.
  __device__ __forceinline__ static void poison_scores(Scores& d, const std::uint32_t (&nan)[2]) {
    LATHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::uint32_t bits = nan[half];
      bits |= shuffle_xor(bits, 1);
      bits |= shuffle_xor(bits, 2);
      if (!has_nan(bits)) continue;
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        d[4 * j + 2 * half] = d[4 * j + 2 * half + 1] = not_a_number();
      }
    }
  }
  __device__ __forceinline__ void score(Scores& d, std::uint32_t tile) const {
    std::uint32_t codes[kPairs][4];
    const std::uint32_t at = codes_at(tile);
    LATHE_UNROLL
    for (int i = 0; i < kPairs; ++i) load_matrices(pair_at(at, i), codes[i]);
    const std::uint32_t q =
        s.q + static_cast<std::uint32_t>(lane / 4 * N::kQueryBytes + (lane & 3) * 8);
    float sums[kChains][kEights * 4];
    LATHE_UNROLL
    for (int chain = 0; chain < kChains; ++chain) {
      LATHE_UNROLL
      for (int i = 0; i < kEights * 4; ++i) sums[chain][i] = 0;
    }
    std::uint32_t nan[2] = {};
    LATHE_UNROLL
    for (int t = 0; t < kSixteens; ++t) {
      // Columns 2 c, + 1, 8 + 2 c and + 1 of an operand are dimensions 4 c to 4 c + 3.
      const std::uint32_t low = codes[t / 2][t % 2 * 2], high = codes[t / 2][t % 2 * 2 + 1];
      nan[0] |= nan_bits(low);
      nan[1] |= nan_bits(high);
      const std::uint32_t a[4] = {widen_pair<0, 1>(low), widen_pair<0, 1>(high),
                                  widen_pair<2, 3>(low), widen_pair<2, 3>(high)};
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        const std::uint64_t b =
            load_shared_u64(q + static_cast<std::uint32_t>(8 * j * N::kQueryBytes + t * 32));
        mma_m16n8_bf16(sums[t % kChains] + 4 * j, a, static_cast<std::uint32_t>(b),
                       static_cast<std::uint32_t>(b >> 32));
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < kEights * 4; ++i) {
      d[i] = sums[0][i];
      if constexpr (kChains == 2) d[i] += sums[1][i];
    }
    if (seldom(warp_any(has_nan(nan[0] | nan[1])))) poison_scores(d, nan);
  }

  /// Masks S. seen: a bit for each of the warp's keys; loses those that are wild (nonfinite.cuh).
  /// limit: GqaBlock's, counted from the tile's first key.
  __device__ __forceinline__ void apply_mask(Scores& d, const GqaBlock& b, std::uint32_t& seen,
                                             int limit) const {
    constexpr std::uint64_t kOthers = ~std::uint64_t{0xffff};
    mask_keys_swapped(d, kOthers | seen, lane / 4);
    const GqaEdge edge(p, b, limit);
    if (!seldom(edge.template any<N::kTile>())) return;
    const int own_warp = opaque(warp), own_lane = opaque(lane);
    const auto keys = static_cast<std::uint32_t>(edge.first_keys() >> 16 * own_warp) & seen;
    const std::uint32_t wild =
        wild_of(GqaValueRows<N>{s.ring.values(stage.index)}, keys, own_warp, own_lane);
    poison_keys_swapped(d, wild, own_lane);
    seen &= ~wild;
    const int key = 16 * own_warp + own_lane / 4;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int end = limit + row_of(b, m_row(j, i)), begin = end - p.window;
        if (key >= end || key < begin) d[4 * j + i] = kNoKey;
        if (key + 8 >= end || key + 8 < begin) d[4 * j + 2 + i] = kNoKey;
      }
    }
  }

  __device__ bool outgrows(const Scores& d) const {
    bool grows = false;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        grows |= fmaxf(d[4 * j + i], d[4 * j + 2 + i]) * p.scale > row_max[j][i] + kRowMaxSlack;
      }
    }
    return grows;
  }
  /// Raises the row maxes that scores have outgrown.
  __device__ __forceinline__ void raise(const Scores& d) {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
        for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
        m *= p.scale;
        if (!(m > row_max[j][i] + kRowMaxSlack)) continue;
        // From -inf there is nothing to scale: the accumulator is 0.
        const float factor = exp2_fast(row_max[j][i] - m);
        row_max[j][i] = m;
        row_sum[j][i] *= factor;
        LATHE_UNROLL
        for (int t = 0; t < kSixteens; ++t) {
          acc[t][4 * j + i] *= factor;
          acc[t][4 * j + 2 + i] *= factor;
        }
      }
    }
  }
  /// Turns S into P, right operands of the second product.
  __device__ __forceinline__ void softmax(const Scores& d, std::uint32_t (&weights)[kEights][2]) {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[4];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float zero = row_max[j][i] == kNoKey ? 0.f : row_max[j][i];
        w[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, -zero));
        w[2 + i] = exp2_fast(fmaf(d[4 * j + 2 + i], p.scale, -zero));
        row_sum[j][i] += w[i] + w[2 + i];
      }
      weights[j][0] = transpose_matrix(pack_bf16(w[0], w[1]));
      weights[j][1] = transpose_matrix(pack_bf16(w[2], w[3]));
    }
  }

  /// Makes outputs NaN where a value is NaN of a key that all rows see. at: codes_at() of the
  /// values.
  __device__ __forceinline__ void poison_outputs(std::uint32_t at, std::uint32_t seen) {
    LATHE_UNROLL
    for (int t = 0; t < kSixteens; ++t) {
      std::uint32_t codes[4], nan = 0;
      load_matrices_trans(pair_at(at, t / 2), codes);
      LATHE_UNROLL
      for (int half = 0; half < 2; ++half) {  // keys 2 c and 2 c + 1, then + 8
        const std::uint32_t bits = nan_bits(codes[t % 2 * 2 + half]) & 0x80808080u;
        const std::uint32_t own = seen >> (2 * (lane & 3) + 8 * half);
        if (own & 1) nan |= bits & 0xffffu;
        if (own & 2) nan |= bits >> 16;
      }
      nan |= shuffle_xor(nan, 1);
      nan |= shuffle_xor(nan, 2);
      LATHE_UNROLL
      for (int h = 0; h < 2; ++h) {
        if ((nan >> (8 * h + 7) & 1) == 0) continue;
        LATHE_UNROLL
        for (int j = 0; j < kEights; ++j) {
          acc[t][4 * j + 2 * h] = acc[t][4 * j + 2 * h + 1] = not_a_number();
        }
      }
    }
  }

  __device__ void tile(const GqaBlock& b, int limit) {
    barrier_wait(s.ring.full_at(stage.index), stage.parity);
    std::uint32_t seen =
        load_shared_u16(s.ring.mask_at(stage) + static_cast<std::uint32_t>(2 * warp));
    Scores d;
    score(d, s.ring.keys(stage.index));
    apply_mask(d, b, seen, limit);
    std::uint32_t codes[kPairs][4];
    const std::uint32_t at = codes_at(s.ring.values(stage.index));
    LATHE_UNROLL
    for (int i = 0; i < kPairs; ++i) load_matrices_trans(pair_at(at, i), codes[i]);
    if (seldom(warp_any(outgrows(d)))) raise(d);
    std::uint32_t weights[kEights][2], nan = 0;
    softmax(d, weights);
    LATHE_UNROLL
    for (int t = 0; t < kSixteens; ++t) {
      // A word has dimensions 2 g and + 1 of one key, then of the next. Rows g and g + 8 of the
      // operand are those two dimensions.
      const std::uint32_t low = codes[t / 2][t % 2 * 2], high = codes[t / 2][t % 2 * 2 + 1];
      nan |= nan_bits(low) | nan_bits(high);
      const std::uint32_t a[4] = {widen_pair<0, 2>(low), widen_pair<1, 3>(low),
                                  widen_pair<0, 2>(high), widen_pair<1, 3>(high)};
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        mma_m16n8_bf16(acc[t] + 4 * j, a, weights[j][0], weights[j][1]);
      }
    }
    if (seldom(warp_any(has_nan(nan)))) poison_outputs(at, seen);
    sync_warp();
    if (lane == 0) barrier_arrive(s.ring.empty_at(stage.index));
  }

  /// Writes an M row's LSE, and the factor of its outputs to shared memory.
  __device__ void settle(const GqaSegment& item, int m_row) const {
    float most = kNoKey, sum = 0;
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w)
      most = fmaxf(most, load_float(of_row(s.maxima, w * kMRows + m_row)));
    LATHE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const float own = load_float(of_row(s.maxima, w * kMRows + m_row));
      const float of_warp = load_float(of_row(s.sums, w * kMRows + m_row));
      sum += own == kNoKey ? of_warp : of_warp * exp2_fast(own - most);
    }
    const float lse2 = sum == 0 ? kNoKey : most + log2_fast(sum);
    float factor = sum == 0 ? 0.f : p.value_scale / sum;
    if (m_row < item.block.m_rows) {
      const std::int32_t row = row_of(item.block, m_row), head = head_of(item, m_row, row);
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
  /// Stores this warp's outputs in shared memory, or adds them to another warp's outputs.
  template <bool kAdd>
  __device__ __forceinline__ void join_outputs() const {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int m = m_row(j, i);
        float most = kNoKey;
        LATHE_UNROLL
        for (int w = 0; w < 4; ++w)
          most = fmaxf(most, load_float(of_row(s.maxima, w * kMRows + m)));
        // Without keys the outputs are 0, or NaN where a score was.
        const float factor = row_max[j][i] == kNoKey ? 1.f : exp2_fast(row_max[j][i] - most);
        const std::uint32_t to =
            s.out +
            static_cast<std::uint32_t>(((warp & 1) * kMRows + m) * N::kOutBytes + lane / 4 * 8);
        LATHE_UNROLL
        for (int t = 0; t < kSixteens; ++t) {
          float2 v = {acc[t][4 * j + i] * factor, acc[t][4 * j + 2 + i] * factor};
          const std::uint32_t at = to + static_cast<std::uint32_t>(t * 64);
          if constexpr (kAdd) {
            const float2 other = load_float2(at);
            v.x += other.x, v.y += other.y;
          }
          store_float2(at, v.x, v.y);
        }
      }
    }
  }
  __device__ void store_outputs(const GqaSegment& item) const {
    constexpr int kFours = kDim / 4;
    LATHE_ROLLED
    for (int at = warp * 32 + lane; at < item.block.m_rows * kFours; at += kConsumers) {
      const int m = at / kFours, dim = at % kFours * 4;
      const std::uint32_t from = s.out + static_cast<std::uint32_t>(m * N::kOutBytes + dim * 4);
      const float4 a = load_floats(from);
      const float4 b = load_floats(from + static_cast<std::uint32_t>(kMRows * N::kOutBytes));
      const float factor = load_float(of_row(s.factors, m));
      const float4 v = {(a.x + b.x) * factor, (a.y + b.y) * factor, (a.z + b.z) * factor,
                        (a.w + b.w) * factor};
      if (item.partial >= 0) {
        *reinterpret_cast<float4*>(p.partial_out +
                                   (std::int64_t{item.partial} * kMRows + m) * kDim + dim) = v;
        continue;
      }
      const std::int32_t row = row_of(item.block, m);
      const std::int64_t to =
          (item.block.row + row) * p.out_stride + std::int64_t{head_of(item, m, row)} * kDim + dim;
      if (p.out_f32) {
        float* const wide = static_cast<float*>(p.out) + to;
        wide[0] = v.x, wide[1] = v.y, wide[2] = v.z, wide[3] = v.w;
      } else {
        auto* const narrow = static_cast<std::uint16_t*>(p.out) + to;
        const std::uint32_t words[2] = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) {
          narrow[i] = static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16);
        }
      }
    }
  }
  __device__ void finish(const GqaSegment& item) {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float t = row_sum[j][i];
        for (int l = 4; l < 32; l *= 2) t += shuffle_xor(t, l);
        if (lane < 4) {
          store_float(of_row(s.maxima, warp * kMRows + m_row(j, i)), row_max[j][i]);
          store_float(of_row(s.sums, warp * kMRows + m_row(j, i)), t);
        }
      }
    }
    sync();
    if (warp * 32 + lane < kMRows) settle(item, warp * 32 + lane);
    if (warp >= 2) join_outputs<false>();
    sync();
    if (warp < 2) join_outputs<true>();
    sync();
    store_outputs(item);
  }

  __device__ void run(std::int32_t worker) {
    GqaSegments segments(p, worker);
    GqaSegment item;
    while (segments.next(item)) {
      begin(item);
      int limit = item.block.limit - item.first_key<N::kTile>();
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t, limit -= N::kTile) {
        tile(item.block, limit);
        stage.advance();
      }
      finish(item);
    }
  }
};

template <int kHeadDim, int kBlockM>
static __global__ void __launch_bounds__(GqaMmaFp8<kHeadDim, kBlockM>::kThreads,
                                         GqaMmaFp8<kHeadDim, kBlockM>::kBlocksPerSm)
    gqa_mma_fp8_kernel(const __grid_constant__ GqaParams p,
                       const __grid_constant__ CUtensorMap keys,
                       const __grid_constant__ CUtensorMap values) {
  using N = GqaMmaFp8<kHeadDim, kBlockM>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const GqaMmaFp8Shared<N> s(shared_address(shared_bytes));
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.ring.init();
  sync_block();
  wait_for_previous();
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (thread >= GqaMmaFp8Warp<N>::kConsumers) {
    GqaPageProducer<N>(p, s.ring, &keys, &values).run(worker);
  } else {
    GqaMmaFp8Warp<N>(p, s, thread).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
