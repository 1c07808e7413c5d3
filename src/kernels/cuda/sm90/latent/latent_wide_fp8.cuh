// Latent attention on fp8 caches, f16 products: a block does 64 lines.
//
// Keys stay fp8 in shared memory (latent_row_fill.cuh). Two warpgroups multiply and make their left operands
// in registers (latent_rows.cuh), so both products are turned, with lines on the N side:
//
//   S^T [64 keys, lines]  = K Q^T     Q [lines, dims] K-major
//   O^T [dims, lines]    += V^T P^T   weights P [lines, 64 keys] K-major
//
// Group 0 makes the scores and weights of even tiles of keys, group 1 of odd ones; each adds all tiles to its
// half of the value dimensions (256 x 64 lines, 128 registers a thread). While one group weighs, the
// other one's products run:
//
//   group 0   weights 0             | O += P0 V0, S2 = K2 Q | O += P1 V1, weights 2 | ...
//   group 1   O += P0 V0, weights 1 | O += P1 V1, S3 = K3 Q | O += P2 V2, weights 3 | ...
//
// Operands are made of 32 keys or dimensions at a time in one of two or three sets of registers, while the
// products of the others run. References (latent_reference.cuh) go from tile to tile in the order of keys.
#pragma once

#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/latent/latent_hide.cuh"
#include "kernels/cuda/sm90/latent/latent_parts.cuh"
#include "kernels/cuda/sm90/latent/latent_reference.cuh"
#include "kernels/cuda/sm90/latent/latent_row_fill.cuh"

namespace lathe::cuda {

template <class Format>
struct WideFp8 {
  static constexpr int kLines = 64;
  static constexpr int kThreads = 384;
  static constexpr int kGroupRegisters = 224, kFillRegisters = 48;
  static_assert(2 * kGroupRegisters + kFillRegisters <= 504, "setmaxnreg would wait for ever");
  static constexpr int kValues = 512;
  static constexpr int kQueryThreads = 32;
  static constexpr int kTileWeights = kLines * 128;
  using Ring = LatentRing<Format, 3, 2>;

  static constexpr int kKeysAt = kDimTiles<Format> * kDimTileBytes;
  static constexpr int kWeightsAt = kKeysAt + Ring::kBuffers * LatentRows<Format>::kTileBytes;
  static constexpr int kScalesAt = kWeightsAt + Ring::kBuffers * kTileWeights;
  static constexpr int kSmallAt = kScalesAt + Ring::kBuffers * LatentRows<Format>::kScaleBytes;
  static constexpr int kNamesAt = kSmallAt + 192 + 6 * 256 + 2 * 512 + 2048;
  static constexpr int kSharedBytes = kNamesAt + Ring::kNameBytes;
  static_assert(kSharedBytes <= 232448 && kWeightsAt % 1024 == 0);

  // Named barriers; the groups have one each.
  static constexpr int kFirstGroup = 1, kBothGroups = 3;
};

template <class Format>
struct WideFp8Shared {
  using W = WideFp8<Format>;
  std::uint32_t q;  // the first of all

