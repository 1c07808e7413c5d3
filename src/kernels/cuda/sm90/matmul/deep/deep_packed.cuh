// Packed weights of 4 bits by 4 to 64 tokens: blocks of four warpgroups or of one.
//
// A chunk of 128 x 128 codes takes two warps per scheduler 620 to 1,030 clocks to convert and
// multiply, because each waits for its own loads, conversions and products; memory delivers it in
// 540. So where tiles of 256 rows fill the SMs, a block has four warpgroups, which hide each
// other's latency and share the tokens (MatmulCluster::wide). Each has 104 registers a thread.
//
// Where K is split and tiles of 128 rows leave half of the SMs idle, a block has one warpgroup and
// 64 rows (MatmulCluster::narrow).
#pragma once

#include "kernels/cuda/sm90/matmul/matmul_packed.cuh"

namespace lathe::cuda {

/// A stage has 256 columns, so copies are of 128 bytes a row. A warpgroup converts 64 columns while
/// the tensor cores multiply its last 64, also across stages.
template <class Row>
struct MatmulPackedDeep : MatmulPacked<Row> {
  using Base = MatmulPacked<Row>;
  using Loaded = typename Base::Loaded;
  static constexpr int kChunk = 256;
  static constexpr int kWeightRowBytes = 128;
  static constexpr int kWeightStep = 128;
  static constexpr int kTokenBoxes = 4;
  static constexpr int kDepth = 2;
  static constexpr int kUnits = 2;  // of 32 columns, that are multiplied at a time

  template <class Consumer>
  static __device__ __forceinline__ void sum_part(Consumer& c, const MatmulWork&,
                                                  const MatmulPart& part) {
    PackedPlace places[2] = {{c.packed_row(0), c.p.scale_bytes},
                             {c.packed_row(1), c.p.scale_bytes}};
    Base::keep_choices(places);
    LATHE_UNROLL
    for (float& v : c.acc) v = 0;
    int used = -1;  // the stage that unfinished wgmmas read
    LATHE_ROLLED
    for (std::int32_t stage = part.begin; stage < part.end; ++stage) {
      c.wait_full();
      const std::uint64_t tokens = c.token_step(0);
      LATHE_UNROLL
      for (int chunk = 0; chunk < kDepth; ++chunk) {
        if (chunk > 0 && (2 * stage + 1) * 128 >= c.p.k) break;
        multiply_chunk(c, chunk, places, tokens, used);
      }
      used = c.stage.index;
      c.stage.next();
    }
    wgmma_wait<0>();
    wgmma_pin(c.acc);
    if (used >= 0) c.release(c.s.empty(used));
  }
  /// Multiplies 128 columns of a stage, and releases the stage before.
  template <class Consumer>
  static __device__ __forceinline__ void multiply_chunk(Consumer& c, int chunk,
                                                        const PackedPlace (&places)[2],
                                                        std::uint64_t tokens, int used) {
    Loaded data = {};
    const std::uint32_t at = c.weights() + static_cast<std::uint32_t>(
                                               (c.warp * 16 + c.lane / 4) * 128 + (c.lane & 3) * 4);
    LATHE_UNROLL
    for (int unit = 0; unit < 4; ++unit) {
      const std::uint32_t from =
          at + static_cast<std::uint32_t>(((4 * chunk + unit) ^ c.lane / 4) * 16);
      data.words[0][unit] = load_shared_u32(from);
      data.words[1][unit] = load_shared_u32(from + 1024);
    }
    Base::load_scales(c, chunk, places, data);
    const bool has_zeros = c.p.zero_bytes > 0;
    const Row low(data.rows[0], places[0], has_zeros), high(data.rows[1], places[1], has_zeros);
    LATHE_UNROLL
    for (int first = 0; first < 4; first += kUnits) {
      std::uint32_t a[2 * kUnits][4];
      LATHE_UNROLL
      for (int i = 0; i < kUnits; ++i) {
        std::uint32_t of_low[4], of_high[4];
        low.convert(data.words[0][first + i], first + i, of_low);
        high.convert(data.words[1][first + i], first + i, of_high);
        LATHE_UNROLL
        for (int step = 0; step < 2; ++step) {
          a[2 * i + step][0] = of_low[2 * step];
          a[2 * i + step][1] = of_high[2 * step];
          a[2 * i + step][2] = of_low[2 * step + 1];
          a[2 * i + step][3] = of_high[2 * step + 1];
        }
      }
      wgmma_fence();
      LATHE_UNROLL
      for (int k = 0; k < 2 * kUnits; ++k) {
        mma_m64_bf16_rows(c.acc, a[k], c.token_step(tokens, 8 * chunk + 2 * first + k), true);
      }
      wgmma_commit();
      wgmma_wait<1>();  // frees the registers of the unit before
      if (chunk == 0 && first == 0 && used >= 0) c.release(c.s.empty(used));
    }
  }
};

}  // namespace lathe::cuda
