// Grouped-query attention over e4m3 pages for few M rows (query row x head of a group,
// gqa_params.h).
//
// A producer warp (gqa_load_pages.cuh) copies tiles of 64 or 128 keys to a ring of stages. Each of
// four warps computes a quarter of every tile's keys by itself, with row maxes and outputs of its
// own, which are joined once an item is done:
//
//   S^T [16 keys, M rows]    = K Q^T
//   O^T [head dim, M rows]  += V^T P^T
//
// An item of a pair of KV heads (GqaParams::pairs) gives two warps to each head, and each warp half
// of every tile's keys.
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

/// The values of one of an item's KV heads (nonfinite.cuh).
template <class N>
struct GqaMmaFp8Values {
  std::uint32_t tile;
  int head;

  __device__ bool wild(int key, int lane) const {
    constexpr int kChunks = N::kDim / 16, kOfBox = N::kBoxBytes / 16;
    const int chunk = head * kChunks + lane;
    const int at = chunk / kOfBox * N::kBoxTileBytes + key * N::kBoxBytes +
                   (chunk % kOfBox ^ N::swizzle(key)) * 16;
    return lane < kChunks && is_wild_e4m3(load_shared_u128(tile + static_cast<std::uint32_t>(at)));
  }
};

/// A warp, which has the KV head `head` of the item's. M rows are counted by head: row n is M row
/// n of that head alone. With g = lane / 4 and c = lane % 4, a lane holds S of keys g and g + 8 of
/// each of the warp's sets of 16, and O of dimensions 2 g and + 1 of each 16, in both of M rows
/// 8 j + 2 c + i, which are `m_row(j, i)`.
template <class N>
struct GqaMmaFp8Warp {
  static constexpr int kMRows = N::kMRows, kDim = N::kDim, kHeads = N::kHeads;
  static constexpr int kEights = kMRows / 8;
  static constexpr int kSixteens = kDim / 16;  // of dimensions
  static constexpr int kPairs = kDim / 32;     // of sixteens, which one load of matrices gets
  static constexpr int kParts = 4 / kHeads;    // warps of a head, which share a tile's keys
  static constexpr int kSets = N::kTile / 16 / kParts;  // of 16 keys
  static constexpr std::uint32_t kAllKeys = kSets == 2 ? ~0u : 0xffffu;
  static_assert(kSets <= 2);
  // Chains of products that do not wait for one another, as far as registers allow.
  static constexpr int kChains = kSets == 1 && kMRows <= 16 ? 2 : 1;
  static constexpr int kBarrier = 1, kConsumers = 128;
  using Scores = float[kSets][kEights * 4];
  // Sets whose codes are in registers at once, as far as registers allow.
  static constexpr int kTogether = kMRows * kDim <= 1024 ? kSets : 1;
  using Codes = std::uint32_t[kPairs][4];

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
  __device__ int head() const { return kHeads == 1 ? 0 : warp / kParts; }
  __device__ int part() const { return kHeads == 1 ? warp : warp % kParts; }
  /// The first of the warp's keys in a tile.
  __device__ int first_key() const { return 16 * kSets * part(); }
  /// In an array with an entry for each M row of each head.
  __device__ static std::uint32_t of_row(std::uint32_t array, int at) {
    return array + static_cast<std::uint32_t>(4 * at);
  }
  /// In an array with kParts of these, one after another.
  __device__ static std::uint32_t of_row(std::uint32_t array, int part, int at) {
    return of_row(array, part * kHeads * kMRows + at);
  }
  /// M rows of each head. A block of a pair has whole query rows.
  __device__ static std::int32_t m_rows(const GqaBlock& b) { return b.m_rows / kHeads; }
  /// The query row of M row `n`, counted from the block's first one, and its query head.
  __device__ std::int32_t row_of(const GqaBlock& b, int n) const {
    return static_cast<std::int32_t>(p.group(static_cast<std::uint32_t>(b.head + kHeads * n)));
  }
  __device__ std::int32_t head_of(const GqaSegment& item, int head, int n, std::int32_t row) const {
    const auto group = static_cast<std::int32_t>(p.group.divisor), own = group / kHeads;
    return item.head * group + head * own + item.block.head + n - row * own;
  }
  /// Its place among the block's M rows.
  __device__ std::int32_t place_of(int head, int n, std::int32_t row) const {
    const std::int32_t own = static_cast<std::int32_t>(p.group.divisor) / kHeads;
    return n + (kHeads - 1) * row * own + head * own;
  }

