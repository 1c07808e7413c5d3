// What groups share that multiply turned, few lines on the N side of the products: references, an item's end.
//
// Each of two groups takes every other tile of 64 keys, all by itself, with sums and references of its own; they meet
// at an item's end. Of scores a thread has keys `key` and `key` + 8 of a tile; of both products lines
// 8 j + 2 (lane % 4) + i, which are `line(j, i)`.
#pragma once

#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/fp8_operands.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"

namespace lathe::cuda {

/// Self has arrange() of queries, score(d, n) of tile n, prepare(n) behind it, weigh(d), add(n, last), release(n) and
/// wide(tile), whether rows of a tile's 16 dimensions stand in their order. N: the kernel's shape.
template <class Self, class N, class Shared>
struct TurnedGroup {
  static constexpr int kLines = N::kLines, kEights = kLines / 8;
  static constexpr int kHalf = kValueTiles / 2;  // tiles of 64 dimensions

  const LatentParams& p;
  const Shared& s;
  int group, warp, lane;
  float sums[8][kLines / 2];  // of 64 value dimensions each
  float total[kEights][2];    // of this thread's keys

  __device__ TurnedGroup(const LatentParams& params, const Shared& shared, int which, int thread)
      : p(params), s(shared), group(which), warp(thread / 32), lane(thread % 32) {}

  __device__ __forceinline__ Self& self() { return static_cast<Self&>(*this); }
  /// Else addresses are made before an item's tiles, and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int line(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(N::kFirstGroup + group, 128); }
  __device__ std::uint32_t reference(int l) const {
    return s.references(group) + static_cast<std::uint32_t>(4 * l);
  }
  __device__ std::uint32_t column_of(int g, int w, int l) const {
    return s.columns(g) + static_cast<std::uint32_t>((w * kLines + l) * 4);
  }
  __device__ std::uint32_t column(int w, int l) const { return column_of(group, w, l); }

  __device__ void begin() {
    self().arrange();
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

  /// limit: keys that the unit's first row sees, counted from the tile's first; the row after sees one more.
  __device__ void hide(float (&d)[kLines / 2], unsigned n, int limit) const {
    const int key = warp * 16 + lane / 4;
    hide_turned_keys(d, load_shared_u64(s.mask(n)), key);
    hide_turned_after(d, p, limit, key, lane);
  }

  /// A line's reference after the tile, `was` before it.
  __device__ float raised(int l, float was) const {
    const float m = fmaxf(fmaxf(load_float(column(0, l)), load_float(column(1, l))),
                          fmaxf(load_float(column(2, l)), load_float(column(3, l))));
    return m > was + N::kMostWeight ? m - N::kFirstWeight : was;
  }
  /// Weights of scores d[4 j] to d[4 j + 3], which join the totals.
  __device__ __forceinline__ void weights_of(const float (&d)[kLines / 2], int j, float (&w)[4]) {
    const float2 r = load_float2(reference(line(j, 0)));
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      w[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, (i & 1) == 0 ? -r.x : -r.y));
    }
    total[j][0] += w[0] + w[2];
    total[j][1] += w[1] + w[3];
  }

  __device__ __forceinline__ void tile(unsigned n, int limit, bool last) {
    float d[kLines / 2];
    barrier_wait(s.full(n), s.parity(n));
    self().score(d, n);
    self().prepare(n);
    hide(d, n, limit);
    float most = kNoKey;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      const float2 r = load_float2(reference(line(j, 0)));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j], d[4 * j + 2]), p.scale, -r.x));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j + 1], d[4 * j + 3]), p.scale, -r.y));
    }
    // From here on no product of the group reads the weights before.
    if (seldom(group_any(N::kFirstGroup + group, 128, most > N::kMostWeight)))
      raise_references(*this, d);
    self().weigh(d);
    sync();
    self().add(n, last);
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
        if (lane < 4) store_float(column(warp, line(j, i)), t);
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
    const std::int32_t l = item.first + (lane < kLines ? lane : 0);
    const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
    const std::int32_t head = l - r * p.heads;
    o.place = (item.row + r) * p.out_stride + std::int64_t{head} * N::kValues;
    o.sinks = p.sink != nullptr && item.number < 0;
    if (o.sinks && l < item.lines) o.sink = p.sink[head];
    return o;
  }
  /// When all groups have told their totals.
  __device__ void settle(LineOutputs& o, bool split) const {
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
      for (int w = 0; w < 4; ++w) sum += load_float(column_of(g, w, l));
      all += sum * o.factors[g];
    }
    o.lse2 = all > 0 ? most + log2_fast(all) : kNoKey;
    float factor = all > 0 ? (split ? 1.f : p.value_scale) / all : 0.f;
    if (o.sinks) factor *= sink_factor(o.sink, o.lse2);
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) o.factors[g] *= factor;
  }
  __device__ void store_lse(const LatentItemFacts& item, const LineOutputs& o) const {
    const std::int32_t l = item.first + lane;
    if (lane >= kLines || l >= item.lines) return;
    if (item.number >= 0) {
      p.part_lse[std::int64_t{item.number} * (p.tiles * kLines) + l] = o.lse2;
    } else if (p.lse != nullptr) {
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      constexpr float kLn2 = 0.6931471805599453f;
      p.lse[(item.row + r) * p.lse_stride + l - r * p.heads] = o.lse2 * kLn2;
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
          if (Self::wide(kFirst + t + k)) {
            pair_rows(v[0][2 * k], v[0][2 * k + 1]);
            pair_rows(v[1][2 * k], v[1][2 * k + 1]);
          }
        }
        LATHE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (item.first + line(j, i) >= item.lines) continue;
          if (split) {
            const int run = (kFirst + t) * kEights + 2 * j + i;
            part_chunks<PartOrder::turned>(p, kLines, item.number,
                                           item.first / kLines)[run * 128 + warp * 32 + lane] =
                f16_chunk(v[i][0], v[i][1], v[i][2], v[i][3]);
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
    deposit<kOther>(s.keys(end - 2 + kGroup));
    group_sync(N::kAllGroups, N::kGroups * 128);
    settle(own, item.number >= 0);
    if (kGroup == 0 && warp == 0) store_lse(item, own);
    collect<kOwn>(item, own, s.keys(end - 1 - kGroup));
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
    for (unsigned g = 1; g <= N::kGroups; ++g) self().release(end - g);
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

}  // namespace lathe::cuda
