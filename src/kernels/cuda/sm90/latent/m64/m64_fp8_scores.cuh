// The group that makes scores and weights of 64 lines on fp8 keys.
#pragma once

#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8_config.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"

namespace lathe::cuda {

/// Of scores a thread has keys `key` and `key` + 8 of the tile, of lines 8 j + 2 (lane % 4) + i, which are
/// `line(j, i)`. Functions are inlined by force, as products in flight can't be carried through a call.
template <class Format>
struct WideFp8Scores {
  using W = WideFp8<Format>;
  using Ring = typename W::Ring;
  using Operand = std::uint32_t[2][4];
  static constexpr int kOperands = 3;  // sets of registers for left operands
  static constexpr int kWide = 2 * Format::kWide;
  static_assert(kWide < kOperands);
  static constexpr int kSame = LatentRows<Format>::kSame;

  const LatentParams& p;
  const WideFp8Shared<Format>& s;
  int warp, lane;
  float totals[16];  // sums of this thread's weights, of line(j, i) at 2 j + i
  Operand operands[kOperands];
  KeyOperand<Format> keys;  // of the tile that is open
  std::uint32_t words[2][4];
  std::uint64_t queries;  // tile

  __device__ WideFp8Scores(const LatentParams& params, const WideFp8Shared<Format>& shared, int t)
      : p(params),
        s(shared),
        warp(t / 32),
        lane(t % 32),
        keys(0, 0, 0),
        queries(tile_descriptor(shared.q, 1024)) {}

  __device__ int thread() const { return warp * 32 + lane; }
  /// Else addresses are made before an item's tiles, and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int line(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(W::kScoreGroup, 128); }

  __device__ void begin(const LatentItemFacts& item) {
    arrange_queries<Format, W::kLines, 128>(s.q, thread());
    if (thread() < W::kLines) {
      const auto at = 4u * static_cast<unsigned>(thread());
      store_float(s.references() + at, 0);
      store_shared_u32(s.unseen() + at, 1);
      store_shared_u32(s.rows() + at,
                       p.by_heads(static_cast<std::uint32_t>(item.first + thread())));
    }
    if (thread() == 0) store_shared_u32(s.rising(), static_cast<std::uint32_t>(item.tile));
    sync();
    LATHE_UNROLL
    for (float& t : totals) t = 0;
  }

  /// Loads what a tile's first products take: words of keys two operands ahead, scales a block, and the rotary
  /// part, which needs no making.
  __device__ __forceinline__ void open(unsigned n) {
    keys = KeyOperand<Format>(s.ring().keys(n), warp, lane);
    keys.fetch(0);
    keys.load(0, words[0]);
    keys.load(1, words[1]);
    LATHE_UNROLL
    for (int c = 0; c < kWide; ++c) keys.make_wide(c, operands[1 + c]);
  }
  /// Issues S^T of the tile that is open; the rotary part comes after the first 32 dimensions.
  __device__ __forceinline__ void score(float (&d)[32]) {
    constexpr int kFp8 = 2 * Format::kFp8;
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
      multiply_chunk<false>(d, a, q(c), c > 0);
      // What comes next is made beside these, in another operand's registers.
      wgmma_wait<kOperands - 1>();
      LATHE_UNROLL
      for (int w = 0; c == 0 && w < kWide; ++w) {
        multiply_chunk<true>(d, operands[1 + w], q(kFp8 + w), true);
        wgmma_wait<kOperands - 1>();
      }
    }
  }

