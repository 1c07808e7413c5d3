// Latent attention on fp8 caches with few lines: a block does 8, 16 or 32.
//
// Keys stay fp8 in shared memory, and two multiplying groups make their left operands in registers, as for 64
// lines (latent_wide_fp8.cuh). Each takes every other tile of 64 keys, all by itself, with sums and references of
// its own; they meet at an item's end.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/latent/latent_hide.cuh"
#include "kernels/cuda/sm90/latent/latent_parts.cuh"
#include "kernels/cuda/sm90/latent/latent_reference.cuh"
#include "kernels/cuda/sm90/latent/latent_row_fill.cuh"

namespace lathe::cuda {

template <class Format, int kTileLines>
struct NarrowFp8 {
  static constexpr int kLines = kTileLines;
  // More groups would hold more tiles, which memory could be filling.
  static constexpr int kGroups = 2, kGroupRegisters = 224;
  static constexpr int kFillRegisters = 48;
  static_assert(kGroups * kGroupRegisters + kFillRegisters <= 504,
                "setmaxnreg would wait for ever");
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kValues = 512;
  static constexpr int kTileQueries = kLines * 128;  // bytes of 64 dimensions
  static constexpr int kBuffers = 4;
  // Of tiles of listed rows. With more under way blocks get uneven shares of memory, and the slowest decides; the
  // products of 32 lines take too long for less.
  static constexpr int kListedWindow = kLines == 32 ? kBuffers : 3;
  using Ring = LatentRing<Format, kBuffers>;
  static_assert(kBuffers % kGroups == 0,
                "a group would take the tile before its own in a buffer for its own");
  // Half of a group's sums goes through its last tile.
  static_assert(kLines * kValues * 4 / 2 <= LatentRows<Format>::kTileBytes);

  static constexpr int kWeightsAt = kDimTiles<Format> * kTileQueries;
  static constexpr int kKeysAt = kWeightsAt + kGroups * kTileQueries;
  static constexpr int kScalesAt = kKeysAt + kBuffers * LatentRows<Format>::kTileBytes;
  static constexpr int kSmallAt = kScalesAt + kBuffers * LatentRows<Format>::kScaleBytes;
  static constexpr int kColumns = 4 * kLines * 4;  // bytes of a group's
  static constexpr int kColumnsAt = (16 + 32 * kBuffers + 15) / 16 * 16 + 64;
  static constexpr int kNamesAt = kSmallAt + kColumnsAt + kGroups * (kLines * 4 + kColumns);
  static constexpr int kSharedBytes = kNamesAt + LatentNames<Format>::kBytes;
  static_assert(kSharedBytes <= 232448 && kKeysAt % 16 == 0 && kSmallAt % 16 == 0 &&
                kNamesAt % 16 == 0);

  // Named barriers; the groups have one each.
  static constexpr int kFirstGroup = 1, kAllGroups = 1 + kGroups;
};

template <class Format, int kTileLines>
struct NarrowFp8Shared {
  using N = NarrowFp8<Format, kTileLines>;
  std::uint32_t q;  // the first of all

  __device__ std::uint32_t small(int at) const {
    return q + static_cast<std::uint32_t>(N::kSmallAt + at);
  }
  __device__ typename N::Ring ring() const {
    return {q + N::kKeysAt, small(16), small(16 + 8 * N::kBuffers), small(16 + 24 * N::kBuffers),
            q + N::kNamesAt};
  }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  __device__ std::uint32_t scales(unsigned n) const {
    return q + N::kScalesAt + N::Ring::buffer(n) * LatentRows<Format>::kScaleBytes;
  }
  __device__ std::uint32_t facts() const {  // of items in turns
    return small(N::kColumnsAt - 2 * static_cast<int>(LatentItemFacts::kBytes));
  }
  __device__ std::uint32_t other_facts() const { return facts() + LatentItemFacts::kBytes; }
  __device__ std::uint32_t weights(int group) const {  // f16 [lines, 64 keys], swizzled
    return q + static_cast<std::uint32_t>(N::kWeightsAt + group * N::kTileQueries);
  }
  __device__ std::uint32_t references(int group) const {  // [lines] f32
    return small(N::kColumnsAt + group * N::kLines * 4);
  }
  __device__ std::uint32_t columns(int group) const {  // [4 warps][lines] f32: maxima, then sums
    return small(N::kColumnsAt + N::kGroups * N::kLines * 4 + group * N::kColumns);
  }
};

/// A multiplying group. Of the scores its thread has keys `key` and `key` + 8 of the tile; of both
/// products lines 8 j + 2 (lane % 4) + i, which are `line(j, i)`.
template <class Format, int kTileLines>
struct NarrowFp8Group {
  using N = NarrowFp8<Format, kTileLines>;
  using Ring = typename N::Ring;
  using Operand = std::uint32_t[2][4];
  // Sets of registers for left operands.
  static constexpr int kOperands = 3;
  static constexpr int kSame = LatentRows<Format>::kSame;
  static constexpr int kLines = kTileLines, kEights = kLines / 8;
  static constexpr int kHalf = kValueTiles / 2;  // tiles of 64 dimensions

