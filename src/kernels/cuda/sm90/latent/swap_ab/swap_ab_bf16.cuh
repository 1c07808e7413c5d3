// Latent attention on bf16 caches with the lines on the N side: a block does 8, 16 or 32 lines.
//
// Two warpgroups multiply, a third one fills (load_bf16_rows.cuh, load_pages.cuh). Each multiplying group takes every
// other tile of 64 keys all by itself, from its own buffer, with sums and references of its own:
//
//   S^T [64 keys, lines]  = K Q^T     K as it lies (K-major), Q [lines, dims] K-major
//   O^T [512 dims, lines] += V^T P^T  V^T is the same tile read MN-major, P [lines, 64 keys] K-major
//
// Nothing passes between the groups until an item's end, so that the products of one run beside the
// softmax of the other. A line's scores lie in all four warps of a group; a barrier that carries a
// vote tells whether a line's reference must rise (row_max.cuh), and only then maxima are
// exchanged.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/load/load_bf16_rows.cuh"
#include "kernels/cuda/sm90/latent/load/load_pages.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"
#include "kernels/cuda/sm90/latent/math/row_max.cuh"

namespace lathe::cuda {

/// kPages: the copy engine brings whole pages (load_pages.cuh).
template <class Format, int kTileLines, bool kPages>
struct LatentNarrow {
  static constexpr int kDims = kDimTiles<Format>;
  static constexpr int kLines = kTileLines;
  static constexpr int kBuffers = 2;
  static constexpr int kThreads = 384;
  // Together what a block has.
  static constexpr int kFillRegisters = 88, kGroupRegisters = 208;
  static constexpr int kValues = 512;
  static constexpr bool kPaged = kPages;

  static constexpr int kKeyBytes = kDims * kDimTileBytes;
  static constexpr int kWeightBytes = kLines * 128;
  static constexpr int kKeysAt = kDims * kLines * 128;
  static constexpr int kWeightsAt = kKeysAt + kBuffers * kKeyBytes;
  static constexpr int kSmallAt = kWeightsAt + 2 * kWeightBytes;
  static constexpr int kColumnsAt = kSmallAt + 128;  // behind the barriers
  static constexpr int kReferencesAt = kColumnsAt + 2 * 4 * kLines * 4;
  static constexpr int kSlotsAt = kReferencesAt + 2 * kLines * 4;
  static constexpr int kSharedBytes = kSlotsAt + LatentShared::kSlotBytes;
  static_assert(kSharedBytes <= 232448);
  static_assert(kLines * kValues * 4 <= kKeyBytes, "a group's sums go through its buffer");

  // Named barriers: 1 and 2 are the groups' own.
  static constexpr int kBothGroups = 3;
};

template <class N>
struct LatentNarrowShared {
  LatentShared fill;
  std::uint32_t weights;     // [2 groups] bf16 [lines, 64 keys], swizzled
  std::uint32_t columns;     // [2 groups][4 warps][lines] f32: maxima, then sums
  std::uint32_t references;  // [2 groups][lines] f32

  __device__ explicit LatentNarrowShared(std::uint32_t base) {
    fill.q = base;
    fill.keys = base + N::kKeysAt;
    weights = base + N::kWeightsAt;
    const std::uint32_t small = base + N::kSmallAt;
    fill.q_full = small;
    fill.q_empty = small + 8;
    fill.full = small + 16;
    fill.empty = small + 48;
    fill.put_slots(base + N::kSlotsAt);
    columns = base + N::kColumnsAt;
    references = base + N::kReferencesAt;
  }
};

/// A multiplying group. Of the scores its thread has keys `key` and `key` + 8 of the tile; of both
/// products lines 8 j + 2 (lane % 4) + i, which are `line(j, i)`.
template <class N>
struct LatentNarrowGroup {
  static constexpr int kLines = N::kLines;
  static constexpr int kEights = kLines / 8;

  const LatentParams& p;
  const LatentNarrowShared<N>& s;
  int group, warp, lane, key;
  int pair = 0;               // of tiles, over all items
  float sums[8][kLines / 2];  // of 64 value dimensions each
  float total[kEights][2];    // of this thread's keys

