// GEMM of e4m3 weights and up to 8 bf16 tokens: out[token, row] = sum over k of x[token, k] w[row,
// k].
//
// Each chunk of 128 columns is summed on its own and then scaled, so chunks of a row may be
// multiplied by any warps. A block has consecutive units of 16 weight rows. If they are few, it
// divides K into segments, its warps multiply a segment of a unit each and leave the chunks' sums
// in shared memory, and one warp per unit adds them in the order of K.
//
// mma.sync adds 16 products as wgmma does, in any order, and sums are added in the same order. So a
// token's bits do not depend on which kernel computes it.
#pragma once

#include "kernels/cuda/common/mma_sync.cuh"
#include "kernels/cuda/sm90/matmul/few/few_codes_params.h"
#include "kernels/cuda/sm90/matmul/few/few_config.cuh"
#include "kernels/cuda/sm90/matmul/few/few_store.cuh"
#include "kernels/cuda/sm90/matmul/matmul_codes.cuh"

namespace lathe::cuda {

/// A block's work: segments of its units, in order.
struct FewCodesShare {
  const FewCodesParams& f;
  const MatmulParams& p;
  std::int32_t begin, units, items;

  __device__ explicit FewCodesShare(const FewCodesParams& params) : f(params), p(params.matmul) {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    const auto blocks = static_cast<std::int32_t>(gridDim.x);
    const auto at = [&](std::int32_t b) {
      return static_cast<std::int32_t>(std::int64_t{p.tiles} * b / blocks);
    };
    begin = at(block);
    units = at(block + 1) - begin;
    items = units * f.segments;
  }
  /// Of unit `unit` of the block.
  __device__ MatmulWork work(std::int32_t unit) const {
    const std::int32_t tile = begin + unit;
    std::int32_t weight = 0;
    while (weight + 1 < p.weight_count && tile >= p.weights[weight + 1].first_tile) ++weight;
    return {weight, (tile - p.weights[weight].first_tile) * kFewRows, 0, p.m, 0};
  }
  /// First chunk of a segment.
  __device__ std::int32_t chunk(std::int32_t segment) const {
    return p.chunks * segment / f.segments;
  }
};

/// Loads the chunks of a warp's items into its ring, in the order of FewLoader's.
struct FewCodesLoader {
  const FewCodesShare& share;
  int lane;
  std::int32_t item;          // to load
  std::int32_t left;          // chunks of it
  std::int32_t columns;       // from the lane's next piece on
  const std::uint8_t* codes;  // the lane's next piece of row lane / 8
  std::uint32_t to, end;      // next stage, and the ring's end
  std::uint32_t codes_at;

  __device__ FewCodesLoader(const FewCodesShare& of_block, std::uint32_t ring, int warp,
                            int of_warp)
      : share(of_block), lane(of_warp), item(warp), to(ring) {
    end = to + kFewCodesStages * kFewCodesStage;
    const int row = lane / 8, piece = lane & 7;
    codes_at = static_cast<std::uint32_t>(row * 128 + (piece ^ row) * 16);
    begin();
  }
  __device__ void begin() {
    if (item >= share.items) return;
    const std::int32_t unit = item / share.f.segments, segment = item - unit * share.f.segments;
    const std::int32_t first = share.chunk(segment);
    left = share.chunk(segment + 1) - first;
    const MatmulWork w = share.work(unit);
    const std::int32_t row = (share.p.gate_step == 0 ? w.row : w.row / 2) + lane / 8;
    codes = share.f.codes[w.weight] + row * share.f.row_bytes + first * 128 + (lane & 7) * 16;
    columns = share.p.k - first * 128 - (lane & 7) * 16;
  }
  __device__ __forceinline__ void load() {
    if (item < share.items) {
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t at =
            to + (codes_at ^ (i % 2 == 0 ? 0u : 64u)) + static_cast<std::uint32_t>(i * 512);
        copy_async(at, codes + (i % 2) * 4 * share.f.row_bytes + (i / 2) * share.f.eight_rows,
                   columns > 0);
      }
      codes += 128;
      columns -= 128;
      to += kFewCodesStage;
      if (to == end) to -= kFewCodesStages * kFewCodesStage;
      if (--left == 0) {
        item += kFewCodesWarps;
        begin();
      }
    }
    end_copy_group();
  }
};