  __device__ void load_queries(const GqaSegment& item) const {
    constexpr int kChunks = kDim / 8, kAll = kHeads * kMRows * kChunks;  // of 8 elements
    LATHE_UNROLL
    for (int i = 0; i < kAll; i += kConsumers) {
      const int at = i + warp * 32 + lane, m = at / kChunks, chunk = at % kChunks;
      if (kAll % kConsumers != 0 && at >= kAll) break;
      const int n = m % kMRows;
      uint4 v = {0, 0, 0, 0};
      if (n < m_rows(item.block)) {
        const std::int32_t row = row_of(item.block, n);
        v = load_global<uint4>(reinterpret_cast<unsigned long long>(
            p.q + gqa_q_row(p, item.block.row + row) * p.q_stride +
            std::int64_t{head_of(item, m / kMRows, n, row)} * kDim + chunk * 8));
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

  /// Address of this lane's row of the first four matrices of a tile's codes. A matrix has 8 keys
  /// of a set and 16 dimensions; a pair of sixteens has four. Pairs are 32 bytes apart, before the
  /// swizzle.
  __device__ std::uint32_t codes_at(std::uint32_t tile) const {
    const int key = first_key() + (lane & 15), chunk = head() * kSixteens + (lane >> 4);
    return tile + static_cast<std::uint32_t>(key * N::kBoxBytes + ((chunk ^ N::swizzle(key)) << 4));
  }
  __device__ static std::uint32_t pair_at(std::uint32_t codes, int set, int pair) {
    constexpr int kOfBox = N::kBoxBytes / 32;
    return (codes + static_cast<std::uint32_t>(pair / kOfBox * N::kBoxTileBytes +
                                               set * 16 * N::kBoxBytes)) ^
           static_cast<std::uint32_t>(pair % kOfBox * 32);
  }

  /// Makes the scores of keys with NaN in them NaN. nan: nan_bits() of keys g and g + 8.
  __device__ __forceinline__ static void poison_scores(float (&d)[kEights * 4],
                                                       const std::uint32_t (&nan)[2]) {
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
    const std::uint32_t at = codes_at(tile);
    const std::uint32_t q =
        s.q +
        static_cast<std::uint32_t>((head() * kMRows + lane / 4) * N::kQueryBytes + (lane & 3) * 8);
    float sums[kSets][kChains][kEights * 4] = {};
    std::uint32_t nan[kSets][2] = {};
    LATHE_UNROLL
    for (int first = 0; first < kSets; first += kTogether) {
      Codes codes[kTogether];
      LATHE_UNROLL
      for (int i = 0; i < kTogether * kPairs; ++i) {
        load_matrices(pair_at(at, first + i / kPairs, i % kPairs), codes[i / kPairs][i % kPairs]);
      }
      LATHE_UNROLL
      for (int t = 0; t < kSixteens; ++t) {
        // Columns 2 c, + 1, 8 + 2 c and + 1 of an operand are dimensions 4 c to 4 c + 3.
        std::uint32_t a[kTogether][4];
        LATHE_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          const std::uint32_t low = codes[i][t / 2][t % 2 * 2];
          const std::uint32_t high = codes[i][t / 2][t % 2 * 2 + 1];
          nan[first + i][0] |= nan_bits(low);
          nan[first + i][1] |= nan_bits(high);
          a[i][0] = widen_pair<0, 1>(low), a[i][1] = widen_pair<0, 1>(high);
          a[i][2] = widen_pair<2, 3>(low), a[i][3] = widen_pair<2, 3>(high);
        }
        LATHE_UNROLL
        for (int j = 0; j < kEights; ++j) {
          const std::uint64_t b =
              load_shared_u64(q + static_cast<std::uint32_t>(8 * j * N::kQueryBytes + t * 32));
          LATHE_UNROLL
          for (int i = 0; i < kTogether; ++i) {
            mma_m16n8_bf16(sums[first + i][t % kChains] + 4 * j, a[i],
                           static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32));
          }
        }
      }
    }
    std::uint32_t any = 0;
    LATHE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      any |= nan[set][0] | nan[set][1];
      LATHE_UNROLL
      for (int i = 0; i < kEights * 4; ++i) {
        d[set][i] = sums[set][0][i];
        if constexpr (kChains == 2) d[set][i] += sums[set][1][i];
      }
    }
    if (!seldom(warp_any(has_nan(any)))) return;
    LATHE_UNROLL
    for (int set = 0; set < kSets; ++set) poison_scores(d[set], nan[set]);
  }