  __device__ LatentNarrowGroup(const LatentParams& params, const LatentNarrowShared<N>& shared,
                               int which, int thread)
      : p(params), s(shared), group(which), warp(thread / 32), lane(thread % 32) {
    key = warp * 16 + lane / 4;
  }
  /// Where a line's reference lies: log2 of what weights and sums are divided by. Registers are short.
  __device__ std::uint32_t reference(int l) const {
    return s.references + (group * kLines + l) * 4;
  }
  __device__ int line(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void sync() const { group_sync(1 + group, 128); }

  __device__ void begin() {
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kLines / 2; ++i) sums[t][i] = 0;
    }
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      total[j][0] = total[j][1] = 0;
    }
    if (warp == 0 && lane < kLines) store_float(reference(lane), kNoKey);
    sync();
  }

  __device__ std::uint32_t keys() const { return s.fill.keys + group * N::kKeyBytes; }

  __device__ void score(float (&d)[kLines / 2]) const {
    wgmma_fence();
    LATHE_UNROLL
    for (int t = 0; t < N::kDims; ++t) {
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        mma_m64_bf16(d, tile_descriptor(keys() + t * kDimTileBytes + k * 32, 1024),
                     tile_descriptor(s.fill.q + t * (kLines * 128) + k * 32, 1024), t + k > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);
  }
  __device__ void add(std::uint32_t weights) {
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const std::uint64_t w = tile_descriptor(weights + k * 32, 1024);
      LATHE_UNROLL
      for (int t = 0; t < 8; ++t) {
        mma_m64_bf16_turned(sums[t], tile_descriptor(keys() + t * kDimTileBytes + k * 2048, 1024),
                            w, true);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) wgmma_pin(sums[t]);
  }

  __device__ std::uint64_t mask() const {
    return load_shared_u64(s.fill.masks + pair % LatentShared::kSlots * (kFillKeys / 8) +
                           8 * group);
  }
  /// Zeros for the rows of hidden keys, as their weights of 0 do not make NaN vanish.
  __device__ void clear_hidden() const {
    const std::uint64_t seen = mask();
    if (seen == ~std::uint64_t{0}) return;
    const int row = 32 * (warp & 1) + lane;
    if (!(seen >> row & 1)) {
      for (int t = warp / 2; t < N::kDims; t += 2) {
        for (int c = 0; c < 8; ++c) {
          store_shared(keys() + t * kDimTileBytes + row * 128 + c * 16, 0, 0, 0, 0);
        }
      }
    }
    fence_async_proxy();
    sync();
  }

  /// Scores to weights in shared memory.
  __device__ void weigh(const float (&d)[kLines / 2], std::uint32_t to) {
    const int chunk = 2 * warp + (lane >> 3 & 1), row = lane & 7;
    std::uint32_t packed[4];
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      float w[4];
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float r = load_float(reference(line(j, i)));
        const float zero = r == kNoKey ? 0.f : r;
        w[i] = exp2_fast(fmaf(d[4 * j + i], p.scale, -zero));
        w[2 + i] = exp2_fast(fmaf(d[4 * j + 2 + i], p.scale, -zero));
        total[j][i] += w[i] + w[2 + i];
      }
      packed[2 * (j & 1)] = pack_bf16(w[0], w[1]);
      packed[2 * (j & 1) + 1] = pack_bf16(w[2], w[3]);
      if constexpr (kLines == 8) {
        store_matrices_turned(swizzled(to, row, chunk), packed[0], packed[1]);
      } else if (j & 1) {
        store_matrices_turned(swizzled(to, 8 * (j - 1 + lane / 16) + row, chunk), packed[0],
                              packed[1], packed[2], packed[3]);
      }
    }
    fence_async_proxy();
  }

  __device__ bool outgrows(const float (&d)[kLines / 2]) const {
    bool grows = false;
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        grows |= fmaxf(d[4 * j + i], d[4 * j + 2 + i]) * p.scale >
                 load_float(reference(line(j, i))) + kReferenceSlack;
      }
    }
    return grows;
  }

  __device__ std::uint32_t column(int w, int l) const {
    return s.columns + ((group * 4 + w) * kLines + l) * 4;
  }
  /// A line's reference after the tile, `now` before it.
  __device__ float raised(int l, float now) const {
    const float m = fmaxf(fmaxf(load_float(column(0, l)), load_float(column(1, l))),
                          fmaxf(load_float(column(2, l)), load_float(column(3, l))));
    return m > now + kReferenceSlack ? m : now;
  }
  __device__ void tile(int limit) {
    if constexpr (N::kPaged) clear_hidden();
    float d[kLines / 2];
    score(d);
    hide_turned_keys(d, mask(), key);
    hide_turned_after(d, p, limit, key, lane);
    // From here on no product of the group reads the weights before.
    if (group_any(1 + group, 128, outgrows(d))) raise_references(*this, d);
    const std::uint32_t weights = s.weights + group * N::kWeightBytes;
    weigh(d, weights);
    sync();
    add(weights);
  }

  /// Where value dimension `dim` of a line lies on its way out: each group's sums in its own buffer,
  /// [lines, 512] f32, shifted so that neither writers nor readers meet in a bank.
  __device__ static std::uint32_t place(std::uint32_t buffer, int l, int dim) {
    return buffer + ((l * N::kValues + (dim ^ (l >> 1 & 3) << 3)) << 2);
  }
  __device__ void deposit() {
    // Else these addresses are made before the item's tiles, and spilled.
    asm volatile("" : "+r"(lane), "+r"(key));
    LATHE_UNROLL
    for (int j = 0; j < kEights; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float t = total[j][i];
        for (int l = 4; l < 32; l *= 2) t += shuffle_xor(t, l);
        if (lane < 4) store_float(column(warp, line(j, i)), t);
      }
    }
    sync();  // the group's products have read the buffer
    LATHE_UNROLL
    for (int t = 0; t < 8; ++t) {
      LATHE_UNROLL
      for (int i = 0; i < kLines / 2; ++i) {
        store_float(place(keys(), line(i / 4, i & 1), 64 * t + key + (i & 2) * 4), sums[t][i]);
      }
    }
  }
  /// Puts the groups' sums together, always in the same order; a warp takes every eighth line.
  __device__ void finish(const LatentItems& items) {
    deposit();
    group_sync(N::kBothGroups, 256);
    LATHE_ROLLED
    for (int l = group * 4 + warp; l < kLines && l < items.unit.lines; l += 8) {
      float r[2], sum[2];
      LATHE_UNROLL
      for (int g = 0; g < 2; ++g) {
        r[g] = load_float(s.references + (g * kLines + l) * 4);
        sum[g] = 0;
        for (int w = 0; w < 4; ++w) {
          sum[g] += load_float(s.columns + ((g * 4 + w) * kLines + l) * 4);
        }
      }
      const float most = fmaxf(r[0], r[1]);
      const float zero = most == kNoKey ? 0.f : most;
      float a = exp2_fast(r[0] - zero), b = exp2_fast(r[1] - zero);
      const float all = sum[0] * a + sum[1] * b;
      const float lse2 = all > 0 ? most + log2_fast(all) : kNoKey;
      float factor = all > 0 ? p.value_scale / all : 0.f;
      const auto row = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      const std::int32_t head = l - row * p.heads;
      constexpr float kLn2 = 0.6931471805599453f;
      if (!items.split && p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
      a *= factor;
      b *= factor;
      float4* part = part_chunks<PartOrder::rows>(p, kLines, items.number, 0) + l * 128;
      std::uint16_t* out =
          p.out + (items.unit.row + row) * p.out_stride + std::int64_t{head} * N::kValues;
      LATHE_UNROLL
      for (int dim = 4 * lane; dim < N::kValues; dim += 128) {
        const float4 x = load_floats(place(s.fill.keys, l, dim));
        const float4 y = load_floats(place(s.fill.keys + N::kKeyBytes, l, dim));
        const float4 v = {x.x * a + y.x * b, x.y * a + y.y * b, x.z * a + y.z * b,
                          x.w * a + y.w * b};
        if (items.split) {
          part[dim / 4] = v;
        } else {
          *reinterpret_cast<uint2*>(out + dim) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
        }
      }
      if (lane != 0) continue;
      if (items.split) {
        p.part_lse[std::int64_t{items.number} * kLines + l] = lse2;
      } else if (p.lse != nullptr) {
        p.lse[(items.unit.row + row) * p.lse_stride + head] = lse2 * kLn2;
      }
    }
    group_sync(N::kBothGroups, 256);
  }

  /// This group alone has used a buffer: each thread stands for one of the other group, too.
  __device__ void release_keys() const {
    barrier_arrive(s.fill.empty + 16 * group, 2);
    barrier_arrive(s.fill.empty + 16 * group + 8, 2);
  }
  /// At an item's end both groups have read both buffers.
  __device__ void release_all() const {
    for (int i = 0; i < 2 * N::kBuffers; ++i) barrier_arrive(s.fill.empty + 8 * i);
  }

  __device__ void run(std::int32_t worker) {
    LatentItems items(p, worker);
    std::uint32_t parity = 0, q_parity = 0;
    while (items.take<kLines>(p, 0)) {
      begin();
      barrier_wait(s.fill.q_full, q_parity);
      q_parity ^= 1;
      fence_async_proxy();
      // The producer fills up the last pair of tiles.
      const int pairs = (items.item.count + 2 * kLatentTile - 1) / (2 * kLatentTile);
      // A unit of one row sees all of its keys.
      const int limit =
          p.dense && items.unit.lines > p.heads ? items.unit.limit - items.item.first : INT32_MAX;
      for (int t = 0; t < pairs; ++t, ++pair) {
        if (t > 0) release_keys();
        if constexpr (N::kPaged) {
          barrier_wait(s.fill.full + 8 * group, parity);
        } else {
          barrier_wait(s.fill.full + 16 * group, parity);
          barrier_wait(s.fill.full + 16 * group + 8, parity);
          fence_async_proxy();
        }
        parity ^= 1;
        tile(limit == INT32_MAX ? limit : limit - (2 * t + group) * kLatentTile);
      }
      if (lane == 0) barrier_arrive(s.fill.q_empty);
      items.look_up(p);
      finish(items);
      if constexpr (N::kPaged) fence_async_proxy();
      release_all();
    }
  }
};

