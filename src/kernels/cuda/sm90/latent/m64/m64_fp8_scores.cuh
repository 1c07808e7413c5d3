// m64 on fp8: the score warpgroup, which computes S and P of every tile.
#pragma once

#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/attention/row_max.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8_config.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"

namespace lathe::cuda {

/// A thread holds S of keys `key` and `key` + 8 of the tile for M rows 8 j + 2 (lane % 4) + i,
/// which are `m_row(j, i)`. Functions are force-inlined: wgmma in flight cannot cross a call.
template <class Format>
struct M64Fp8Scores {
  using W = M64Fp8<Format>;
  using Ring = typename W::Ring;
  using Operand = std::uint32_t[2][4];
  static constexpr int kOperands = 3;  // register sets of left operands
  static constexpr int kWide = 2 * Format::kWide;
  static_assert(kWide < kOperands);
  static constexpr int kSame = LatentRows<Format>::kSame;

  const LatentParams& p;
  const M64Fp8Shared<Format>& s;
  int warp, lane;
  float row_sums[16];  // of this thread's P; m_row(j, i) is at 2 j + i
  Operand operands[kOperands];
  KeyOperand<Format> keys;  // of the current tile
  std::uint32_t words[2][4];
  std::uint64_t queries;  // descriptor of the tile

  __device__ M64Fp8Scores(const LatentParams& params, const M64Fp8Shared<Format>& shared, int t)
      : p(params),
        s(shared),
        warp(t / 32),
        lane(t % 32),
        keys(0, 0, 0),
        queries(tile_descriptor(shared.q, 1024)) {}

  __device__ int thread() const { return warp * 32 + lane; }
  /// Keeps addresses from being computed before the tiles and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int m_row(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(W::kScoreGroup, 128); }

  __device__ void begin(const LatentWorkInfo& item) {
    arrange_queries<Format, W::kMRows, 128>(s.q, thread());
    if (thread() < W::kMRows) {
      const auto at = 4u * static_cast<unsigned>(thread());
      store_float(s.row_maxes() + at, 0);
      store_shared_u32(s.unseen() + at, 1);
      store_shared_u32(s.rows() + at,
                       p.by_heads(static_cast<std::uint32_t>(item.first + thread())));
    }
    if (thread() == 0) store_shared_u32(s.rising(), static_cast<std::uint32_t>(item.tile));
    sync();
    LATHE_UNROLL
    for (float& t : row_sums) t = 0;
  }

