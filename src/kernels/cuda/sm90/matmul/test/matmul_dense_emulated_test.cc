// Dense GEMMs of all tiles, emulated, against sums in double.
#include <bit>

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

// Every instance: several rounds of work tiles; tokens, rows and K that end inside tiles.
TEST_F(MatmulEmulated, EveryTileAndSplit) {
  for (const int tokens : {8, 16, 32, 64, 128}) {
    for (const int split : {1, 2, 4, 8}) {
      const int rows = 16 * between(3, 8);
      Problem p(random, between(1, tokens + 9), 2 * between(50, 130), 8 * between(64, 90));
      check(p, {split, rows, tokens, false}, split * between(1, 2));
    }
  }
  for (const int split : {1, 2, 4}) {
    Problem p(random, between(1, 150), 2 * between(50, 200), 8 * between(40, 80));
    check(p, {split, 128, 128, true}, 2 * between(1, 2));
  }
  for (const int split : {1, 2, 4}) {
    Problem p(random, between(200, 300), 4 * between(25, 100), 8 * between(40, 60));
    p.out_stride = between(201, 202) * 2;
    for (const int tokens : {192, 256}) check(p, {split, 128, tokens, true}, 2);
    check(p, {split, 128, 128, true, 2, false, false, true}, 20);
  }
  for (const int split : {2, 4}) {
    Problem p(random, between(1, 200), 2 * between(50, 200), 8 * between(40, 80));
    for (const int tokens : {128, 192}) check(p, {split, 128, tokens, true, 2, true}, 32);
    check(p, {split, 128, 128, true, 2, true, false, true}, 64);
  }
}

// Sums of parts of K are added in one order, be they in registers, memory or other blocks.
TEST_F(MatmulEmulated, EveryTileOfASplitHasTheSameBits) {
  Problem p(random, between(200, 300), 4 * between(40, 90), 8 * between(60, 80));
  Host host;
  const Placed placed(p, host);
  MatmulCall call = placed.call(p.m);
  call.kept = host.put(std::vector<float>(static_cast<std::size_t>(kMatmulKeptFloats * 80)));
  call.arrivals = host.put(std::vector<std::uint32_t>(80));
  for (const int split : {2, 4}) {
    emulate_matmul({&call, 1}, {split, 128, 64, false}, 4);
    const std::vector<float> want = placed.read();
    for (const MatmulTiling& tiling : {MatmulTiling{split, 128, 128, true},
                                       {split, 128, 192, true},
                                       {split, 128, 256, true},
                                       {split, 128, 128, true, 2, true},
                                       {split, 128, 128, true, 2, true, false, true},
                                       {split, 128, 128, true, 2, false, false, true},
                                       {split, 128, 192, true, 2, true}}) {
      emulate_matmul({&call, 1}, tiling, tiling.spread ? 80 : 4);
      const std::vector<float> got = placed.read();
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << "seed " << seed << ", split " << split << ", tokens " << tiling.tile_tokens
          << (tiling.spread ? ", parts spread" : "");
    }
  }
}

// bf16 out, bias, and sums added to out, in rows that TMA can write and others.
TEST_F(MatmulEmulated, Epilogues) {
  struct Case {
    bool pair;
    std::int64_t out_stride, more;  // more: rows beyond a multiple of 8
  };
  for (const Case c : {Case{false, 264, 4}, {true, 262, 0}, {true, 264, 4}, {true, 264, 0}}) {
    const bool pair = c.pair;
    const bool quad = pair && between(0, 1) == 0;
    const MatmulTiling tiling{pair ? 2 : 4, 128, pair ? 128 : 16, pair, 2, false, false, quad};
    Problem p(random, pair ? between(100, 200) : between(1, 21), 8 * between(13, 32) + c.more, 512);
    p.out_stride = c.out_stride;
    p.bias = random_f32(random, p.n);
    check(p, tiling, 4);
    p.before = random_f32(random, p.m * p.out_stride);
    check(p, tiling, 4);
    p.bias.clear();
    check(p, tiling, 4);
    p.before.clear();
    p.out_bf16 = true;
    check(p, tiling, 4);
    p.bias = random_f32(random, p.n);
    check(p, tiling, 4);
  }
}

// Tiles of 192 rows store bf16 in boxes, or words where boxes would reach past the rows or tokens.
TEST_F(MatmulEmulated, TilesOfThreeWarpgroups) {
  for (const std::int64_t m : {between(1, 64), between(65, 256), between(257, 530)}) {
    Problem p(random, m, 8 * between(13, 100), 8 * between(8, 50));
    p.out_stride = p.n + 8 * between(0, 1);
    p.out_bf16 = true;
    const MatmulTiling tall{.tile_rows = 192, .tile_tokens = 256, .pair = true, .tall = true};
    check(p, tall, 4);
    p.bias = random_f32(random, p.n);
    check(p, tall, 4);
    Host host;
    matmul_test::check_gated(random, host, DType::bf16, false, m, 8 * between(9, 90),
                             16 * between(20, 40), [&](const MatmulCall& call) {
                               emulate_matmul({&call, 1}, tall, 4);
                             });
  }
}