  const LatentParams& p;
  const NarrowFp8Shared<Format, kTileLines>& s;
  int group, warp, lane;
  float sums[8][kLines / 2];  // of 64 value dimensions each
  float total[kEights][2];    // of this thread's keys
  Operand operands[kOperands];

  __device__ NarrowFp8Group(const LatentParams& params,
                            const NarrowFp8Shared<Format, kTileLines>& shared, int which,
                            int thread)
      : p(params), s(shared), group(which), warp(thread / 32), lane(thread % 32) {}

  /// Else addresses are made before an item's tiles, and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int line(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(N::kFirstGroup + group, 128); }
  __device__ std::uint32_t reference(int l) const {
    return s.references(group) + static_cast<std::uint32_t>(4 * l);
  }
  __device__ std::uint32_t column(int g, int w, int l) const {
    return s.columns(g) + static_cast<std::uint32_t>((w * kLines + l) * 4);
  }

  __device__ void begin() {
    arrange_queries<Format, kLines, N::kGroups * 128>(s.q, group * 128 + warp * 32 + lane);
    group_sync(N::kAllGroups, N::kGroups * 128);
    // All have read the item before's.
    if (warp == 0 && lane < kLines) store_float(reference(lane), kNoReference);
    sync();
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kLines / 2; ++i) sums[t][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) total[j][0] = total[j][1] = 0;
  }

  __device__ __forceinline__ void score(float (&d)[kLines / 2], unsigned n) {
    forget();
    KeyOperand<Format> keys(s.ring().keys(n), warp, lane);
    std::uint32_t words[2][4];
    keys.fetch(0);
    keys.load(0, words[0]);
    keys.load(1, words[1]);
    constexpr int kFp8 = 2 * Format::kFp8, kWide = 2 * Format::kWide;
    const std::uint64_t queries = tile_descriptor(s.q, 1024);
    const auto q = [&](int c) {
      return queries + static_cast<unsigned>((c / 2 * N::kTileQueries + c % 2 * 64) / 16);
    };
    LATHE_UNROLL
    for (int c = 0; c < kFp8; ++c) {
      if (c % (2 * kSame) == 0) {
        keys.choose();
        if (c + 2 * kSame < kFp8) keys.fetch(c / (2 * kSame) + 1);
      }
      Operand& a = operands[c % kOperands];
      keys.make(words[c & 1], a);
      if (c + 2 < kFp8) keys.load(c + 2, words[c & 1]);
      multiply_chunk<false>(d, a, q(c), c > 0);
      // ptxas serializes products after a wait for none.
      if (c >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    LATHE_UNROLL
    for (int c = 0; c < kWide; ++c) {
      Operand& a = operands[(kFp8 + c) % kOperands];
      keys.make_wide(c, a);
      multiply_chunk<true>(d, a, q(kFp8 + c), true);
      wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    wgmma_pin(d);
  }

  /// Sums += V^T P^T of tile n. Frees the halves of its buffer, but where it is the group's last of its item. Nobody
  /// else has read them: each thread stands for one of each group.
  __device__ __forceinline__ void add(unsigned n, bool last) {
    forget();
    const ValueOperand<Format> values{s.ring().keys(n), s.scales(n), warp, lane};
    // Words are loaded two operands ahead, scales one that needs others.
    std::uint32_t words[2][4], scales[2][4] = {};
    values.load(0, 0, words[0]);
    values.load(1, 0, words[1]);
    values.choose(0, 0, scales[0]);
    const std::uint64_t weights = tile_descriptor(s.weights(group), 1024);
    LATHE_UNROLL
    for (int c = 0; c < 16; ++c) {
      const int half = c / 8, m = c % 8, next = c + kSame;
      if (c == 8) barrier_arrive_if(!last, s.ring().empty(n, 0), N::kGroups);
      Operand& a = operands[c % kOperands];
      if (c % kSame == 0 && next < 16) {
        values.choose(next % 8, next / 8, scales[next / kSame & 1]);
      }
      values.make(m, half, words[c & 1], scales[c / kSame & 1], a);
      if (c < 14) values.load((c + 2) % 8, (c + 2) / 8, words[c & 1]);
      multiply_chunk<false>(sums[m], a, weights + static_cast<unsigned>(half * 4), true);
      if (c >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int m = 0; m < 8; ++m) wgmma_pin(sums[m]);
    barrier_arrive_if(!last, s.ring().empty(n, 1), N::kGroups);
  }

  /// limit: keys that the unit's first row sees, counted from the tile's first; the row after sees one more.
  __device__ void hide(float (&d)[kLines / 2], unsigned n, int limit) const {
    const int key = warp * 16 + lane / 4;
    hide_turned_keys(d, load_shared_u64(s.ring().mask(n)), key);
    hide_turned_after(d, p, limit, key, lane);
  }

  /// A line's reference after the tile, `was` before it.
  __device__ float raised(int l, float was) const {
    const float m = fmaxf(fmaxf(load_float(column(group, 0, l)), load_float(column(group, 1, l))),
                          fmaxf(load_float(column(group, 2, l)), load_float(column(group, 3, l))));
    return m > was + kMostWeight ? m - kFirstWeight : was;
  }
  /// Raises the references of lines that have outgrown them; the products must be done.
  __device__ void raise(const float (&d)[kLines / 2]) {
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
        for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
        if (lane < 4) store_float(column(group, warp, line(j, i)), m * p.scale);
      }
    }
    sync();
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float was = load_float(reference(line(j, i))), m = raised(line(j, i), was);
        if (m == was) continue;
        const float factor = exp2_fast(was - m);
        total[j][i] *= factor;
        LATHE_UNROLL
        for (int t = 0; t < 8; ++t) {
          sums[t][4 * j + i] *= factor;
          sums[t][4 * j + 2 + i] *= factor;
        }
      }
    }
    sync();
    if (warp == 0 && lane < kLines) {
      store_float(reference(lane), raised(lane, load_float(reference(lane))));
    }
    sync();
  }

