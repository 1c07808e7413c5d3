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
  // As many as there is room for, beside what is small.
  static constexpr int kBuffers =
      (232448 - 5000 - (kDimTiles<Format> + kGroups) * kTileQueries) /
      (LatentRows<Format>::kTileBytes + LatentRows<Format>::kScaleBytes);
  using Ring = LatentRing<Format, kBuffers>;
  static_assert(kBuffers >= kGroups, "an item's last tiles stay until its end");
  // A group's sums go through its last tile, in so many rounds.
  static constexpr int kRounds = kLines == 32 ? 2 : 1;
  static constexpr int kRoundValues = kValues / kRounds;
  static_assert(kLines * kRoundValues * 4 <= LatentRows<Format>::kTileBytes);

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

  /// Where value dimension `dim` of a round lies on its way out: each group's sums in its last tile's place,
  /// [lines, kRoundValues] f32, shifted so that neither writers nor readers meet in a bank.
  __device__ static std::uint32_t place(std::uint32_t buffer, int l, int dim) {
    return buffer +
           static_cast<std::uint32_t>((l * N::kRoundValues + (dim ^ (l >> 1 & 3) << 3)) << 2);
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
  /// keys: of this group's last tile.
  template <int kRound>
  __device__ void deposit(std::uint32_t keys) {
    forget();
    const int g = lane / 4;
    LATHE_UNROLL
    for (int t = 0; t < 8 / N::kRounds; ++t) {
      constexpr int kFirst = kRound * (8 / N::kRounds);
      // Rows g and g + 8 of a warp's 16 dimensions (latent_rows.cuh).
      const bool wide = ValueOperand<Format>::wide(kFirst + t);
      const int dim = 64 * t + warp * 16 + (wide ? g : 2 * g);
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        LATHE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float a = sums[kFirst + t][4 * j + e], b = sums[kFirst + t][4 * j + 2 + e];
          const std::uint32_t to = place(keys, line(j, e), dim);
          if (wide) {
            store_float(to, a);
            store_float(place(keys, line(j, e), dim + 8), b);
          } else {
            store_float2(to, a, b);
          }
        }
      }
    }
  }
  /// What a lane knows of the outputs of line `lane`.
  struct LineOutputs {
    float factors[N::kGroups];  // to be multiplied into the groups' sums
    std::int64_t place = 0;     // where they begin, in elements
    float lse2 = 0;
  };
  __device__ LineOutputs settle(const LatentItemFacts& item) const {
    LineOutputs o;
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
    const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
    const std::int32_t head = l - r * p.heads;
    const bool mine = l < item.lines;
    if (mine && item.number < 0 && p.sink != nullptr) factor *= sink_factor(p.sink[head], o.lse2);
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) o.factors[g] *= factor;
    o.place = (item.row + r) * p.out_stride + std::int64_t{head} * N::kValues;
    return o;
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
  /// Puts the groups' sums together, always in the same order; a warp takes every so many lines. end: one past
  /// the item's last tile.
  template <int kRound>
  __device__ void gather(const LatentItemFacts& item, unsigned end) {
    const typename N::Ring ring = s.ring();
    deposit<kRound>(ring.keys(end - N::kGroups + static_cast<unsigned>(group)));
    group_sync(N::kAllGroups, N::kGroups * 128);
    const LineOutputs own = settle(item);
    if (kRound == 0 && group == 0 && warp == 0) store_lse(item, own);
    LATHE_ROLLED
    for (int l = group * 4 + warp; l < kLines && l < item.lines; l += 4 * N::kGroups) {
      float factors[N::kGroups];
      LATHE_UNROLL
      for (int g = 0; g < N::kGroups; ++g) factors[g] = shuffle(own.factors[g], l);
      const bool split = item.number >= 0;
      float4* part = part_chunks(p, kLines, split ? item.number : 0, 0) + l * 128;
      std::uint16_t* out = p.out + shuffle(own.place, l);
      LATHE_UNROLL
      for (int dim = 4 * lane; dim < N::kRoundValues; dim += 128) {
        float4 v = {0, 0, 0, 0};
        LATHE_UNROLL
        for (int g = 0; g < N::kGroups; ++g) {
          const float4 x =
              load_floats(place(ring.keys(end - N::kGroups + static_cast<unsigned>(g)), l, dim));
          v.x += x.x * factors[g];
          v.y += x.y * factors[g];
          v.z += x.z * factors[g];
          v.w += x.w * factors[g];
        }
        const int at = kRound * N::kRoundValues + dim;
        if (split) {
          part[at / 4] = v;
        } else {
          *reinterpret_cast<uint2*>(out + at) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
        }
      }
    }
  }
  __device__ void finish(const LatentItemFacts& item, unsigned end) {
    tell_totals();
    gather<0>(item, end);
    if constexpr (N::kRounds == 2) {
      group_sync(N::kAllGroups, N::kGroups * 128);
      gather<1>(item, end);
    }
    // All groups have read all sums, and copies may write over them.
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
      copy_rows<Format>(ring, p.once, thread / 32, thread % 32);
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
