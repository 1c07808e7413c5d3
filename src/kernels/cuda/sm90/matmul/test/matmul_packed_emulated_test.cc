// GEMMs with weights of 4 bits, emulated, against sums in double.
#include "kernels/cuda/sm90/matmul/test/matmul_checks.h"
#include "kernels/cuda/sm90/matmul/test/matmul_emulation.h"

namespace lathe::cuda {
namespace {

using matmul_test::emulate_matmul;
using matmul_test::Host;
using matmul_test::MatmulEmulated;
using matmul_test::Placed;
using matmul_test::Problem;
using matmul_test::random_f32;
using matmul_test::WeightFormat;

// u4 of every kind, NVFP4 and MXFP4: rows and K that end inside tiles and chunks, out of every
// kind.
TEST_F(MatmulEmulated, PackedWeights) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    SCOPED_TRACE(::testing::Message() << name(format));
    const int step = std::max(32, int{format.size});
    const auto columns = [&](int a, int b) { return step * between(a / step + 1, b / step + 1); };
    for (const int tokens : {8, 64}) {
      const int split = 1 << between(0, 2);
      Problem p(random, between(1, tokens + 9), 2 * between(20, 130), columns(900, 1300), format);
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      check(p, {split, 16 * between(3, 8), tokens, false}, split * between(1, 2));
      p.before = random_f32(random, p.m * p.out_stride);
      check(p, {split, 16 * between(3, 8), tokens, false}, split * between(1, 2));
    }
    Problem p(random, between(1, 150), 2 * between(50, 200), columns(300, 700), format);
    p.out_bf16 = true;
    check(p, {between(1, 2), 128, 128, true}, 2);
  }
}

// Tiles of 256 and 64 rows: as above, and K that ends after an odd number of chunks.
TEST_F(MatmulEmulated, PackedWeightsInDeepStages) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    SCOPED_TRACE(::testing::Message() << name(format));
    const int step = std::max(32, int{format.size});
    for (const int tokens : {8, 16, 32, 64}) {
      const int columns = step * between(600 / step, 1300 / step);
      Problem p(random, between(1, tokens), 2 * between(20, 330), columns, format);
      p.out_bf16 = between(0, 1) == 0;
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      check(p, {1, 256, tokens, false, 4}, between(1, 3));
      if (tokens == 8) continue;
      const int split = 1 << between(0, 2);
      check(p, {split, 64, tokens, false, 1}, split * between(1, 2));
    }
  }
}

// u4 and MXFP4 weights give the bits of a GEMM with the same values stored as bf16.
TEST_F(MatmulEmulated, PackedWeightsHaveTheBitsOfBf16) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    if (format.scales == DType::e4m3) continue;  // has a factor
    Problem p(random, 11, 90, 512, format);
    Problem wide = p;
    wide.format = wide.dtype = DType::bf16;
    wide.group_scales.clear();
    wide.zeros.clear();
    wide.w.resize(p.weights.size() * 2);
    for (std::size_t i = 0; i < p.weights.size(); ++i) {
      const bf16 v = to_bf16(static_cast<float>(p.weights[i]));
      std::memcpy(&wide.w[2 * i], &v, 2);
    }
    Host host;
    const Placed packed(p, host), expected(wide, host);
    for (const Placed<Host>* each : {&packed, &expected}) {
      const MatmulCall call = each->call(p.m);
      emulate_matmul({&call, 1}, {2, 96, 16, false}, 4);
    }
    EXPECT_EQ(packed.read().size(), expected.read().size());
    const std::vector<float> a = packed.read(), b = expected.read();
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
        << name(format) << ", seed " << seed;
    const MatmulCall wide_tile = packed.call(p.m), of_bf16 = expected.call(p.m);
    emulate_matmul({&wide_tile, 1}, {1, 256, 16, false, 4}, 1);
    emulate_matmul({&of_bf16, 1}, {1, 96, 16, false}, 4);
    const std::vector<float> c = packed.read(), d = expected.read();
    EXPECT_EQ(std::memcmp(c.data(), d.data(), c.size() * sizeof(float)), 0)
        << name(format) << ", seed " << seed;
  }
}

TEST_F(MatmulEmulated, PackedExperts) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    const int step = std::max(32, int{format.size});
    const int tokens = format.size == 64 ? 128 : format.size == 32 ? 32 : 8;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format));
    Host host;
    const std::vector<std::int32_t> counts = {0, 1, 9, between(1, 70), 0, 17, 0};
    const int k = step * between(200 / step + 1, 400 / step);
    const auto run = [&](const GroupedMatmulCall& call) { emulate_matmul(call, tokens, 3); };
    const int n = tokens == 128 ? 256 : 128;
    matmul_test::check_experts<float>(random, host, format, false, counts, n, k, run);
    for (const bool turns : {false, true}) {
      matmul_test::check_gated_experts(random, host, format, turns, counts, turns ? 128 : 256, k,
                                       run);
    }
  }
}

TEST_F(MatmulEmulated, PackedGated) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    const int step = std::max(32, int{format.size});
    for (const MatmulTiling tiling :
         {MatmulTiling{1, 64, 8, false}, {2, 96, 32, false}, {1, 128, 128, true}}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format) << ", tile "
                                        << tiling.tile_rows << " x " << tiling.tile_tokens);
      Host host;
      matmul_test::check_gated(random, host, format, false, between(1, 40), 8 * between(9, 30),
                               step * between(400 / step, 640 / step), [&](const MatmulCall& call) {
                                 emulate_matmul({&call, 1}, tiling, 4);
                               });
    }
  }
}

TEST_F(MatmulEmulated, GatedInDeepStages) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format));
    const int step = std::max(32, int{format.size});
    Host host;
    matmul_test::check_gated(random, host, format, false, between(1, 32), 8 * between(9, 40),
                             step * between(3, 8), [&](const MatmulCall& call) {
                               emulate_matmul({&call, 1},
                                              step % 64 == 0 ? MatmulTiling{1, 256, 32, false, 4}
                                                             : MatmulTiling{1, 64, 32, false, 1},
                                              2);
                             });
  }
}

}  // namespace
}  // namespace lathe::cuda