// Weights of unequal heights that share x, in one launch.
TEST_F(MatmulEmulated, WeightsThatShareX) {
  for (const bool pair : {false, true}) {
    Problem p(random, 19, 150, 512);
    Problem q(random, 19, 26, 512), r(random, 19, 128, 512);
    q.x = r.x = p.x;
    q.out_bf16 = true;
    r.bias = random_f32(random, r.n);
    Host host;
    const Placed a(p, host), b(q, host), c(r, host);
    MatmulCall calls[3] = {a.call(19), b.call(19), c.call(19)};
    calls[1].x = calls[2].x = calls[0].x;
    const MatmulTiling tiling{2, pair ? 128 : 80, pair ? 128 : 32, pair};
    emulate_matmul(calls, tiling, 4);
    a.expect_right(19);
    b.expect_right(19);
    c.expect_right(19);
  }
}

// A row's bits do not depend on the batch or the tile, also if they are added to out.
TEST_F(MatmulEmulated, RowsIgnoreTheBatch) {
  Problem p(random, 140, 256, 2048);
  p.out_stride = 264;
  p.before = random_f32(random, p.m * p.out_stride);
  std::vector<float> want;
  for (const std::int64_t m : {140, 1, 9, 33, 65, 129}) {
    const MatmulTiling chosen = choose_tiling({.rows = p.n, .k = p.k, .m = m, .sms = 8});
    ASSERT_GT(chosen.split, 1);
    for (const MatmulTiling tiling : {chosen, MatmulTiling{chosen.split, 128, 128, true}}) {
      if (tiling.pair && m < 65) continue;
      Host host;
      const Placed some(p, host);
      const MatmulCall call = some.call(m);
      emulate_matmul({&call, 1}, tiling, 8);
      const std::vector<float> got = some.read();
      if (want.empty()) want = got;
      for (std::int64_t i = 0; i < m * p.out_stride; ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got[at]), std::bit_cast<std::uint32_t>(want[at]))
            << "m " << m << ", seed " << seed;
      }
    }
  }
}

// Tiles of few and many tokens, all tile heights of gated GEMMs, and split sums.
TEST_F(MatmulEmulated, Gated) {
  struct Case {
    DType dtype;
    bool codes;
  };
  for (const Case c : {Case{DType::bf16, false}, {DType::e4m3, false}, {DType::e4m3, true}}) {
    for (const MatmulTiling tiling : {MatmulTiling{1, 64, 8, false},
                                      {2, 96, 32, false},
                                      {4, 128, 8, false},
                                      {1, 128, 128, true},
                                      {1, 128, 128, true, 2, false, false, true}}) {
      if (tiling.quad && c.dtype == DType::e4m3) continue;  // below
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(c.dtype) << ", tile "
                                        << tiling.tile_rows << " x " << tiling.tile_tokens);
      Host host;
      matmul_test::check_gated(random, host, c.dtype, c.codes, between(1, 40), 8 * between(9, 30),
                               16 * between(20, 40), [&](const MatmulCall& call) {
                                 emulate_matmul({&call, 1}, tiling, 4);
                               });
    }
    if (!c.codes) continue;
    Host host;
    matmul_test::check_gated(
        random, host, c.dtype, true, between(100, 300), 8 * between(9, 30), 16 * between(20, 40),
        [&](const MatmulCall& call) {
          const int tokens = call.w.scale_rows ? 128 : 256;
          const bool quad = !call.w.scale_rows && between(0, 1) == 0;
          emulate_matmul({&call, 1}, {1, 128, quad ? 128 : tokens, true, 2, false, false, quad}, 4);
        });
    for (const int rows : {32, 64, 128, 192, 256}) {
      const int split = rows <= 128 ? 1 << between(0, 2) : 1;
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", shared tokens, rows " << rows);
      Host shared;
      matmul_test::check_gated(
          random, shared, c.dtype, true, between(33, 64), 8 * between(9, 40), 16 * between(20, 40),
          [&](const MatmulCall& call) {
            const bool by_rows = call.w.scale_rows;
            const bool by_tokens = !by_rows && rows <= 128 && between(0, 1) == 0;
            const MatmulTiling tiling{
                split, by_rows ? 128 : rows, 64, !by_rows, 2, false, false, false, by_tokens};
            emulate_matmul({&call, 1}, tiling, by_rows ? split : 4);
          });
    }
  }
}

}  // namespace
}  // namespace lathe::cuda
