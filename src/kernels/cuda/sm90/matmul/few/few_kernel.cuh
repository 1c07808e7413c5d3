// Grouped GEMM of packed 4-bit weights with few tokens per group: out[token, row] = sum over k of
// x[token, k] w[row, k]. One group without offsets is a GEMM.
//
// Every warp multiplies its own 16 weight rows by all of K for up to 8 tokens of a group. It loads
// their codes through a ring of its own and converts them in the registers of mma.sync's A operand.
// So warps wait for nothing but their copies, and many of them hide each other's latency, where
// wgmma's warpgroups wait for their last conversion and product.
//
//   shared memory: a ring of chunks per warp      units of 16 rows, sorted by group
//                  tokens [8, k] of 1 or 2 tiles  a block has consecutive ones, its warps take
//                  turns
//
// mma.sync adds as wgmma does, and K is processed in the same order. So a token's bits do not
// depend on which kernel computes it.
#pragma once

#include "kernels/cuda/common/mma_sync.cuh"
#include "kernels/cuda/sm90/matmul/few/few_load.cuh"
#include "kernels/cuda/sm90/matmul/few/few_store.cuh"
#include "kernels/cuda/sm90/matmul/few/keep.cuh"
#include "kernels/cuda/sm90/matmul/matmul_packed.cuh"

namespace lathe::cuda {

template <class T>
struct FewConsumer {
  using Row = typename T::Row;

  const FewParams& f;
  const MatmulParams& p;
  FewShared<T> s;
  int warp, lane;
  PackedPlace places[2];
  // Bytes from the start of a stage to the lane's row of a chunk's codes of rows 0 to 7, as four 8
  // x 8 matrices.
  std::uint32_t codes_at[kFewDepth];
  float acc[4];

  __device__ FewConsumer(const FewParams& params, const FewShared<T>& shared, int of_block,
                         int of_warp)
      : f(params),
        p(params.matmul),
        s(shared),
        warp(of_block),
        lane(of_warp),
        places{{scale_row(of_warp, 0), params.matmul.scale_bytes},
               {scale_row(of_warp, 1), params.matmul.scale_bytes}} {
    LATHE_UNROLL
    for (PackedPlace& place : places) {
      place.scales += static_cast<std::uint32_t>(T::kCodeBytes);
      keep(place.scales);
      if constexpr (Row::kHasZeros) place.zeros += static_cast<std::uint32_t>(T::kZerosAt);
    }
    LATHE_UNROLL
    for (int chunk = 0; chunk < kFewDepth; ++chunk) {
      codes_at[chunk] =
          static_cast<std::uint32_t>(lane % 8 * 128 + ((lane / 8 + 4 * chunk) ^ lane % 8) * 16);
      keep(codes_at[chunk]);
    }
  }
  /// Index among a stage's scales of the lane's row (i = 0) or that row + 8 (i = 1).
  __device__ std::uint32_t scale_row(int of_warp, int i) const {
    const int g = of_warp / 4;
    return static_cast<std::uint32_t>(p.gate_step == 2 ? 2 * g + i : g + 8 * i);
  }

  /// A lane's part of a chunk: scales and codes of its two rows, and tokens.
  struct Loaded {
    PackedRow rows[2];
    std::uint32_t words[2][4], tokens[4][4];
  };
  __device__ __forceinline__ void load(int chunk, std::uint32_t stage, std::uint32_t tokens,
                                       Loaded& out) const {
    load_matrices(stage + codes_at[chunk], out.words[0]);
    load_matrices(stage + codes_at[chunk] + 1024, out.words[1]);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t both = load_shared_u64(
          stage + places[i].scales + static_cast<std::uint32_t>(chunk * T::kScaleBytes));
      out.rows[i].scales[0] = static_cast<std::uint32_t>(both);
      out.rows[i].scales[1] = static_cast<std::uint32_t>(both >> 32);
      out.rows[i].zeros = 0;
      if (Row::kHasZeros && p.zero_bytes > 0) {
        out.rows[i].zeros = load_shared_u32(stage + places[i].zeros +
                                            static_cast<std::uint32_t>(chunk * T::kZeroBytes));
      }
    }
    LATHE_UNROLL
    for (int unit = 0; unit < 4; ++unit) {
      load_matrices(tokens + static_cast<std::uint32_t>(256 * chunk + 64 * unit), out.tokens[unit]);
    }
  }
  /// acc += the products of a chunk.
  __device__ __forceinline__ void multiply(const Loaded& chunk) {
    const bool has_zeros = p.zero_bytes > 0;
    const Row low(chunk.rows[0], places[0], has_zeros), high(chunk.rows[1], places[1], has_zeros);
    LATHE_UNROLL
    for (int unit = 0; unit < 4; ++unit) {
      std::uint32_t of_low[4], of_high[4];
      low.convert(chunk.words[0][unit], unit, of_low);
      high.convert(chunk.words[1][unit], unit, of_high);
      LATHE_UNROLL
      for (int k = 0; k < 2; ++k) {
        const std::uint32_t a[4] = {of_low[2 * k], of_high[2 * k], of_low[2 * k + 1],
                                    of_high[2 * k + 1]};
        mma_m16n8_bf16(acc, a, chunk.tokens[unit][2 * k], chunk.tokens[unit][2 * k + 1]);
      }
    }
  }

