// The loop of a consumer warpgroup with A and B swapped (swap_ab_fp8.cuh, native_swap_ab.cuh):
// softmax, row max, epilogue.
//
// Each of two warpgroups computes every other tile of 64 keys, with its own accumulator and row
// maxes; they synchronize at an item's end. A thread holds S of keys `key` and `key` + 8 of a tile,
// and in both products M rows 8 j + 2 (lane % 4) + i, which are `m_row(j, i)`.
#pragma once

#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/math/fp8_operands.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"
#include "kernels/cuda/sm90/latent/math/scales.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_item.cuh"

namespace lathe::cuda {

/// The loop over key tiles of a warpgroup, for kernels with queries on N. The kernel derives from
/// it as Self and provides: arrange() the queries; for each tile n
/// score(d, n), prepare(n), values(n) (used by drop_wild_keys_swapped()), softmax(d), add(n, last)
/// and release(n). is_bf16(tile) says whether the rows of a tile's 16 dimensions are in order.
/// N: the kernel's configuration.
template <class Self, class N, class Shared>
struct SwapAbGroup {
  static constexpr int kMRows = N::kMRows, kEights = kMRows / 8;
  static constexpr int kHalf = kValueTiles / 2;  // tiles of 64 dimensions

  const LatentParams& p;
  const Shared& s;
  int group, warp, lane;
  float acc[8][kMRows / 2];   // of 64 value dimensions each
  float row_sum[kEights][2];  // over this thread's keys

  __device__ SwapAbGroup(const LatentParams& params, const Shared& shared, int which, int thread)
      : p(params), s(shared), group(which), warp(thread / 32), lane(thread % 32) {}

  __device__ __forceinline__ Self& self() { return static_cast<Self&>(*this); }
  /// Keeps addresses from being computed before the tiles and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int m_row(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(N::kFirstGroup + group, 128); }
  __device__ std::uint32_t row_max(int l) const {
    return s.row_maxes(group) + static_cast<std::uint32_t>(4 * l);
  }
  __device__ std::uint32_t column_of(int g, int w, int l) const {
    return s.columns(g) + static_cast<std::uint32_t>((w * kMRows + l) * 4);
  }
  __device__ std::uint32_t column(int w, int l) const { return column_of(group, w, l); }

  __device__ void begin() {
    self().arrange();
    group_sync(N::kAllGroups, N::kGroups * 128);
    // All warps have read the previous item's row maxes.
    if (warp == 0 && lane < kMRows) store_float(row_max(lane), kNoRowMax);
    sync();
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kMRows / 2; ++i) acc[t][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) row_sum[j][0] = row_sum[j][1] = 0;
  }

  /// limit: keys that the work tile's first row sees, counted from the tile's first key; each later
  /// row sees one more.
  __device__ __forceinline__ void apply_mask(float (&d)[kMRows / 2], unsigned n, int limit) {
    const int key = warp * 16 + lane / 4;
    if (seldom(limit < kLatentTile)) {
      drop_wild_keys_swapped(d, self().values(n), warp, lane);
    }
    mask_keys_swapped(d, load_shared_u64(s.mask(n)), key);
    mask_after_swapped(d, p, limit, key, lane);
  }