  __device__ typename W::Ring ring() const {
    return {q + W::kKeysAt, small(16), small(40), small(88), q + W::kNamesAt};
  }
  __device__ std::uint32_t weights(unsigned n) const {
    return q + W::kWeightsAt + W::Ring::buffer(n) * W::kTileWeights;
  }
  __device__ std::uint32_t scales(unsigned n) const {
    return q + W::kScalesAt + W::Ring::buffer(n) * LatentRows<Format>::kScaleBytes;
  }
  __device__ std::uint32_t small(std::uint32_t at) const { return q + W::kSmallAt + at; }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  __device__ std::uint32_t weighed(unsigned n) const { return small(64 + 8 * W::Ring::buffer(n)); }
  /// Nonzero where references rose with tile n.
  __device__ std::uint32_t risen(unsigned n) const { return small(112 + 4 * (n & 1)); }
  __device__ std::uint32_t facts() const { return small(128); }  // of items in turns
  __device__ std::uint32_t other_facts() const { return small(128 + LatentItemFacts::kBytes); }
  __device__ std::uint32_t references() const { return small(192); }  // [64] f32, log2
  /// What sums are to be multiplied by because of that. [64] f32
  __device__ std::uint32_t factors(unsigned n) const { return small(448 + 256 * (n & 1)); }
  /// What is to be multiplied into a line's outputs. [64] f32
  __device__ std::uint32_t outputs(int group) const {
    return small(static_cast<std::uint32_t>(960 + 256 * group));
  }
  /// Where a line's outputs begin, in elements, or -1. [64] i64
  __device__ std::uint32_t places(int group) const {
    return small(static_cast<std::uint32_t>(1472 + 512 * group));
  }
  __device__ std::uint32_t rows() const { return small(2496); }  // of lines in their unit [64] i32
  /// [4 warps][64] f32: maxima, then sums of a group
  __device__ std::uint32_t columns(int group) const {
    return small(static_cast<std::uint32_t>(2752 + 1024 * group));
  }
};

/// A multiplying group. Of scores its thread has keys `key` and `key` + 8 of the tile; of both products lines
/// 8 j + 2 (lane % 4) + i, which are `line(j, i)`. Functions are inlined by force, as products in flight can't be
/// carried through a call.
template <class Format>
struct WideFp8Group {
  using W = WideFp8<Format>;
  using Ring = typename W::Ring;
  using Operand = std::uint32_t[2][4];
  // Sets of registers for left operands.
  static constexpr int kOperands = Format::kScaleTiles == 1 ? 2 : 3;
  static constexpr int kSame = LatentRows<Format>::kSame;

  const LatentParams& p;
  const WideFp8Shared<Format>& s;
  int group, warp, lane;
  float sums[4][32];  // of 64 value dimensions each
  // Of this group's own tiles, of the lines own_line(): a lane sums the keys of four lanes.
  float total[2][2];
  Operand operands[kOperands];
  std::uint64_t queries;  // tile

  __device__ WideFp8Group(const LatentParams& params, const WideFp8Shared<Format>& shared,
                          int which, int t)
      : p(params),
        s(shared),
        group(which),
        warp(t / 32),
        lane(t % 32),
        queries(tile_descriptor(shared.q, 1024)) {}

  __device__ int thread() const { return warp * 32 + lane; }
  /// Else addresses are made before an item's tiles, and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int line(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ int own_line(int j) const { return line(2 * (lane >> 3) + j, 0); }
  __device__ void sync() const { group_sync(W::kFirstGroup + group, 128); }
  __device__ void pin_sums() {
    LATHE_UNROLL
    for (int m = 0; m < 4; ++m) wgmma_pin(sums[m]);
  }