  __device__ void scale_totals(unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 f = load_float2(s.factors(n) + 4u * static_cast<unsigned>(line(j, 0)));
      totals[2 * j] *= f.x;
      totals[2 * j + 1] *= f.y;
    }
  }

  /// Scores of keys that lines don't see. limit: of the unit's first row, counted from the tile's first key.
  __device__ void hide(float (&d)[32], unsigned n, int limit) const {
    const int key = warp * 16 + lane / 4;
    hide_turned_keys(d, load_shared_u64(s.ring().mask(n)), key);
    if (limit >= kLatentTile) return;
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
  /// Raises the references of lines that have outgrown them or have none. d: scores less references.
  __device__ __forceinline__ void raise(float (&d)[32], unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
        for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
        if (lane < 4) {
          store_float(s.columns() + static_cast<std::uint32_t>(warp * 256 + line(j, i) * 4), m);
        }
      }
    }
    sync();
    bool unseen = false;
    if (thread() < W::kLines) {
      const auto at = 4u * static_cast<unsigned>(thread());
      const std::uint32_t column = s.columns() + at;
      const float m = fmaxf(fmaxf(load_float(column), load_float(column + 256)),
                            fmaxf(load_float(column + 512), load_float(column + 768)));
      // A line's first reference, which may be low, has nothing to scale.
      unseen = load_shared_u32(s.unseen() + at) != 0;
      const bool first = unseen && m > kNoKey;
      if (first) store_shared_u32(s.unseen() + at, 0);
      unseen = unseen && !first;
      const bool rises = first || m > kMostWeight;
      const float up = rises ? m - kFirstWeight : 0;
      store_float(s.factors(n) + at, rises && !first ? exp2_fast(-up) : 1.f);
      store_float(s.references() + at, load_float(s.references() + at) + up);
      store_float(column, up);
    }
    const bool again = group_any(W::kScoreGroup, 128, unseen);
    if (thread() == 0) {
      store_shared_u32(s.risen(n), n + 1);
      if (again) store_shared_u32(s.rising(), n + 1);
    }
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 up = load_float2(s.columns() + 4u * static_cast<unsigned>(line(j, 0)));
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) d[4 * j + i] -= (i & 1) == 0 ? up.x : up.y;
    }
    scale_totals(n);
    sync();  // columns are free
  }

  /// Scores of tile n to weights in shared memory. Where references rise, which warps tell one another beside
  /// making weights, these are made again.
  __device__ __forceinline__ void weigh(float (&d)[32], const float2 (&references)[8], unsigned n,
                                        bool rises, bool more) {
    float most[4] = {kNoKey, kNoKey, kNoKey, kNoKey};
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 r = references[j];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        d[4 * j + i] = fmaf(d[4 * j + i], p.scale, (i & 1) == 0 ? -r.x : -r.y);
        most[i] = fmaxf(most[i], d[4 * j + i]);
      }
    }
    const float largest = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    if (seldom(largest > kMostWeight)) store_shared_u32(s.risen(n), n + 1);
    barrier_arrive(s.voted());
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    const std::uint32_t to = swizzled(s.weights(n), 8 * (lane / 16) + row, chunk);
    float tile[8];  // of the first 32 lines, whose weights may have to be made again
    std::uint32_t packed[4];
    const auto make = [&](int j, float& even, float& odd) {
      float w[4];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) w[i] = exp2_fast(d[4 * j + i]);
      packed[2 * (j & 1)] = pack_f16(w[0], w[1]);
      packed[2 * (j & 1) + 1] = pack_f16(w[2], w[3]);
      if (j & 1) {
        store_matrices_turned(to + static_cast<std::uint32_t>((j - 1) * 1024), packed[0], packed[1],
                              packed[2], packed[3]);
      }
      even += w[0] + w[2];
      odd += w[1] + w[3];
    };
    const unsigned next = more ? n + 1 : n;
    LATHE_ROLLED
    for (;;) {
      if (seldom(rises)) raise(d, n);
      LATHE_UNROLL
      for (int j = 0; j < 4; ++j) {
        tile[2 * j] = tile[2 * j + 1] = 0;
        make(j, tile[2 * j], tile[2 * j + 1]);
      }
      barrier_wait(s.voted(), n & 1);
      const std::uint32_t risen = load_shared_u32(s.risen(n));
      barrier_wait(s.ring().full(next), Ring::parity(next));  // meanwhile
      if (!seldom(!rises && risen == n + 1)) break;
      rises = true;
    }
    // The next tile's first operands are loaded beside the rest.
    open(next);
    LATHE_UNROLL
    for (int j = 4; j < 8; ++j) make(j, totals[2 * j], totals[2 * j + 1]);
    fence_async_proxy();
    barrier_arrive(s.weighed(n));
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) totals[i] += tile[i];
  }

  /// All tiles of the item of these facts.
  __device__ __forceinline__ void tiles(std::uint32_t facts) {
    float d[32];
    unsigned n = LatentItemFacts::load_tile(facts);
    barrier_wait(s.ring().full(n), Ring::parity(n));
    open(n);
    LATHE_ROLLED
    for (bool more = true; more; ++n) {
      forget();
      score(d);
      forget();
      // Loaded while the last products run.
      float2 references[8];
      LATHE_UNROLL
      for (int j = 0; j < 8; ++j) references[j] = reference(j);
      const bool masked = load_shared_u64(s.ring().mask(n)) != ~std::uint64_t{0};
      const bool rises = load_shared_u32(s.rising()) == n;
      // Read again, as registers are few.
      const LatentItemFacts item = LatentItemFacts::load(facts);
      const int past = static_cast<int>(n) - item.tile;
      const int limit = item.limit - past * kLatentTile;
      more = past + 1 < item.tiles;
      wgmma_wait<0>();
      wgmma_pin(d);
      barrier_arrive(s.scored(n));
      if (!more) barrier_arrive(s.q_empty());
      if (seldom(masked || limit < kLatentTile)) hide(d, n, limit);
      weigh(d, references, n, rises, more);
    }
  }

  /// Gives half of the first 2 kMine totals to the lane that has the same lines, and adds its other half.
  template <int kMine>
  __device__ __forceinline__ void halve_totals() {
    const bool upper = (lane & 2 * kMine) != 0;
    LATHE_UNROLL
    for (int i = 0; i < kMine; ++i) {
      const float low = totals[i], high = totals[kMine + i];
      totals[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, 2 * kMine);
    }
  }
  /// Tells the groups of values the sums of lines' weights and what they refer to.
  __device__ __forceinline__ void finish(std::uint32_t turn) {
    forget();
    halve_totals<8>();
    halve_totals<4>();
    halve_totals<2>();
    // What is left is of the line's eight whose number is lane / 4, its bits turned about.
    const int j = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
    store_float2(s.columns() + static_cast<std::uint32_t>(warp * 256 + line(j, 0) * 4), totals[0],
                 totals[1]);
    sync();
    barrier_wait(s.outputs_empty(), turn ^ 1);
    if (thread() < W::kLines) {
      const auto at = 4u * static_cast<unsigned>(thread());
      float sum = 0;
      LATHE_UNROLL
      for (std::uint32_t w = 0; w < 4; ++w) sum += load_float(s.columns() + 256 * w + at);
      store_float(s.outputs() + at, sum);
      store_float(s.last_references() + at, load_float(s.references() + at));
    }
    barrier_arrive(s.outputs_full());
  }

  __device__ __forceinline__ void run() {
    // Where an item's facts lie is all that is kept from item to item.
    for (std::uint32_t facts = s.facts();; facts = s.facts() + s.other_facts() - facts) {
      barrier_wait(s.q_full(), facts != s.facts());
      const LatentItemFacts item = LatentItemFacts::load(facts);
      if (item.tiles == 0) return;
      begin(item);
      tiles(facts);
      finish(facts != s.facts());
    }
  }
};

}  // namespace lathe::cuda