  /// Scores to weights in shared memory.
  __device__ void weigh(const float (&d)[kLines / 2]) {
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    std::uint32_t packed[4];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      const float2 r = load_float2(reference(line(j, 0)));
      float w[4];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        w[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, (i & 1) == 0 ? -r.x : -r.y));
      }
      total[j][0] += w[0] + w[2];
      total[j][1] += w[1] + w[3];
      packed[2 * (j & 1)] = pack_f16(w[0], w[1]);
      packed[2 * (j & 1) + 1] = pack_f16(w[2], w[3]);
      if constexpr (kLines == 8) {
        store_matrices_turned(swizzled(s.weights(group), row, chunk), packed[0], packed[1]);
      } else if (j & 1) {
        store_matrices_turned(swizzled(s.weights(group), 8 * (j - 1 + lane / 16) + row, chunk),
                              packed[0], packed[1], packed[2], packed[3]);
      }
    }
    fence_async_proxy();
  }

  __device__ __forceinline__ void tile(unsigned n, int limit, bool last) {
    float d[kLines / 2];
    barrier_wait(s.ring().full(n), Ring::parity(n));
    score(d, n);
    make_scales<Format>(s.ring().keys(n), s.scales(n), warp, lane);
    hide(d, n, limit);
    float most = kNoKey;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      const float2 r = load_float2(reference(line(j, 0)));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j], d[4 * j + 2]), p.scale, -r.x));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j + 1], d[4 * j + 3]), p.scale, -r.y));
    }
    // From here on no product of the group reads the weights before.
    if (seldom(group_any(N::kFirstGroup + group, 128, most > kMostWeight))) raise(d);
    weigh(d);
    sync();
    add(n, last);
  }

  /// Sums of lines over keys, for the others.
  __device__ void tell_totals() {
    forget();
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float t = total[j][i];
        for (int l = 4; l < 32; l *= 2) t += shuffle_xor(t, l);
        if (lane < 4) store_float(column(group, warp, line(j, i)), t);
      }
    }
    sync();  // all of the group have read the last tile
  }
  /// Where a thread's values of 64 dimensions and two of its lines lie on their way to the other group, which has
  /// the same ones in the thread of the same number. keys: of the last tile of the group that writes.
  __device__ std::uint32_t place(std::uint32_t keys, int t, int j) const {
    return keys + static_cast<std::uint32_t>(((t * kEights + j) * 128 + warp * 32 + lane) * 16);
  }
  /// Sums of the half whose first tile is kFirst.
  template <int kFirst>
  __device__ void deposit(std::uint32_t keys) const {
    LATHE_UNROLL
    for (int t = 0; t < kHalf; ++t) {
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        const float* v = sums[kFirst + t] + 4 * j;
        store_shared(place(keys, t, j), float_to_bits(v[0]), float_to_bits(v[1]),
                     float_to_bits(v[2]), float_to_bits(v[3]));
      }
    }
  }
  /// What a lane knows of the outputs of line `lane`.
  struct LineOutputs {
    std::int64_t place = 0;  // where they begin, in elements
    float sink = 0;
    bool sinks = false;
    float factors[N::kGroups];  // to be multiplied into the groups' sums
    float lse2 = 0;
  };
  __device__ LineOutputs find_outputs(const LatentItemFacts& item) const {
    LineOutputs o;
    const int l = lane < kLines ? lane : 0;
    const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
    const std::int32_t head = l - r * p.heads;
    o.place = (item.row + r) * p.out_stride + std::int64_t{head} * N::kValues;
    o.sinks = p.sink != nullptr && item.number < 0;
    if (o.sinks && l < item.lines) o.sink = p.sink[head];
    return o;
  }
  /// When all groups have told their totals.
  __device__ void settle(LineOutputs& o) const {
    const int l = lane < kLines ? lane : 0;
    float most = kNoReference;
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) {
      o.factors[g] = load_float(s.references(g) + static_cast<std::uint32_t>(4 * l));
      most = fmaxf(most, o.factors[g]);
    }
    float all = 0;
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) {
      o.factors[g] = exp2_fast(o.factors[g] - most);
      float sum = 0;
      LATHE_UNROLL
      for (int w = 0; w < 4; ++w) sum += load_float(column(g, w, l));
      all += sum * o.factors[g];
    }
    o.lse2 = all > 0 ? most + log2_fast(all) : kNoKey;
    float factor = all > 0 ? p.value_scale / all : 0.f;
    if (o.sinks) factor *= sink_factor(o.sink, o.lse2);
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) o.factors[g] *= factor;
  }
  __device__ void store_lse(const LatentItemFacts& item, const LineOutputs& o) const {
    if (lane >= kLines || lane >= item.lines) return;
    if (item.number >= 0) {
      p.part_lse[std::int64_t{item.number} * kLines + lane] = o.lse2;
    } else if (p.lse != nullptr) {
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(lane)));
      constexpr float kLn2 = 0.6931471805599453f;
      p.lse[(item.row + r) * p.lse_stride + lane - r * p.heads] = o.lse2 * kLn2;
    }
  }
  /// Rows g and g + 8 of a warp's 16 dimensions to rows 2 g and 2 g + 1.
  __device__ void pair_rows(float& a, float& b) const {
    const int from = (lane / 4 * 8 + (lane & 3)) & 31;
    const float a0 = shuffle(a, from), a1 = shuffle(a, from + 4);
    const float b0 = shuffle(b, from), b1 = shuffle(b, from + 4);
    a = lane < 16 ? a0 : b0;
    b = lane < 16 ? a1 : b1;
  }
  /// Adds this group's sums of the half that begins with tile kFirst to what the other one has left there, and stores them.
  template <int kFirst>
  __device__ void collect(const LatentItemFacts& item, const LineOutputs& own, std::uint32_t keys) {
    const bool split = item.number >= 0;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float own_factors[2], other_factors[2];
      std::uint16_t* out[2];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        own_factors[i] = shuffle(own.factors[kFirst > 0], line(j, i));
        other_factors[i] = shuffle(own.factors[kFirst == 0], line(j, i));
        out[i] = p.out + shuffle(own.place, line(j, i)) + warp * 16 + lane / 4 * 2;
      }
      LATHE_UNROLL
      for (int t = 0; t < kHalf; t += 2) {
        float v[2][4];  // of a line: two values of a tile, and two of the next
        LATHE_UNROLL
        for (int k = 0; k < 2; ++k) {
          const float4 x = load_floats(place(keys, t + k, j));
          const float* y = sums[kFirst + t + k] + 4 * j;
          v[0][2 * k] = fmaf(y[0], own_factors[0], x.x * other_factors[0]);
          v[1][2 * k] = fmaf(y[1], own_factors[1], x.y * other_factors[1]);
          v[0][2 * k + 1] = fmaf(y[2], own_factors[0], x.z * other_factors[0]);
          v[1][2 * k + 1] = fmaf(y[3], own_factors[1], x.w * other_factors[1]);
          if (ValueOperand<Format>::wide(kFirst + t + k)) {
            pair_rows(v[0][2 * k], v[0][2 * k + 1]);
            pair_rows(v[1][2 * k], v[1][2 * k + 1]);
          }
        }
        LATHE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (line(j, i) >= item.lines) continue;
          if (split) {
            const int run = (kFirst + t) * kEights + 2 * j + i;
            part_chunks(p, kLines, item.number, 0)[run * 128 + warp * 32 + lane] = {
                v[i][0], v[i][1], v[i][2], v[i][3]};
          } else {
            auto* to = reinterpret_cast<std::uint32_t*>(out[i] + 64 * (kFirst + t));
            to[0] = pack_bf16(v[i][0], v[i][1]);
            to[32] = pack_bf16(v[i][2], v[i][3]);
          }
        }
      }
    }
  }
  /// What group `kGroup` does of finish(). end: one past the item's last tile.
  template <int kGroup>
  __device__ __forceinline__ void put_together(const LatentItemFacts& item, unsigned end) {
    constexpr int kOwn = kGroup * kHalf, kOther = kHalf - kOwn;
    LineOutputs own = find_outputs(item);
    deposit<kOther>(s.ring().keys(end - 2 + kGroup));
    group_sync(N::kAllGroups, N::kGroups * 128);
    settle(own);
    if (kGroup == 0 && warp == 0) store_lse(item, own);
    collect<kOwn>(item, own, s.ring().keys(end - 1 - kGroup));
  }
  /// Puts the groups' sums together, each group those of one half of the values, and stores them.
  __device__ void finish(const LatentItemFacts& item, unsigned end) {
    static_assert(N::kGroups == 2);
    tell_totals();
    if (group == 0) {
      put_together<0>(item, end);
    } else {
      put_together<1>(item, end);
    }
    // Copies may write over what this thread has read and written.
    fence_async_proxy();
    for (unsigned g = 1; g <= N::kGroups; ++g) {
      barrier_arrive(s.ring().empty(end - g, 0));
      barrier_arrive(s.ring().empty(end - g, 1));
    }
  }

  __device__ void run() {
    for (std::uint32_t facts = s.facts();; facts = s.facts() + s.other_facts() - facts) {
      barrier_wait(s.q_full(), facts != s.facts());
      const LatentItemFacts item = LatentItemFacts::load(facts);
      if (item.tiles == 0) return;
      begin();
      const auto first = static_cast<unsigned>(item.tile);
      LATHE_ROLLED
      for (int t = group; t < item.tiles; t += N::kGroups) {
        const unsigned n = first + static_cast<unsigned>(t);
        tile(n, LatentItemFacts::load_limit(facts) - t * kLatentTile, t + N::kGroups >= item.tiles);
      }
      barrier_arrive(s.q_empty());
      finish(LatentItemFacts::load(facts), first + static_cast<unsigned>(item.tiles));
    }
  }
};