  __device__ void begin(const LatentItemFacts& item) {
    arrange_queries<Format, W::kLines, 256>(s.q, group * 128 + thread());
    group_sync(W::kBothGroups, 256);
    if (group == 0) {
      // The other group reads these after this one's first tile.
      if (thread() < W::kLines) {
        const auto at = 4u * static_cast<unsigned>(thread());
        store_float(s.references() + at, kNoReference);
        store_shared_u32(s.rows() + at,
                         p.by_heads(static_cast<std::uint32_t>(item.first + thread())));
      }
      sync();
    }
    LATHE_UNROLL
    for (int m = 0; m < 4; ++m) {
      LATHE_UNROLL
      for (int i = 0; i < 32; ++i) sums[m][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < 2; ++j) total[j][0] = total[j][1] = 0;
  }

  /// Issues S^T of tile n, once all products are done. Words of keys are loaded two operands ahead, scales a block;
  /// the rotary part, which needs no making, comes after the first 32 dimensions.
  __device__ __forceinline__ void score(float (&d)[32], unsigned n) {
    forget();
    barrier_wait(s.ring().full(n), Ring::parity(n));
    KeyOperand<Format> keys(s.ring().keys(n), warp, lane);
    std::uint32_t words[2][4];
    constexpr int kFp8 = 2 * Format::kFp8, kWide = 2 * Format::kWide;
    static_assert(kWide <= kOperands);
    keys.fetch(0);
    keys.load(0, words[0]);
    keys.load(1, words[1]);
    wgmma_wait<0>();
    pin_sums();
    constexpr bool kBeside = kWide < kOperands;
    LATHE_UNROLL
    for (int c = 0; kBeside && c < kWide; ++c) keys.make_wide(c, operands[1 + c]);
    const auto q = [&](int c) {
      return queries + static_cast<unsigned>((c / 2 * kDimTileBytes + c % 2 * 64) / 16);
    };
    LATHE_UNROLL
    for (int c = 0; c < kFp8; ++c) {
      if (c % (2 * kSame) == 0) {
        keys.choose();
        if (c + 2 * kSame < kFp8) keys.fetch(c / (2 * kSame) + 1);
      }
      Operand& a = operands[(c == 0 ? 0 : kWide + c) % kOperands];
      keys.make(words[c & 1], a);
      if (c + 2 < kFp8) keys.load(c + 2, words[c & 1]);
      score_chunk<false>(d, a, q(c), c > 0);
      // What comes next is made beside these, in another operand's registers.
      wgmma_wait<kOperands - 1>();
      LATHE_UNROLL
      for (int w = 0; c == 0 && w < kWide; ++w) {
        Operand& wide = operands[(1 + w) % kOperands];
        if (!kBeside) keys.make_wide(w, wide);
        score_chunk<true>(d, wide, q(kFp8 + w), true);
        wgmma_wait<kOperands - 1>();
      }
    }
  }

  __device__ void scale_totals(unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const float2 f = load_float2(s.factors(n) + 4u * static_cast<unsigned>(own_line(j)));
      total[j][0] *= f.x;
      total[j][1] *= f.y;
    }
  }
  /// Adds weights to the sums of lines, of which a lane keeps a quarter.
  __device__ void add_totals(const float (&w)[32]) {
    const bool high = (lane & 16) != 0, odd = (lane & 8) != 0;
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float half[4];
      LATHE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float a = w[4 * j + i] + w[4 * j + 2 + i];
        const float b = w[4 * j + 16 + i] + w[4 * j + 18 + i];
        half[j] = (high ? b : a) + shuffle_xor(high ? a : b, 16);
      }
      LATHE_UNROLL
      for (int j = 0; j < 2; ++j) {
        total[j][i] += (odd ? half[2 + j] : half[j]) + shuffle_xor(odd ? half[j] : half[2 + j], 8);
      }
    }
  }

  /// Goes over to tile n's references, as this group's totals have where the tile is its own; the products
  /// must be done.
  __device__ __forceinline__ void refer(unsigned n) {
    if (!seldom(load_shared_u32(s.risen(n)) != 0)) return;
    if (static_cast<int>(n & 1) != group) scale_totals(n);
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 f = load_float2(s.factors(n) + 4u * static_cast<unsigned>(line(j, 0)));
      LATHE_UNROLL
      for (int m = 0; m < 4; ++m) {
        sums[m][4 * j] *= f.x;
        sums[m][4 * j + 1] *= f.y;
        sums[m][4 * j + 2] *= f.x;
        sums[m][4 * j + 3] *= f.y;
      }
    }
  }

  /// Issues O^T += V^T P^T of tile n, and gives its keys back.
  __device__ __forceinline__ void add(unsigned n) {
    forget();
    if (group > 1) __builtin_unreachable();  // so only the last tile of values can be bf16
    const ValueOperand<Format> values{s.ring().keys(n), s.scales(n), warp, lane};
    // Words are loaded two operands ahead, scales one that needs others.
    std::uint32_t words[2][4], scales[2][4] = {};
    barrier_wait(s.ring().full(n), Ring::parity(n));
    values.load(4 * group, 0, words[0]);
    values.load(4 * group + 1, 0, words[1]);
    barrier_wait(s.weighed(n), Ring::parity(n));
    const auto choose = [&](int c) {
      if (c < 8 && c % kSame == 0) {
        values.choose(4 * group + c % 4, c / 4, scales[c / kSame & 1]);
      }
    };
    choose(0);
    refer(n);
    const std::uint64_t weights = tile_descriptor(s.weights(n), 1024);
    LATHE_UNROLL
    for (int c = 0; c < 8; ++c) {
      const int half = c / 4, m = c % 4;
      Operand& a = operands[c % kOperands];
      if (c % kSame == 0) choose(c + kSame);
      values.make(4 * group + m, half, words[c & 1], scales[c / kSame & 1], a);
      if (c < 6) values.load(4 * group + (c + 2) % 4, (c + 2) / 4, words[c & 1]);
      wgmma_fence();
      mma_m64_f16_rows(sums[m], a[0], weights + static_cast<unsigned>(half * 4), true);
      mma_m64_f16_rows(sums[m], a[1], weights + static_cast<unsigned>(half * 4 + 2), true);
      wgmma_commit();
      // ptxas serializes products after a wait for none.
      if (c >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    barrier_arrive(s.ring().empty(n));
  }

  __device__ void hide(float (&d)[32], unsigned n, int limit) const {
    const std::uint64_t seen = load_shared_u64(s.ring().mask(n));
    const int key = warp * 16 + lane / 4;
    hide_turned_keys(d, seen, key);
    if (!seldom(limit < kLatentTile)) return;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const std::uint64_t rows = load_shared_u64(s.rows() + 4u * static_cast<unsigned>(line(j, 0)));
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int sees = limit + static_cast<int>(rows >> 32 * i);
        if (key >= sees) d[4 * j + i] = kNoKey;
        if (key + 8 >= sees) d[4 * j + 2 + i] = kNoKey;
      }
    }
  }

  __device__ float2 reference(int j) const {
    return load_float2(s.references() + 4u * static_cast<unsigned>(line(j, 0)));
  }
  /// Raises the references of lines that have outgrown them.
  __device__ __forceinline__ void raise(const float (&d)[32], unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
        for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
        if (lane < 4) {
          store_float(s.columns(group) + static_cast<std::uint32_t>(warp * 256 + line(j, i) * 4),
                      m * p.scale);
        }
      }
    }
    sync();
    if (thread() < W::kLines) {
      const auto at = 4u * static_cast<unsigned>(thread());
      const std::uint32_t column = s.columns(group) + at;
      const float m = fmaxf(fmaxf(load_float(column), load_float(column + 256)),
                            fmaxf(load_float(column + 512), load_float(column + 768)));
      const float was = load_float(s.references() + at);
      const bool rises = m > was + kMostWeight;
      const float to = m - kFirstWeight;
      store_float(s.factors(n) + at, rises ? exp2_fast(was - to) : 1.f);
      if (rises) store_float(s.references() + at, to);
    }
    sync();
    scale_totals(n);
  }

  /// Scores of tile n to weights in shared memory.
  __device__ __forceinline__ void weigh(float (&d)[32], unsigned n, int limit) {
    forget();
    float2 references[8];
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) references[j] = reference(j);
    make_scales<Format>(s.ring().keys(n), s.scales(n), warp, lane);
    hide(d, n, limit);
    float most = kNoKey;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 r = references[j];
      most = fmaxf(most, fmaf(fmaxf(d[4 * j], d[4 * j + 2]), p.scale, -r.x));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j + 1], d[4 * j + 3]), p.scale, -r.y));
    }
    const bool rises = group_any(W::kFirstGroup + group, 128, most > kMostWeight);
    if (seldom(rises)) {
      raise(d, n);
      LATHE_UNROLL
      for (int j = 0; j < 8; ++j) references[j] = reference(j);
    }
    if (thread() == 0) store_shared_u32(s.risen(n), rises);
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    std::uint32_t packed[4];
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 r = references[j];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        d[4 * j + i] = exp2_fast(fmaf(d[4 * j + i], p.scale, (i & 1) == 0 ? -r.x : -r.y));
      }
      packed[2 * (j & 1)] = pack_f16(d[4 * j], d[4 * j + 1]);
      packed[2 * (j & 1) + 1] = pack_f16(d[4 * j + 2], d[4 * j + 3]);
      if (j & 1) {
        store_matrices_turned(swizzled(s.weights(n), 8 * (j - 1 + lane / 16) + row, chunk),
                              packed[0], packed[1], packed[2], packed[3]);
      }
    }
    fence_async_proxy();
    barrier_arrive(s.weighed(n));
    add_totals(d);
  }

  /// All tiles of the item of these facts.
  __device__ __forceinline__ void tiles(std::uint32_t facts) {
    float d[32];
    const LatentItemFacts item = LatentItemFacts::load(facts);
    const int end = item.tiles;
    unsigned n = static_cast<unsigned>(item.tile) - 2;
    // Both groups run the same code, so that it stays in the instruction cache: a step adds tile t and
    // then makes the scores of the own tile after the next one, or the weights of the next one.
    LATHE_ROLLED
    for (int t = -2; t < end; ++t, ++n) {
      if (t >= 0) add(n);
      if ((t & 1) == group && t + 2 < end) {
        score(d, n + 2);
        wgmma_wait<0>();
        wgmma_pin(d);
      } else {
        if ((t & 1) != group && t + 1 >= 0 && t + 1 < end) {
          weigh(d, n + 1, LatentItemFacts::load_limit(facts) - (t + 1) * kLatentTile);
        }
        wgmma_wait<0>();
        pin_sums();
      }
      if (t + 4 == end + group) barrier_arrive(s.q_empty());
    }
  }

  /// Rows of a bf16 tile of values stand in the order of dimensions: makes row g dimension 2 g and row g + 8
  /// 2 g + 1, as fp8 ones are.
  __device__ __forceinline__ void order(float (&tile)[32]) const {
    // Dimensions 0 to 7 are the first row's, of lanes g; so lanes of 0 to 3 get those, the others the second
    // row's.
    const int from = (lane >> 2) * 2 % 8 * 4 + (lane & 3);
    const bool second = lane >= 16;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& a = tile[4 * j + e];
        float& b = tile[4 * j + 2 + e];
        const auto low = static_cast<std::uint32_t>(from);
        const float a0 = shuffle(a, low), b0 = shuffle(b, low);
        const float a1 = shuffle(a, low + 4), b1 = shuffle(b, low + 4);
        a = second ? b0 : a0;
        b = second ? b1 : a1;
      }
    }
  }

  __device__ __forceinline__ void finish(const LatentItemFacts& item) {
    forget();
    LATHE_UNROLL
    for (int j = 0; j < 2; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float t = total[j][i] + shuffle_xor(total[j][i], 4);
        if ((lane & 4) == 0) {
          store_float(
              s.columns(group) + static_cast<std::uint32_t>(warp * 256 + (own_line(j) + i) * 4), t);
        }
      }
    }
    sync();
    group_sync(W::kBothGroups, 256);
    const bool split = item.number >= 0;
    if (thread() < W::kLines) {
      const auto at = 4u * static_cast<unsigned>(thread());
      const std::int32_t l = item.first + thread();
      float sum = 0;
      LATHE_UNROLL
      for (std::uint32_t w = 0; w < 4; ++w) {
        sum += load_float(s.columns(0) + 256 * w + at) + load_float(s.columns(1) + 256 * w + at);
      }
      const float lse2 = sum > 0 ? load_float(s.references() + at) + log2_fast(sum) : kNoKey;
      float factor = sum > 0 ? p.value_scale / sum : 0.f;
      std::int64_t place = -1;
      if (l < item.lines) {
        const auto r = static_cast<std::int32_t>(load_shared_u32(s.rows() + at));
        const std::int32_t head = l - r * p.heads;
        place = (item.row + r) * p.out_stride + std::int64_t{head} * W::kValues;
        if (split) {
          if (group == 0) {
            p.part_lse[std::int64_t{item.number} * (p.tiles * W::kLines) + l] = lse2;
          }
        } else {
          if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
          constexpr float kLn2 = 0.6931471805599453f;
          if (group == 0 && p.lse != nullptr) {
            p.lse[(item.row + r) * p.lse_stride + head] = lse2 * kLn2;
          }
        }
      }
      store_float(s.outputs(group) + at, factor);
      store_shared_u64(s.places(group) + 2 * at, static_cast<std::uint64_t>(place));
    }
    sync();
    float last[32];
    LATHE_UNROLL
    for (int i = 0; i < 32; ++i) last[i] = sums[3][i];
    if constexpr (Format::kFp8 < kValueTiles) {
      if (group == 1) order(last);
    }
    if (split) {
      float4* to =
          part_chunks(p, W::kLines, item.number, item.first / W::kLines) + group * 4096 + thread();
      LATHE_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int j = i / 2, e = i % 2;
        const float factor = load_float(s.outputs(group) + 4u * static_cast<unsigned>(line(j, e)));
        LATHE_UNROLL
        for (int m = 0; m < 4; m += 2) {
          const float(&a)[32] = sums[m], (&b)[32] = m == 2 ? last : sums[m + 1];
          to[(m * 8 + i) * 128] = {a[4 * j + e] * factor, a[4 * j + 2 + e] * factor,
                                   b[4 * j + e] * factor, b[4 * j + 2 + e] * factor};
        }
      }
      return;
    }
    LATHE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const int j = i / 2, e = i % 2;
      const auto at = static_cast<std::uint32_t>(line(j, e));
      const auto place = static_cast<std::int64_t>(load_shared_u64(s.places(group) + 8 * at));
      if (place < 0) continue;
      const float factor = load_float(s.outputs(group) + 4 * at);
      std::uint16_t* to = p.out + place + group * 256 + warp * 16 + lane / 4 * 2;
      LATHE_UNROLL
      for (int m = 0; m < 4; ++m) {
        const float(&a)[32] = m == 3 ? last : sums[m];
        *reinterpret_cast<std::uint32_t*>(to + 64 * m) =
            pack_bf16(a[4 * j + e] * factor, a[4 * j + 2 + e] * factor);
      }
    }
  }

  __device__ __forceinline__ void run() {
    // Where an item's facts lie is all that is kept from item to item.
    for (std::uint32_t facts = s.facts();; facts = s.facts() + s.other_facts() - facts) {
      barrier_wait(s.q_full(), facts != s.facts());
      const LatentItemFacts item = LatentItemFacts::load(facts);
      if (item.tiles == 0) return;
      begin(item);
      tiles(facts);
      finish(LatentItemFacts::load(facts));
    }
  }
};