  /// Loads the first operands of a tile: two operands of key words, a block's scales, and RoPE,
  /// which needs no conversion.
  __device__ __forceinline__ void open(unsigned n) {
    keys = KeyOperand<Format>(s.ring().keys(n), warp, lane);
    keys.fetch(0);
    keys.load(0, words[0]);
    keys.load(1, words[1]);
    LATHE_UNROLL
    for (int c = 0; c < kWide; ++c) keys.make_wide(c, operands[1 + c]);
  }
  /// Issues S^T of the current tile; RoPE follows the first 32 dimensions.
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
      // Convert the next operand meanwhile, in another register set.
      wgmma_wait<kOperands - 1>();
      LATHE_UNROLL
      for (int w = 0; c == 0 && w < kWide; ++w) {
        multiply_chunk<true>(d, operands[1 + w], q(kFp8 + w), true);
        wgmma_wait<kOperands - 1>();
      }
    }
  }

  __device__ void rescale_row_sums(unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 f = load_float2(s.factors(n) + 4u * static_cast<unsigned>(m_row(j, 0)));
      row_sums[2 * j] *= f.x;
      row_sums[2 * j + 1] *= f.y;
    }
  }

  /// Masks S. limit: keys that the work tile's first row sees, counted from the tile's first key.
  __device__ void apply_mask(float (&d)[32], unsigned n, int limit) const {
    const int key = warp * 16 + lane / 4;
    mask_keys_swapped(d, load_shared_u64(s.ring().mask(n)), key);
    if (limit >= kLatentTile) return;
    drop_wild(d, n);
    mask_after(d, key, limit);
  }
  __device__ __forceinline__ void mask_after(float (&d)[32], int key, int limit) const {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const std::uint64_t rows =
          load_shared_u64(s.rows() + 4u * static_cast<unsigned>(m_row(j, 0)));
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int sees = limit + static_cast<int>(rows >> 32 * i);
        if (key >= sees) d[4 * j + i] = kNoKey;
        if (key + 8 >= sees) d[4 * j + 2 + i] = kNoKey;
      }
    }
  }
  /// Keeps keys that are not finite from rows that do not see them (nonfinite.cuh). A key without a
  /// finite score counts as one: no registers are left to look at its row. The value warpgroups
  /// clear the values of masked keys, as they may have read some already.
  __device__ __forceinline__ void drop_wild(float (&d)[32], unsigned n) const {
    const int own_warp = opaque(warp), own_lane = opaque(lane);
    const std::uint32_t at = s.ring().mask(n) + static_cast<std::uint32_t>(2 * own_warp);
    const std::uint32_t seen = load_shared_u16(at);
    const std::uint32_t wild = unscored_keys(d) & seen;
    if (!seldom(wild != 0)) return;
    poison_keys_swapped(d, wild, own_lane);
    if (own_lane != 0) return;
    store_shared_u16(at, seen & ~wild);
    store_shared_u32(s.wild(n), n + 1);
    store_shared_u32(s.risen(n), n + 1);
  }

  __device__ float2 row_max(int j) const {
    return load_float2(s.row_maxes() + 4u * static_cast<unsigned>(m_row(j, 0)));
  }
  /// Raises the row maxes of rows that have outgrown them or have none. d: S minus row max.
  __device__ __forceinline__ void raise(float (&d)[32], unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(d[4 * j + i], d[4 * j + 2 + i]);
        for (int l = 4; l < 32; l *= 2) m = fmaxf(m, shuffle_xor(m, l));
        if (lane < 4) {
          store_float(s.columns() + static_cast<std::uint32_t>(warp * 256 + m_row(j, i) * 4), m);
        }
      }
    }
    sync();
    bool unseen = false;
    if (thread() < W::kMRows) {
      const auto at = 4u * static_cast<unsigned>(thread());
      const std::uint32_t column = s.columns() + at;
      const float m = fmaxf(fmaxf(load_float(column), load_float(column + 256)),
                            fmaxf(load_float(column + 512), load_float(column + 768)));
      // An M row's first row max, which may be low, has nothing to rescale.
      unseen = load_shared_u32(s.unseen() + at) != 0;
      const bool first = unseen && m > kNoKey;
      if (first) store_shared_u32(s.unseen() + at, 0);
      unseen = unseen && !first;
      const bool rises = first || m > kMaxLog2P;
      const float up = rises ? m - kStartLog2P : 0;
      store_float(s.factors(n) + at, rises && !first ? exp2_fast(-up) : 1.f);
      store_float(s.row_maxes() + at, load_float(s.row_maxes() + at) + up);
      store_float(column, up);
    }
    const bool again = group_any(W::kScoreGroup, 128, unseen);
    if (thread() == 0) {
      store_shared_u32(s.risen(n), n + 1);
      if (again) store_shared_u32(s.rising(), n + 1);
    }
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 up = load_float2(s.columns() + 4u * static_cast<unsigned>(m_row(j, 0)));
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) d[4 * j + i] -= (i & 1) == 0 ? up.x : up.y;
    }
    rescale_row_sums(n);
    sync();  // the columns are free again
  }

  /// Turns S of tile n into P in shared memory. The vote on row maxes overlaps the exponentials;
  /// where a row max rises, P is computed again.
  __device__ __forceinline__ void softmax(float (&d)[32], const float2 (&row_maxes)[8], unsigned n,
                                          bool rises, bool more) {
    float most[4] = {kNoKey, kNoKey, kNoKey, kNoKey};
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 r = row_maxes[j];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        d[4 * j + i] = fmaf(d[4 * j + i], p.scale, (i & 1) == 0 ? -r.x : -r.y);
        most[i] = fmaxf(most[i], d[4 * j + i]);
      }
    }
    const float largest = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    if (seldom(largest > kMaxLog2P)) store_shared_u32(s.risen(n), n + 1);
    barrier_arrive(s.voted());
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    const std::uint32_t to = swizzled(s.p_tile(n), 8 * (lane / 16) + row, chunk);
    float tile[8];  // P of the first 32 M rows, which may be computed again
    std::uint32_t packed[4];
    const auto make = [&](int j, float& even, float& odd) {
      float w[4];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) w[i] = exp2_fast(d[4 * j + i]);
      packed[2 * (j & 1)] = pack_f16(w[0], w[1]);
      packed[2 * (j & 1) + 1] = pack_f16(w[2], w[3]);
      if (j & 1) {
        store_matrices_trans(to + static_cast<std::uint32_t>((j - 1) * 1024), packed[0], packed[1],
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
      barrier_wait(s.ring().full(next), Ring::parity(next));  // while the vote is under way
      if (!seldom(!rises && risen == n + 1)) break;
      rises = true;
    }
    // Load the next tile's first operands while the rest runs.
    open(next);
    LATHE_UNROLL
    for (int j = 4; j < 8; ++j) make(j, row_sums[2 * j], row_sums[2 * j + 1]);
    fence_async_proxy();
    barrier_arrive(s.p_full(n));
    LATHE_UNROLL
    for (int i = 0; i < 8; ++i) row_sums[i] += tile[i];
  }

  /// Computes all tiles of a work item.
  __device__ __forceinline__ void tiles(std::uint32_t info) {
    float d[32];
    unsigned n = LatentWorkInfo::load_tile(info);
    barrier_wait(s.ring().full(n), Ring::parity(n));
    open(n);
    LATHE_ROLLED
    for (bool more = true; more; ++n) {
      forget();
      score(d);
      forget();
      // Loaded while the last products run.
      float2 row_maxes[8];
      LATHE_UNROLL
      for (int j = 0; j < 8; ++j) row_maxes[j] = row_max(j);
      const bool masked = load_shared_u64(s.ring().mask(n)) != ~std::uint64_t{0};
      const bool rises = load_shared_u32(s.rising()) == n;
      // Reload it to save registers.
      const LatentWorkInfo item = LatentWorkInfo::load(info);
      const int past = static_cast<int>(n) - item.tile;
      // A work tile of one row sees all of its keys.
      const int limit = item.m_rows > p.heads ? item.limit - past * kLatentTile : INT32_MAX;
      more = past + 1 < item.tiles;
      wgmma_wait<0>();
      wgmma_pin(d);
      barrier_arrive(s.scored(n));
      if (!more) barrier_arrive(s.q_empty());
      if (seldom(masked || limit < kLatentTile)) {
        apply_mask(d, n, limit);
        // Again, so that no registers hold them meanwhile.
        LATHE_UNROLL
        for (int j = 0; j < 8; ++j) row_maxes[j] = row_max(j);
      }
      softmax(d, row_maxes, n, rises, more);
    }
  }

  /// Gives half of the first 2 kMine row sums to the lane with the same M rows, and adds that
  /// lane's values to the other half.
  template <int kMine>
  __device__ __forceinline__ void reduce_row_sums() {
    const bool upper = (lane & 2 * kMine) != 0;
    LATHE_UNROLL
    for (int i = 0; i < kMine; ++i) {
      const float low = row_sums[i], high = row_sums[kMine + i];
      row_sums[i] = (upper ? high : low) + shuffle_xor(upper ? low : high, 2 * kMine);
    }
  }
  /// Publishes row sums and row maxes to the value warpgroups.
  __device__ __forceinline__ void finish(std::uint32_t turn) {
    forget();
    reduce_row_sums<8>();
    reduce_row_sums<4>();
    reduce_row_sums<2>();
    // What is left belongs to the eight M rows numbered by lane / 4 with its bits reversed.
    const int j = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
    store_float2(s.columns() + static_cast<std::uint32_t>(warp * 256 + m_row(j, 0) * 4),
                 row_sums[0], row_sums[1]);
    sync();
    barrier_wait(s.outputs_empty(), turn ^ 1);
    if (thread() < W::kMRows) {
      const auto at = 4u * static_cast<unsigned>(thread());
      float sum = 0;
      LATHE_UNROLL
      for (std::uint32_t w = 0; w < 4; ++w) sum += load_float(s.columns() + 256 * w + at);
      store_float(s.outputs() + at, sum);
      store_float(s.last_row_maxes() + at, load_float(s.row_maxes() + at));
    }
    barrier_arrive(s.outputs_full());
  }

  __device__ __forceinline__ void run() {
    // Between items only the address of the work item's info stays in a register.
    for (std::uint32_t info = s.info();; info = s.info() + s.other_info() - info) {
      barrier_wait(s.q_full(), info != s.info());
      const LatentWorkInfo item = LatentWorkInfo::load(info);
      if (item.tiles == 0) return;
      begin(item);
      tiles(info);
      finish(info != s.info());
    }
  }
};

}  // namespace lathe::cuda