  /// An M row's row max after the tile; `was`: before it.
  __device__ float raised(int l, float was) const {
    const float m = fmaxf(fmaxf(load_float(column(0, l)), load_float(column(1, l))),
                          fmaxf(load_float(column(2, l)), load_float(column(3, l))));
    return m > was + N::kMaxLog2P ? m - N::kStartLog2P : was;
  }
  /// P of scores d[4 j] to d[4 j + 3]; also adds it to the row sums.
  __device__ __forceinline__ void probs_of(const float (&d)[kMRows / 2], int j, float (&w)[4]) {
    const float2 r = load_float2(row_max(m_row(j, 0)));
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      w[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, (i & 1) == 0 ? -r.x : -r.y));
    }
    row_sum[j][0] += w[0] + w[2];
    row_sum[j][1] += w[1] + w[3];
  }

  __device__ __forceinline__ void tile(unsigned n, int limit, bool last) {
    float d[kMRows / 2];
    barrier_wait(s.full(n), s.parity(n));
    self().score(d, n);
    self().prepare(n);
    apply_mask(d, n, limit);
    float most = kNoKey;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      const float2 r = load_float2(row_max(m_row(j, 0)));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j], d[4 * j + 2]), p.scale, -r.x));
      most = fmaxf(most, fmaf(fmaxf(d[4 * j + 1], d[4 * j + 3]), p.scale, -r.y));
    }
    // From here on no wgmma of the warpgroup reads the previous P.
    if (seldom(group_any(N::kFirstGroup + group, 128, most > N::kMaxLog2P)))
      raise_row_max(*this, d);
    self().softmax(d);
    sync();
    self().add(n, last);
  }

  /// Publishes row sums over keys to the other warpgroup.
  __device__ void publish_row_sums() {
    forget();
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float t = row_sum[j][i];
        for (int l = 4; l < 32; l *= 2) t += shuffle_xor(t, l);
        if (lane < 4) store_float(column(warp, m_row(j, i)), t);
      }
    }
    sync();  // the whole warpgroup has read the last tile
  }
  /// Where a thread passes values of 64 dimensions of two of its M rows to the same thread of the
  /// other warpgroup. keys: the writer's last tile.
  __device__ std::uint32_t place(std::uint32_t keys, int t, int j) const {
    return keys + static_cast<std::uint32_t>(((t * kEights + j) * 128 + warp * 32 + lane) * 16);
  }
  /// Stores the accumulator of the half whose first tile is kFirst.
  template <int kFirst>
  __device__ void give_half(std::uint32_t keys) const {
    LATHE_UNROLL
    for (int t = 0; t < kHalf; ++t) {
      LATHE_UNROLL
      for (int j = 0; j < kEights; ++j) {
        const float* v = acc[kFirst + t] + 4 * j;
        store_shared(place(keys, t, j), float_to_bits(v[0]), float_to_bits(v[1]),
                     float_to_bits(v[2]), float_to_bits(v[3]));
      }
    }
  }
  /// What lane l knows of the outputs of M row l.
  struct RowOutputs {
    std::int64_t place = 0;  // where they begin, in elements
    float sink = 0;
    bool sinks = false;
    float factors[N::kGroups];  // of the warpgroups' accumulators
    float lse2 = 0;
  };
  __device__ RowOutputs find_outputs(const LatentWorkInfo& item) const {
    RowOutputs o;
    const std::int32_t l = item.first + (lane < kMRows ? lane : 0);
    const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
    const std::int32_t head = l - r * p.heads;
    o.place = (item.row + r) * p.out_stride + std::int64_t{head} * N::kValues;
    o.sinks = p.sink != nullptr && item.number < 0;
    if (o.sinks && l < item.m_rows) o.sink = p.sink[head];
    return o;
  }
  /// Call after both warpgroups have published their row sums.
  __device__ void settle(RowOutputs& o, bool split) const {
    const int l = lane < kMRows ? lane : 0;
    float most = kNoRowMax;
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) {
      o.factors[g] = load_float(s.row_maxes(g) + static_cast<std::uint32_t>(4 * l));
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
    o.lse2 = all == 0 ? kNoKey : most + log2_fast(all);
    float factor = all == 0 ? 0.f : (split ? 1.f : value_scale(p)) / all;
    if (o.sinks) factor *= sink_factor(o.sink, o.lse2);
    LATHE_UNROLL
    for (int g = 0; g < N::kGroups; ++g) o.factors[g] *= factor;
  }
  __device__ void store_lse(const LatentWorkInfo& item, const RowOutputs& o) const {
    const std::int32_t l = item.first + lane;
    if (lane >= kMRows || l >= item.m_rows) return;
    if (item.number >= 0) {
      p.partial_lse[std::int64_t{item.number} * (p.m_blocks * kMRows) + l] = o.lse2;
    } else if (p.lse != nullptr) {
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      p.lse[(item.row + r) * p.lse_stride + l - r * p.heads] = stored_lse(p.lse_form, o.lse2);
    }
  }
  /// Reorders rows g and g + 8 of a warp's 16 dimensions to rows 2 g and 2 g + 1.
  __device__ void pair_rows(float& a, float& b) const {
    const int from = (lane / 4 * 8 + (lane & 3)) & 31;
    const float a0 = shuffle(a, from), a1 = shuffle(a, from + 4);
    const float b0 = shuffle(b, from), b1 = shuffle(b, from + 4);
    a = lane < 16 ? a0 : b0;
    b = lane < 16 ? a1 : b1;
  }
  /// Adds this warpgroup's accumulator of the half beginning with tile kFirst to the other
  /// warpgroup's, and stores the sums.
  template <int kFirst>
  __device__ void store_joint(const LatentWorkInfo& item, const RowOutputs& own,
                              std::uint32_t keys) {
    const bool split = item.number >= 0;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float own_factors[2], other_factors[2];
      std::uint16_t* out[2];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        own_factors[i] = shuffle(own.factors[kFirst > 0], m_row(j, i));
        other_factors[i] = shuffle(own.factors[kFirst == 0], m_row(j, i));
        out[i] = p.out + shuffle(own.place, m_row(j, i)) + warp * 16 + lane / 4 * 2;
      }
      LATHE_UNROLL
      for (int t = 0; t < kHalf; t += 2) {
        float v[2][4];  // of an M row: two values of a tile, and two of the next
        LATHE_UNROLL
        for (int k = 0; k < 2; ++k) {
          const float4 x = load_floats(place(keys, t + k, j));
          const float* y = acc[kFirst + t + k] + 4 * j;
          v[0][2 * k] = fmaf(y[0], own_factors[0], x.x * other_factors[0]);
          v[1][2 * k] = fmaf(y[1], own_factors[1], x.y * other_factors[1]);
          v[0][2 * k + 1] = fmaf(y[2], own_factors[0], x.z * other_factors[0]);
          v[1][2 * k + 1] = fmaf(y[3], own_factors[1], x.w * other_factors[1]);
          if (Self::is_bf16(kFirst + t + k)) {
            pair_rows(v[0][2 * k], v[0][2 * k + 1]);
            pair_rows(v[1][2 * k], v[1][2 * k + 1]);
          }
        }
        LATHE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (item.first + m_row(j, i) >= item.m_rows) continue;
          if (split) {
            const int run = (kFirst + t) * kEights + 2 * j + i;
            partial_chunks<PartialLayout::swapped>(
                p, kMRows, item.number, item.first / kMRows)[run * 128 + warp * 32 + lane] =
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
  /// Warpgroup `kGroup`'s part of finish(). end: one past the item's last tile.
  template <int kGroup>
  __device__ __forceinline__ void join_groups(const LatentWorkInfo& item, unsigned end) {
    constexpr int kOwn = kGroup * kHalf, kOther = kHalf - kOwn;
    RowOutputs own = find_outputs(item);
    give_half<kOther>(s.keys(end - 2 + kGroup));
    group_sync(N::kAllGroups, N::kGroups * 128);
    settle(own, item.number >= 0);
    if (kGroup == 0 && warp == 0) store_lse(item, own);
    store_joint<kOwn>(item, own, s.keys(end - 1 - kGroup));
  }
  /// Epilogue: adds up the accumulators, one half of the values in each warpgroup, and stores them.
  __device__ void finish(const LatentWorkInfo& item, unsigned end) {
    static_assert(N::kGroups == 2);
    publish_row_sums();
    if (group == 0) {
      join_groups<0>(item, end);
    } else {
      join_groups<1>(item, end);
    }
    // Bulk copies may then overwrite what this thread has read and written.
    fence_async_proxy();
    for (unsigned g = 1; g <= N::kGroups; ++g) self().release(end - g);
  }

  __device__ void run() {
    for (std::uint32_t info = s.info();; info = s.info() + s.other_info() - info) {
      barrier_wait(s.q_full(), info != s.info());
      const LatentWorkInfo item = LatentWorkInfo::load(info);
      if (item.tiles == 0) return;
      begin();
      const auto first = static_cast<unsigned>(item.tile);
      LATHE_ROLLED
      for (int t = group; t < item.tiles; t += N::kGroups) {
        const unsigned n = first + static_cast<unsigned>(t);
        tile(n, LatentWorkInfo::load_limit(info) - t * kLatentTile, t + N::kGroups >= item.tiles);
      }
      barrier_arrive(s.q_empty());
      finish(LatentWorkInfo::load(info), first + static_cast<unsigned>(item.tiles));
    }
  }
};

}  // namespace lathe::cuda