  /// Stores the unit's rows from `first` on.
  __device__ void store(const FewTokens& t, std::int32_t first) const {
    const MatmulWork w{0, first, t.begin, t.end, t.group};
    float v[4] = {acc[0], acc[1], acc[2], acc[3]};
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const MatmulRow r = matmul_row(p, w, first + lane / 4, i);
      const float factor = Row::factor(p.weights[r.weight], t.group * p.scale_group);
      v[2 * i] *= factor;
      v[2 * i + 1] *= factor;
    }
    store_few(p, w, lane, v);
  }

  __device__ void run(const FewShare<T>& share) {
    FewLoader<T> loader(f, share, warp, lane);
    LATHE_UNROLL
    for (int i = 0; i + 1 < T::kStages; ++i) loader.load();
    wait_for_previous();  // which may read what is stored here
    std::uint32_t stage = s.ring(warp);
    std::int32_t unit = share.begin + warp;
    int slot = 0;
    std::uint32_t parity = 0;
    const std::int32_t end_tile = (share.end + p.tiles - 1) / p.tiles;
    for (std::int32_t tile = share.begin / p.tiles; tile < end_tile; ++tile) {
      const FewTokens t = share.tokens(tile);
      const std::int32_t end = (tile + 1) * p.tiles < share.end ? (tile + 1) * p.tiles : share.end;
      barrier_wait(s.full(slot), parity);
      // Columns of d that are no token's get the last one's sums, which nobody stores.
      const std::int32_t count = t.end - t.begin;
      const std::int32_t token = lane % 8 < count ? lane % 8 : count - 1;
      const std::uint32_t tokens =
          s.tokens(f, slot) + static_cast<std::uint32_t>(token * f.x_row + lane / 8 * 16);
      for (; unit < end; unit += T::kWarps) {
        LATHE_UNROLL
        for (float& v : acc) v = 0;
        std::uint32_t from = tokens;
        LATHE_ROLLED
        for (std::int32_t left = p.chunks; left > 0; left -= kFewDepth) {
          wait_copy_groups<T::kStages - 2>();
          sync_warp();
          Loaded first, second;
          load(0, stage, from, first);
          // Overwrites the stage that all lanes have read before the last sync_warp().
          loader.load();
          multiply(first);
          if (left > 1) {
            load(1, stage, from, second);
            multiply(second);
          }
          from += 2 * kFewColumns * kFewDepth;
          stage += T::kStageBytes;
          if (stage == loader.end) stage -= T::kStages * T::kStageBytes;
        }
        store(t, (unit - tile * p.tiles) * kFewRows);
      }
      sync_warp();
      if (lane == 0) barrier_arrive(s.empty(slot));
      if (++slot == f.x_slots) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
};

template <class T>
static __global__ void __launch_bounds__(T::kThreads, 1)
    few_kernel(const __grid_constant__ FewParams f) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  const FewShared<T> s{shared_address(shared_bytes)};
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(s.full(i), 1);
      barrier_init(s.empty(i), T::kWarps);
    }
    barriers_visible();
  }
  // Columns past k, up to a whole chunk, are zero.
  const std::int32_t pad = (f.x_row - 2 * f.matmul.k) / 16;
  for (std::int32_t i = thread; i < f.x_slots * kFewTokens * pad; i += T::kThreads) {
    const std::int32_t row = i / pad;
    store_shared(s.tokens(f, 0) + static_cast<std::uint32_t>(row * f.x_row + 2 * f.matmul.k +
                                                             (i - row * pad) * 16),
                 0, 0, 0, 0);
  }
  let_next_begin();
  if (f.matmul.offsets != nullptr) wait_for_previous();
  if (thread < 32) list_groups<T>(f.matmul, s, thread);
  sync_block();
  const FewShare<T> share(f.matmul, s);
  if (share.begin == share.end) return;
  const int warp = thread / 32;
  if (warp == T::kWarps) {
    if (elected()) load_few_tokens<T>(f, share);
    return;
  }
  FewConsumer<T>(f, s, warp, thread % 32).run(share);
}

}  // namespace lathe::cuda
