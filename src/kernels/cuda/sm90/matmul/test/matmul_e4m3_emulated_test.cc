// GEMMs with e4m3 weights, by bf16 or e4m3 tokens, emulated, against sums in double.
#include <cstring>

#include "kernels/cuda/sm90/matmul/test/matmul_emulation.h"

namespace lathe::cuda {
namespace {

using matmul_test::emulate_matmul;
using matmul_test::Host;
using matmul_test::MatmulEmulated;
using matmul_test::Placed;
using matmul_test::Problem;
using matmul_test::random_f32;

// e4m3 weights; K that ends inside a block.
TEST_F(MatmulEmulated, CodesOfWeights) {
  for (const int tokens : {8, 32, 128}) {
    for (const int split : {1, 2, 4}) {
      Problem p(random, between(1, tokens + 9), 2 * between(50, 200), 32 * between(20, 30),
                DType::e4m3);
      check(p, {split, 16 * between(3, 8), tokens, false}, split * between(1, 2));
    }
  }
  Problem pair(random, between(1, 150), 2 * between(50, 200), 32 * between(10, 20), DType::e4m3);
  check(pair, {1, 128, 128, true}, 2);
  // A scale of 1.
  Problem p(random, 3, 128, 256, DType::e4m3);
  p.scales.clear();
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    p.weights[i] = double{to_f32(e4m3{std::to_integer<std::uint8_t>(p.w[i])})};
  }
  check(p, {1, 128, 8, false}, 1);
}

// e4m3 tokens and weights; K that ends inside a block.
TEST_F(MatmulEmulated, CodesOfBoth) {
  for (const int tokens : {8, 64, 128}) {
    for (const int split : {1, 2, 4}) {
      Problem p(random, between(1, tokens + 9), 2 * between(50, 200), 16 * between(40, 60),
                DType::e4m3);
      p.make_x_codes(random);
      check(p, {split, 16 * between(3, 8), tokens, false}, split * between(1, 2));
    }
  }
}

// Tiles of up to 64 weight rows by one warpgroup have the bits of those by two.
TEST_F(MatmulEmulated, CodesOfBothByOneWarpgroup) {
  for (const int split : {1, 2, 4}) {
    const int rows = 16 * between(3, 4);
    Problem p(random, between(33, 90), 2 * between(50, 200), 16 * between(40, 60), DType::e4m3);
    p.make_x_codes(random);
    p.out_bf16 = between(0, 1) == 0;
    if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
    check(p, {split, rows, 64, false, 1}, split * between(1, 2));
    p.out_bf16 = false;
    Host host;
    const Placed placed(p, host);
    const MatmulCall call = placed.call(p.m);
    emulate_matmul({&call, 1}, {split, 128, 64, false}, split);
    const std::vector<float> want = placed.read();
    emulate_matmul({&call, 1}, {split, rows, 64, false, 1}, split);
    const std::vector<float> got = placed.read();
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
        << "seed " << seed << ", split " << split;
  }
}

// Tiles whose warpgroups share tokens on M have the bits of those with weight rows on M.
TEST_F(MatmulEmulated, CodesOfBothThatShareTokens) {
  for (const int rows : {32, 64, 128, 192, 256}) {
    for (const int split : {1, 2, 4}) {
      if (rows > 128 && split > 1) continue;
      const int each = between(0, 1) == 0 ? 2 : 8;
      // More chunks than are loaded at a time, in one case.
      const int k = rows == 64 && split == 1 ? 128 * between(65, 70) : 16 * between(40, 60);
      Problem p(random, between(1, 200), each * between(50 / each, 400 / each), k, DType::e4m3);
      p.make_x_codes(random);
      p.out_bf16 = between(0, 1) == 0;
      p.out_stride = (p.n + 15) / 8 * 8 + each % 8 * between(0, 1);
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      if (!p.out_bf16 && between(0, 2) > 0) p.before = random_f32(random, p.m * p.out_stride);
      const bool by_tokens = rows >= 32 && rows <= 128 && between(0, 1) == 0;
      const MatmulTiling tiling{split, rows, 64, true, 2, false, false, false, by_tokens};
      check(p, tiling, 2 * between(1, 3));
      p.out_bf16 = false;
      p.before.clear();
      Host host;
      const Placed placed(p, host);
      const MatmulCall call = placed.call(p.m);
      emulate_matmul({&call, 1}, {split, 128, 64, false}, split);
      const std::vector<float> want = placed.read();
      emulate_matmul({&call, 1}, tiling, 4);
      const std::vector<float> got = placed.read();
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << "seed " << seed << ", split " << split << ", rows " << rows;
    }
  }
}

// The same in pairs of tiles with tokens on M. Rows of out with and without whole 16-byte words.
TEST_F(MatmulEmulated, CodesOfBothInPairs) {
  for (const int tokens : {128, 256}) {
    for (const int split : {1, 2, 4}) {
      const int each = between(0, 1) == 0 ? 2 : 8;
      Problem p(random, between(1, tokens + 90), each * between(100 / each, 400 / each),
                16 * between(40, 70), DType::e4m3);
      p.make_x_codes(random);
      p.out_bf16 = between(0, 1) == 0;
      p.out_stride = (p.n + 15) / 8 * 8 + each % 8 * between(0, 1);
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      if (!p.out_bf16 && between(0, 2) > 0) p.before = random_f32(random, p.m * p.out_stride);
      check(p, {split, 128, tokens, true}, 2 * between(1, 2));
      if (split > 1) check(p, {split, 128, tokens, true, 2, true}, 32);
      if (tokens == 128) check(p, {split, 128, 128, true, 2, false, false, true}, 20);
      if (tokens == 128 && split > 1) check(p, {split, 128, 128, true, 2, true, false, true}, 80);
      if (split > 1 && tokens == 256) {
        // The last round has few tiles, whose parts are work tiles.
        Problem last(random, 256 * (split + 1) + between(1, 250), 2 * between(20, 100),
                     16 * between(40, 70), DType::e4m3);
        last.make_x_codes(random);
        last.out_bf16 = between(0, 1) == 0;
        const MatmulTiling tiling{split, 128, 256, true, 2, false, true};
        check(last, tiling, 2 * (split + 1));
      }
    }
  }
}

// e4m3 weights with a scale for each row, and tokens in bf16 or e4m3; rows that end inside a tile.
TEST_F(MatmulEmulated, ScalesOfRows) {
  for (const bool codes : {false, true}) {
    for (const int tokens : {8, 64, 128}) {
      const int split = tokens == 128 ? 1 : 2;
      Problem p(random, between(1, tokens + 9), 2 * between(50, 200), 16 * between(20, 60),
                DType::e4m3);
      p.scale_by_rows(random);
      if (codes) p.make_x_codes(random);
      check(p, {split, 16 * between(3, 8), tokens, false}, split * between(1, 2));
    }
    Problem p(random, between(1, 150), 4 * between(25, 100), 16 * between(20, 40), DType::e4m3);
    p.scale_by_rows(random);
    if (codes) p.make_x_codes(random);
    check(p, {1, 128, 128, true}, 2);
  }
}

}  // namespace
}  // namespace lathe::cuda