template <class Format, int kTileLines>
static __global__ void __launch_bounds__(NarrowFp8<Format, kTileLines>::kThreads, 1)
    latent_narrow_fp8_kernel(const __grid_constant__ LatentParams p,
                             const __grid_constant__ CUtensorMap query_map) {
  using N = NarrowFp8<Format, kTileLines>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const NarrowFp8Shared<Format, kTileLines> s{shared_address(shared_bytes)};
  const typename N::Ring ring = s.ring();
  if (threadIdx.x == 0) {
    barrier_init(s.q_full(), kQueryArrivals);
    barrier_init(s.q_empty(), N::kGroups * 128);
    ring.init(N::kGroups * 128);
    barriers_visible();
  }
  sync_block();
  const int group = shuffle(static_cast<int>(threadIdx.x) / 128, 0);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (group == N::kGroups) {
    lower_registers<N::kFillRegisters>();
    const auto worker = static_cast<std::int32_t>(blockIdx.x);
    if (thread < 64) {
      copy_rows<Format>(ring, p.once, p.dense ? N::kBuffers : N::kListedWindow, thread / 32,
                        thread % 32);
    } else if (thread < 96) {
      tell_items<Format, kTileLines, N::kGroups>(p, &query_map, s.q, s.facts(), s.q_full(),
                                                 s.q_empty(), worker, 0, thread - 64,
                                                 [](unsigned) {});
    } else {
      LatentNamer<Format, kTileLines, N::kGroups>(p, ring.names, worker, 0, thread - 96).run();
      write_keyless(p, thread - 96);
    }
  } else {
    raise_registers<N::kGroupRegisters>();
    NarrowFp8Group<Format, kTileLines>(p, s, group, thread).run();
  }
  let_next_begin();
}

}  // namespace lathe::cuda