  /// A bit for each of the warp's keys that are there.
  __device__ __forceinline__ std::uint32_t keys_there() const {
    const std::uint32_t at = s.ring.mask_at(stage) + static_cast<std::uint32_t>(2 * kSets * part());
    return kSets == 2 ? load_shared_u32(at) : load_shared_u16(at);
  }
  /// Masks S. seen: a bit for each of the warp's keys; loses those that are wild (nonfinite.cuh).
  /// limit: GqaBlock's, counted from the tile's first key.
  __device__ __forceinline__ void apply_mask(Scores& d, const GqaBlock& b, std::uint32_t& seen,
                                             int limit) const {
    constexpr std::uint64_t kOthers = ~std::uint64_t{0xffff};
    if (seldom(seen != kAllKeys)) {
      LATHE_UNROLL
      for (int set = 0; set < kSets; ++set) {
        mask_keys_swapped(d[set], kOthers | seen >> 16 * set, lane / 4);
      }
    }
    const GqaEdge edge(p, b, limit);
    if (!seldom(edge.template any<N::kTile>())) return;
    const int first = opaque(first_key()), own_lane = opaque(lane);
    const std::uint32_t keys = edge.keys(first / 32) >> first % 32 & seen;
    const GqaMmaFp8Values<N> values{s.ring.values(stage.index), head()};
    const std::uint32_t wild = wild_of(values, keys, first / 16, own_lane);
    seen &= ~wild;
    LATHE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      poison_keys_swapped(d[set], wild >> 16 * set, own_lane);
      const int key = first + 16 * set + own_lane / 4;
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        LATHE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int end = limit + row_of(b, m_row(j, i)), begin = end - p.window;
          if (key >= end || key < begin) d[set][4 * j + i] = kNoKey;
          if (key + 8 >= end || key + 8 < begin) d[set][4 * j + 2 + i] = kNoKey;
        }
      }
    }
  }

  /// The largest of this lane's scores in M row m_row(j, i).
  __device__ __forceinline__ static float largest(const Scores& d, int j, int i) {
    float m = fmaxf(d[0][4 * j + i], d[0][4 * j + 2 + i]);
    if constexpr (kSets == 2) m = fmaxf(m, fmaxf(d[1][4 * j + i], d[1][4 * j + 2 + i]));
    return m;
  }
  __device__ bool outgrows(const Scores& d) const {
    bool grows = false;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        grows |= largest(d, j, i) * p.scale > row_max[j][i] + kRowMaxSlack;
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
        float m = largest(d, j, i);
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
  __device__ __forceinline__ void softmax(const Scores& d,
                                          std::uint32_t (&weights)[kSets][kEights][2]) {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[kSets][4];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float zero = row_max[j][i] == kNoKey ? 0.f : row_max[j][i];
        LATHE_UNROLL
        for (int set = 0; set < kSets; ++set) {
          w[set][i] = exp2_fast(fmaf(d[set][4 * j + i], p.scale, -zero));
          w[set][2 + i] = exp2_fast(fmaf(d[set][4 * j + 2 + i], p.scale, -zero));
          row_sum[j][i] += w[set][i] + w[set][2 + i];
        }
      }
      LATHE_UNROLL
      for (int set = 0; set < kSets; ++set) {
        weights[set][j][0] = transpose_matrix(pack_bf16(w[set][0], w[set][1]));
        weights[set][j][1] = transpose_matrix(pack_bf16(w[set][2], w[set][3]));
      }
    }
  }

  /// Makes outputs NaN where a value is NaN of a key that all rows see. at: codes_at() of the
  /// values.
  __device__ __forceinline__ void poison_outputs(std::uint32_t at, std::uint32_t seen) {
    LATHE_UNROLL
    for (int t = 0; t < kSixteens; ++t) {
      std::uint32_t nan = 0;
      LATHE_UNROLL
      for (int set = 0; set < kSets; ++set) {
        std::uint32_t codes[4];
        load_matrices_trans(pair_at(at, set, t / 2), codes);
        LATHE_UNROLL
        for (int half = 0; half < 2; ++half) {  // keys 2 c and 2 c + 1, then + 8
          const std::uint32_t bits = nan_bits(codes[t % 2 * 2 + half]) & 0x80808080u;
          const std::uint32_t own = seen >> (16 * set + 2 * (lane & 3) + 8 * half);
          if (own & 1) nan |= bits & 0xffffu;
          if (own & 2) nan |= bits >> 16;
        }
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
    std::uint32_t seen = keys_there();
    Scores d;
    score(d, s.ring.keys(stage.index));
    apply_mask(d, b, seen, limit);
    Codes codes[kSets];
    const std::uint32_t at = codes_at(s.ring.values(stage.index));
    const auto load = [&](int set) {
      LATHE_UNROLL
      for (int i = 0; i < kPairs; ++i) load_matrices_trans(pair_at(at, set, i), codes[set][i]);
    };
    LATHE_UNROLL
    for (int set = 0; set < kTogether; ++set) load(set);
    if (seldom(warp_any(outgrows(d)))) raise(d);
    std::uint32_t weights[kSets][kEights][2], nan = 0;
    softmax(d, weights);
    LATHE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      if (set >= kTogether) load(set);
      LATHE_UNROLL
      for (int t = 0; t < kSixteens; ++t) {
        // A word has dimensions 2 g and + 1 of one key, then of the next. Rows g and g + 8 of the
        // operand are those two dimensions.
        const std::uint32_t low = codes[set][t / 2][t % 2 * 2];
        const std::uint32_t high = codes[set][t / 2][t % 2 * 2 + 1];
        nan |= nan_bits(low) | nan_bits(high);
        const std::uint32_t a[4] = {widen_pair<0, 2>(low), widen_pair<1, 3>(low),
                                    widen_pair<0, 2>(high), widen_pair<1, 3>(high)};
        LATHE_UNROLL
        for (int j = 0; j < kEights; ++j) {
          mma_m16n8_bf16(acc[t] + 4 * j, a, weights[set][j][0], weights[set][j][1]);
        }
      }
    }
    if (seldom(warp_any(has_nan(nan)))) poison_outputs(at, seen);
    sync_warp();
    if (lane == 0) barrier_arrive(s.ring.empty_at(stage.index));
  }

  /// The row max of a head's M row; at: head x kMRows + M row.
  __device__ float joint_max(int at) const {
    float most = kNoKey;
    LATHE_UNROLL
    for (int i = 0; i < kParts; ++i) most = fmaxf(most, load_float(of_row(s.maxima, i, at)));
    return most;
  }
  /// Writes the M row's LSE, and the factor of its outputs to shared memory.
  __device__ void settle(const GqaSegment& item, int at) const {
    const float most = joint_max(at);
    float sum = 0;
    LATHE_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const float own = load_float(of_row(s.maxima, i, at));
      const float of_part = load_float(of_row(s.sums, i, at));
      sum += own == kNoKey ? of_part : of_part * exp2_fast(own - most);
    }
    const float lse2 = sum == 0 ? kNoKey : most + log2_fast(sum);
    float factor = sum == 0 ? 0.f : p.value_scale / sum;
    const int of_item = at / kMRows, n = at % kMRows;
    if (n < m_rows(item.block)) {
      const std::int32_t row = row_of(item.block, n), head = head_of(item, of_item, n, row);
      if (item.partial >= 0) {
        p.partial_lse[std::int64_t{item.partial} * N::kBlockM + place_of(of_item, n, row)] = lse2;
      } else {
        if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
        if (p.lse != nullptr) {
          p.lse[(item.block.row + row) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
        }
      }
    }
    store_float(of_row(s.factors, at), factor);
  }
  /// Stores this warp's outputs in shared memory, or adds them to outputs of another warp.
  template <bool kAdd>
  __device__ __forceinline__ void join_outputs() const {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int at = head() * kMRows + m_row(j, i);
        // Without keys the outputs are 0, or NaN where a score was.
        const float factor =
            row_max[j][i] == kNoKey ? 1.f : exp2_fast(row_max[j][i] - joint_max(at));
        const std::uint32_t to =
            s.out + static_cast<std::uint32_t>(((warp & 1) * kHeads * kMRows + at) * N::kOutBytes +
                                               lane / 4 * 8);
        LATHE_UNROLL
        for (int t = 0; t < kSixteens; ++t) {
          float2 v = {acc[t][4 * j + i] * factor, acc[t][4 * j + 2 + i] * factor};
          const std::uint32_t out = to + static_cast<std::uint32_t>(t * 64);
          if constexpr (kAdd) {
            const float2 other = load_float2(out);
            v.x += other.x, v.y += other.y;
          }
          store_float2(out, v.x, v.y);
        }
      }
    }
  }
  __device__ void store_outputs(const GqaSegment& item) const {
    constexpr int kFours = kDim / 4;
    const std::int32_t rows = m_rows(item.block);
    LATHE_ROLLED
    for (int four = warp * 32 + lane; four < kHeads * rows * kFours; four += kConsumers) {
      const int m = four / kFours, dim = four % kFours * 4;
      const int of_item = kHeads == 2 && m >= rows ? 1 : 0, n = m - of_item * rows;
      const int at = of_item * kMRows + n;
      const std::uint32_t from = s.out + static_cast<std::uint32_t>(at * N::kOutBytes + dim * 4);
      const float4 a = load_floats(from);
      const float4 b =
          load_floats(from + static_cast<std::uint32_t>(kHeads * kMRows * N::kOutBytes));
      const float factor = load_float(of_row(s.factors, at));
      const float4 v = {(a.x + b.x) * factor, (a.y + b.y) * factor, (a.z + b.z) * factor,
                        (a.w + b.w) * factor};
      const std::int32_t row = row_of(item.block, n);
      if (item.partial >= 0) {
        const std::int64_t to = std::int64_t{item.partial} * N::kBlockM + place_of(of_item, n, row);
        *reinterpret_cast<float4*>(p.partial_out + to * kDim + dim) = v;
        continue;
      }
      const std::int64_t to = (item.block.row + row) * p.out_stride +
                              std::int64_t{head_of(item, of_item, n, row)} * kDim + dim;
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
          const int at = head() * kMRows + m_row(j, i);
          store_float(of_row(s.maxima, part(), at), row_max[j][i]);
          store_float(of_row(s.sums, part(), at), t);
        }
      }
    }
    sync();
    if (warp * 32 + lane < kHeads * kMRows) settle(item, warp * 32 + lane);
    if (kParts == 2 || warp >= 2) join_outputs<false>();
    sync();
    if constexpr (kParts == 4) {
      if (warp < 2) join_outputs<true>();
      sync();
    }
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

template <int kHeadDim, int kMRows, int kHeads>
static __global__ void __launch_bounds__(GqaMmaFp8<kHeadDim, kMRows, kHeads>::kThreads,
                                         GqaMmaFp8<kHeadDim, kMRows, kHeads>::kBlocksPerSm)
    gqa_mma_fp8_kernel(const __grid_constant__ GqaParams p,
                       const __grid_constant__ CUtensorMap keys,
                       const __grid_constant__ CUtensorMap values) {
  using N = GqaMmaFp8<kHeadDim, kMRows, kHeads>;
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
