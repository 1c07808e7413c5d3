// The choice of tiles: invariants for any shape, and how full the SMs are for shapes of known
// models.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/sm90/matmul/matmul_tiling.h"

namespace lathe::cuda {
namespace {

// The order of a sum must not depend on the number of tokens.
TEST(MatmulTiling, SplitsKAlikeForAnyNumberOfTokens) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const auto between = [&](int a, int b) {
    return std::uniform_int_distribution<int>(a, b)(random);
  };
  for (int i = 0; i < 300; ++i) {
    MatmulShape s{.rows = 8 * between(1, 4000), .k = 8 * between(1, 2500)};
    s.weight_bits = 4 << between(0, 2);
    s.packed = s.weight_bits == 4;
    s.sms = between(0, 1) == 0 ? 132 : between(8, 144);
    if (s.weight_bits == 8 && between(0, 2) > 0) {
      s.x_bits = 8;
      s.factors = true;
      s.many = between(0, 3) > 0;
    }
    s.gated = between(0, 1) == 0;
    s.keeps = between(0, 1) == 0;
    s.spreads = s.keeps && (s.weight_bits == 16 || s.many) && between(0, 1) == 0;
    s.boxes = between(0, 1) == 0;
    s.m = 1;
    const int split = choose_tiling(s).split;
    for (int j = 0; j < 20; ++j) {
      s.m = between(1, j < 10 ? 300 : 20000);
      const MatmulTiling tiling = choose_tiling(s);
      ASSERT_EQ(tiling.split, split)
          << "seed " << seed << ", " << s.rows << " x " << s.k << ", m " << s.m;
      ASSERT_EQ(tiling.tile_rows % 16, 0);
      if (tiling.spread) {
        // A cluster of two blocks for each part of each pair of tiles.
        const std::int64_t pairs = (s.rows + 255) / 256;
        const std::int64_t tiles = (s.m + tiling.tile_tokens - 1) / tiling.tile_tokens;
        ASSERT_TRUE(s.spreads && tiling.pair && split > 1);
        ASSERT_LE(pairs * tiles * split, std::max(1, s.sms / 2));
      }
      if (tiling.warpgroups == 1 && !s.packed) {
        ASSERT_TRUE(s.weight_bits == 8 && s.x_bits == 8 && tiling.tile_tokens == 64);
        ASSERT_TRUE(!tiling.pair && tiling.tile_rows <= 64 && split <= 4);
        continue;
      }
      if (tiling.warpgroups != 2) {
        ASSERT_TRUE(s.packed && s.m <= 64 && tiling.tile_tokens <= 64 && !tiling.pair);
        ASSERT_EQ(tiling.tile_rows, 64 * tiling.warpgroups);
        // Parts of K end where they do with stages of one chunk.
        const std::int64_t chunks = (s.k + 127) / 128;
        ASSERT_TRUE(split == 1 || (tiling.warpgroups == 1 && chunks % (2 * split) == 0));
        continue;
      }
      if (tiling.splits_last) {
        const std::int64_t pairs = (s.rows + 255) / 256 * ((s.m + 255) / 256);
        ASSERT_TRUE(s.spreads && s.many && tiling.pair && tiling.tile_tokens == 256 && split > 1);
        ASSERT_TRUE(pairs > s.sms / 2 && pairs % (s.sms / 2) * split <= s.sms / 2);
      }
      if (tiling.quad) {
        const std::int64_t quads = (s.rows + 255) / 256 * ((s.m + 255) / 256);
        ASSERT_TRUE(tiling.pair && tiling.tile_tokens == 128 && tiling.tile_rows == 128);
        ASSERT_TRUE(s.m > 128 && (s.weight_bits == 16 || s.many));
        ASSERT_TRUE(!tiling.spread || (s.spreads && split > 1));
        ASSERT_LE(quads * (tiling.spread ? split : 1), clusters_at_once(s.sms, 4));
        continue;
      }
      if (tiling.by_tokens) {
        ASSERT_TRUE(s.many && s.m > 64 && tiling.tile_rows <= 128);
        ASSERT_TRUE(tiling.pair && !tiling.spread && tiling.tile_tokens == 64);
        continue;
      }
      if (tiling.pair && tiling.tile_tokens == 64) {
        ASSERT_TRUE(s.many && s.m > 32 && s.m <= 64 && split == 1 && tiling.tile_rows <= 256);
        continue;
      }
      if (tiling.tall) {
        ASSERT_TRUE(s.boxes && s.weight_bits == 16 && split == 1 && s.m > 64);
        ASSERT_TRUE(tiling.pair && tiling.tile_rows == 192 && tiling.tile_tokens == 256);
        continue;
      }
      ASSERT_LE(tiling.tile_rows, 128);
      // Blocks of 256 tokens have no registers for a second accumulator.
      ASSERT_TRUE(tiling.tile_tokens < 256 || (tiling.pair && (tiling.split == 1 || s.keeps)));
      ASSERT_TRUE(!tiling.pair || (tiling.tile_rows == 128 && tiling.tile_tokens >= 128));
    }
  }
}

// Decode reads each weight once, and at least 9 in 10 SMs read until the end.
TEST(MatmulTiling, FillsTheMachineForKnownShapes) {
  struct Case {
    std::int64_t rows, k;
    int bits;
  };
  for (const Case c :
       {Case{6144, 4096, 16}, Case{4096, 4096, 16}, Case{24576, 4096, 16}, Case{4096, 12288, 16},
        Case{151936, 4096, 16}, Case{28672, 4096, 16}, Case{4096, 14336, 16}, Case{10240, 5120, 16},
        Case{5120, 8192, 16}, Case{51200, 5120, 16}, Case{5120, 25600, 16}, Case{24576, 1536, 8},
        Case{7168, 16384, 8}, Case{4096, 7168, 8}}) {
    for (const std::int64_t m : {1, 8, 32}) {
      const MatmulTiling tiling = choose_tiling({c.rows, c.k, m, c.bits, 132});
      EXPECT_GE(tiling.tile_tokens, m);
      const std::int64_t items = (c.rows + tiling.tile_rows - 1) / tiling.tile_rows;
      const std::int64_t clusters = 132 / tiling.split;
      const std::int64_t rounds = (items + clusters - 1) / clusters;
      const double full = static_cast<double>(c.rows) /
                          static_cast<double>(rounds * tiling.tile_rows * 132) * tiling.split;
      EXPECT_GE(full, 0.9) << c.rows << " x " << c.k << ", m " << m << ": split " << tiling.split
                           << ", rows " << tiling.tile_rows;
    }
  }
}

// Experts of one token: at least 7 in 8 SMs read until the end, where tiles of 128 rows leave a
// quarter to a half of them idle.
// Few rows by a few hundred tokens: without parts at the same time a quarter of the SMs work.
TEST(MatmulTiling, SpreadsPartsWhereTilesAreFew) {
  for (const std::int64_t m : {150, 256, 384}) {
    MatmulShape s{.rows = 2048, .k = 2816, .m = m, .keeps = true, .spreads = true};
    const MatmulTiling tiling = choose_tiling(s);
    EXPECT_TRUE(tiling.spread) << m;
    s.spreads = false;
    EXPECT_FALSE(choose_tiling(s).spread) << m;
    s.spreads = true;
    s.rows = 28672;
    EXPECT_FALSE(choose_tiling(s).spread) << m;
  }
}

TEST(MatmulTiling, GroupsOfOneTokenFillTheMachine) {
  struct Case {
    std::int64_t rows, k, experts;
    bool gated;
  };
  for (const Case c :
       {Case{1536, 2048, 8, true}, Case{2048, 768, 8, false}, Case{2816, 2048, 6, true},
        Case{2048, 1408, 6, false}, Case{1024, 2048, 8, true}, Case{2048, 512, 8, false},
        Case{4096, 7168, 8, true}}) {
    MatmulShape s{.rows = c.rows, .k = c.k, .m = c.experts};
    s.gated = c.gated;
    const int rows = choose_group_rows(s, c.experts, 8);
    EXPECT_EQ(rows % (c.gated ? 32 : 16), 0);
    const std::int64_t tiles = (c.rows + rows - 1) / rows * c.experts;
    const double full = static_cast<double>(c.rows * c.experts) /
                        static_cast<double>((tiles + 131) / 132 * 132 * rows);
    EXPECT_GE(full, 7. / 8) << c.rows << " x " << c.k << ": tiles of " << rows;
  }
}

}  // namespace
}  // namespace lathe::cuda