template <class Format>
static __global__ void __launch_bounds__(WideFp8<Format>::kThreads, 1)
    latent_wide_fp8_kernel(const __grid_constant__ LatentParams p) {
  using W = WideFp8<Format>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const WideFp8Shared<Format> s{shared_address(shared_bytes)};
  const typename W::Ring ring = s.ring();
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), W::kQueryThreads + 1);
    barrier_init(s.q_empty(), 256);
    ring.init(256);
    for (unsigned b = 0; b < W::Ring::kBuffers; ++b) barrier_init(s.weighed(b), 128);
    barriers_visible();
  }
  sync_block();
  // By shuffle(), as the compiler then knows that a warp's threads go the same way.
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == 2) {
    lower_registers<W::kFillRegisters>();
    const std::int32_t tile = static_cast<std::int32_t>(blockIdx.x) % p.tiles;
    const std::int32_t worker = static_cast<std::int32_t>(blockIdx.x) / p.tiles;
    if (thread < 64) {
      copy_rows<Format>(ring, thread / 32, thread % 32);
    } else if (thread < 96) {
      tell_items<Format, W::kLines, W::kQueryThreads, 2>(p, s.q, s.facts(), s.q_full(), s.q_empty(),
                                                         worker, tile, thread - 64);
    } else {
      name_rows<Format, W::kLines>(p, ring, worker, tile, thread - 96);
      write_keyless(p, thread - 96);
    }
  } else {
    raise_registers<W::kGroupRegisters>();
    WideFp8Group<Format>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