/// Two e4m3 (not NaN) in the high bytes of both halves, as bf16.
__device__ inline std::uint32_t bf16_of_high_e4m3x2(std::uint32_t high) {
  return multiply_bf16x2((high & 0x80008000u) | (high >> 4 & 0x07f007f0u), 0x7b807b80u);  // 2^120
}

struct FewCodesBlock {
  const FewCodesParams& f;
  const MatmulParams& p;
  std::uint32_t shared;
  FewCodesShare share;
  int warp, lane;
  std::uint32_t tokens;       // the lane's first word of its token
  std::uint32_t codes_at[2];  // from the start of a stage, of 64 columns each

  __device__ FewCodesBlock(const FewCodesParams& params, std::uint32_t shared_at)
      : f(params),
        p(params.matmul),
        shared(shared_at),
        share(params),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {
    // Columns of d that are no token's get the last one's sums, which nobody stores.
    const std::int32_t token = lane / 4 < p.m ? lane / 4 : p.m - 1;
    tokens =
        shared + static_cast<std::uint32_t>(kFewCodesTokensAt + token * f.x_row + (lane & 3) * 8);
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      codes_at[i] =
          static_cast<std::uint32_t>(lane % 8 * 128 + ((lane / 8 + 4 * i) ^ lane % 8) * 16);
    }
  }

  /// sum = the products of a chunk. In a step of 16 columns a lane has columns 4 c to 4 c + 3 (c =
  /// lane % 4) of both operands, in place of wgmma's 2 c, + 1, 8 + 2 c, + 1.
  __device__ __forceinline__ void multiply(std::uint32_t stage, std::uint32_t from,
                                           float (&sum)[4]) const {
    LATHE_UNROLL
    for (float& v : sum) v = 0;
    LATHE_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::uint32_t low[4], high[4];
      load_matrices(stage + codes_at[half], low);
      load_matrices(stage + codes_at[half] + 1024, high);
      LATHE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const std::uint64_t x =
            load_shared_u64(from + static_cast<std::uint32_t>(128 * half + 32 * k));
        const std::uint32_t a[4] = {bf16_of_high_e4m3x2(permute_bytes(low[k], 0, 0x1404)),
                                    bf16_of_high_e4m3x2(permute_bytes(high[k], 0, 0x1404)),
                                    bf16_of_high_e4m3x2(permute_bytes(low[k], 0, 0x3424)),
                                    bf16_of_high_e4m3x2(permute_bytes(high[k], 0, 0x3424))};
        mma_m16n8_bf16(sum, a, static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32));
      }
    }
  }

  /// Address of the lane's sums of a chunk: of two tokens, for row lane / 4. Row + 8 is 8
  /// row_bytes() further.
  __device__ std::uint32_t row_bytes() const {
    return static_cast<std::uint32_t>((p.m + 1) / 2 * 8);
  }
  __device__ std::uint32_t sums(std::int32_t unit, std::int32_t chunk) const {
    const auto row = static_cast<std::uint32_t>((unit * p.chunks + chunk) * kFewRows + lane / 4);
    return shared + static_cast<std::uint32_t>(f.sums_at) + row * row_bytes() +
           static_cast<std::uint32_t>((lane & 3) * 8);
  }
  __device__ bool has_tokens() const { return 2 * (lane & 3) < p.m; }

  __device__ static void add_chunk(const float (&sum)[4], float low, float high, float (&acc)[4]) {
    acc[0] = fmaf(sum[0], low, acc[0]);
    acc[1] = fmaf(sum[1], low, acc[1]);
    acc[2] = fmaf(sum[2], high, acc[2]);
    acc[3] = fmaf(sum[3], high, acc[3]);
  }
  /// Calls chunk_sum(chunk, sum) for every chunk and scales its sum. Adds the chunks of each part
  /// of K, then the parts.
  template <class ChunkSum>
  __device__ __forceinline__ void add_up(std::int32_t unit, const ChunkSum& chunk_sum) const {
    const MatmulWork w = share.work(unit);
    const MatmulFactors factors(p, w, w.row + lane / 4);
    float total[4] = {0, 0, 0, 0};
    LATHE_ROLLED
    for (std::int32_t part = 0; part < p.split; ++part) {
      float acc[4] = {0, 0, 0, 0};
      const std::int32_t end = p.chunks * (part + 1) / p.split;
      LATHE_ROLLED
      for (std::int32_t chunk = p.chunks * part / p.split; chunk < end; ++chunk) {
        const float low = factors.at(0, chunk), high = factors.at(1, chunk);
        float sum[4];
        chunk_sum(chunk, sum);
        add_chunk(sum, low, high, acc);
      }
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) total[i] = part == 0 ? acc[i] : total[i] + acc[i];
    }
    store_few(p, w, lane, total);
  }

  __device__ void load_tokens() const {
    const std::int32_t words = (f.x_row - 32) / 16;  // of 8 columns, with those past k
    const std::int32_t inside = p.k / 8;
    const std::uint32_t to = shared + static_cast<std::uint32_t>(kFewCodesTokensAt);
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < p.m * words;
         i += 32 * kFewCodesWarps) {
      const std::int32_t token = i / words, word = i - token * words;
      uint4 v = {0, 0, 0, 0};
      if (word < inside) {
        v = *reinterpret_cast<const uint4*>(f.x + token * f.x_stride + word * 8);
      }
      store_shared(to + static_cast<std::uint32_t>(token * f.x_row + word * 16), v.x, v.y, v.z,
                   v.w);
    }
  }

  __device__ void run() {
    std::uint32_t stage =
        shared + static_cast<std::uint32_t>(warp * kFewCodesStages * kFewCodesStage);
    FewCodesLoader loader(share, stage, warp, lane);
    // Weights do not depend on the previous launch, tokens do.
    LATHE_UNROLL
    for (int i = 0; i + 1 < kFewCodesStages; ++i) loader.load();
    wait_for_previous();
    load_tokens();
    sync_block();
    const auto next_sum = [&](std::int32_t chunk, float(&sum)[4]) {
      wait_copy_groups<kFewCodesStages - 2>();
      sync_warp();
      // Overwrites the stage that all lanes have read before the last sync_warp().
      loader.load();
      multiply(stage, tokens + static_cast<std::uint32_t>(256 * chunk), sum);
      stage += kFewCodesStage;
      if (stage == loader.end) stage -= kFewCodesStages * kFewCodesStage;
    };
    if (f.segments == 1) {
      for (std::int32_t unit = warp; unit < share.units; unit += kFewCodesWarps) {
        add_up(unit, next_sum);
      }
      return;
    }
    for (std::int32_t item = warp; item < share.items; item += kFewCodesWarps) {
      const std::int32_t unit = item / f.segments, segment = item - unit * f.segments;
      const std::int32_t end = share.chunk(segment + 1);
      LATHE_ROLLED
      for (std::int32_t chunk = share.chunk(segment); chunk < end; ++chunk) {
        float sum[4];
        next_sum(chunk, sum);
        if (!has_tokens()) continue;
        const std::uint32_t to = sums(unit, chunk);
        store_float2(to, sum[0], sum[1]);
        store_float2(to + 8 * row_bytes(), sum[2], sum[3]);
      }
    }
    sync_block();
    for (std::int32_t unit = warp; unit < share.units; unit += kFewCodesWarps) {
      add_up(unit, [&](std::int32_t chunk, float(&sum)[4]) {
        const std::uint32_t from = sums(unit, chunk);
        const float2 low = has_tokens() ? load_float2(from) : float2{0, 0};
        const float2 high = has_tokens() ? load_float2(from + 8 * row_bytes()) : float2{0, 0};
        sum[0] = low.x;
        sum[1] = low.y;
        sum[2] = high.x;
        sum[3] = high.y;
      });
    }
  }
};

static __global__ void __launch_bounds__(32 * kFewCodesWarps, 1)
    few_codes_kernel(const __grid_constant__ FewCodesParams f) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  let_next_begin();
  FewCodesBlock(f, shared_address(shared_bytes)).run();
}

}  // namespace lathe::cuda