template <class Format, int kTileLines, bool kPages>
static __global__ void __launch_bounds__(LatentNarrow<Format, kTileLines, kPages>::kThreads, 1)
    latent_narrow_kernel(const __grid_constant__ LatentParams p,
                         const __grid_constant__ CUtensorMap map) {
  using N = LatentNarrow<Format, kTileLines, kPages>;
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const LatentNarrowShared<N> s(shared_address(shared_bytes));
  const LatentNames<Format> names{s.fill.names};
  const auto worker = static_cast<std::int32_t>(blockIdx.x);
  if (threadIdx.x == 0) {
    barrier_init(s.fill.q_full, 32);
    barrier_init(s.fill.q_empty, 8);
    if constexpr (!kPages) names.init();
    for (int b = 0; b < N::kBuffers; ++b) {
      if constexpr (kPages) {
        barrier_init(s.fill.full + 8 * b, 1);
      } else {
        barrier_init(s.fill.full + 24 * b, kFirstHalfArrivals);
        barrier_init(s.fill.full + 8 + 8 * b, kSecondHalfArrivals);
      }
      barrier_init(s.fill.empty + 16 * b, 256);
      barrier_init(s.fill.empty + 16 * b + 8, 256);
    }
    barriers_visible();
  }
  sync_block();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 256) {
    lower_registers<N::kFillRegisters>();
    if constexpr (!kPages) {
      if (thread < 320) {
        LineCopy<Format>(s.fill, (thread - 256) / 32, thread % 32).run(names);
      } else if (thread < 352) {
        fill_queries<kTileLines, N::kDims, 32, 1>(p, s.fill, worker, 0, thread - 320);
      } else {
        name_pairs<Format, kTileLines>(p, names, worker, 0, thread - 352);
      }
    } else if (thread < 288) {
      LatentPageFill<Format, N::kLines, N::kBuffers, true>(p, s.fill, &map, 0).run(worker);
    }
    if (thread >= N::kThreads - 32) write_keyless(p, thread - (N::kThreads - 32));
  } else {
    raise_registers<N::kGroupRegisters>();
    LatentNarrowGroup<N>(p, s, thread / 128, thread % 128).run(worker);
  }
  let_next_begin();
}

}  // namespace lathe::cuda
