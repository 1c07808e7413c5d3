#include "layout/rope/rope.h"

#include <algorithm>
#include <thread>

#include "base/test_scale.h"
#include "layout/codec/test/codec_test_util.h"

namespace lathe {
namespace {

#include "layout/codec/test/codec_fixture.inc"

RopeTable table_of(const RopeConfig& config, std::int64_t positions) {
  auto t = RopeTable::make(config, positions);
  EXPECT_TRUE(t.ok());
  return *t;
}

TEST(Rope, TableHoldsCosThenSinPerPosition) {
  const RopeTable t = table_of({.dim = 4, .theta = 100}, 3);
  ASSERT_EQ(t.data().size(), 12u);
  // The frequencies are 1 and 100^(-1/2) = 0.1.
  EXPECT_EQ(t.cos(LocalPos(0))[0], 1.0f);
  EXPECT_EQ(t.sin(LocalPos(0))[1], 0.0f);
  EXPECT_EQ(t.cos(LocalPos(2))[0], static_cast<float>(std::cos(2.0)));
  EXPECT_EQ(t.cos(LocalPos(2))[1], static_cast<float>(std::cos(0.2)));
  EXPECT_EQ(t.sin(LocalPos(2))[1], static_cast<float>(std::sin(0.2)));
  EXPECT_EQ(t.data()[8 + 2], t.sin(LocalPos(2))[0]);
}

// Rows are computed when they are used, also by threads at once, and the same whoever asks first.
TEST(Rope, RowsAreComputedWhenUsed) {
  const RopeConfig config{.dim = 8, .theta = 500};
  const RopeTable whole = table_of(config, 1000);
  const std::vector<float> all(whole.data().begin(), whole.data().end());
  const RopeTable shared = table_of(config, 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int32_t i = 0; i < 1000; ++i) {
        const LocalPos p((i * 37 + t * 11) % 1000);
        const float* row = shared.rows(std::span(&p, 1)) + p.value * 8;
        EXPECT_TRUE(std::equal(row, row + 8, all.data() + p.value * 8)) << p.value;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  // 8 million positions, of which two blocks are touched.
  const RopeTable longest = table_of(config, 8 << 20);
  const LocalPos last((8 << 20) - 1);
  EXPECT_EQ(longest.cos(last)[0], static_cast<float>(std::cos(static_cast<double>(last.value))));
  EXPECT_EQ(longest.sin(LocalPos(1))[0], static_cast<float>(std::sin(1.0)));
}

// DeepSeek V4's compressed layers: low 15, high 25, and no factor for cos and sin.
TEST(Rope, YarnOfDeepSeekV4) {
  const YarnConfig yarn{.factor = 16, .original_context = 65536};
  const YarnRange range = yarn_range(64, 160000, yarn);
  EXPECT_EQ(range.low, 15);
  EXPECT_EQ(range.high, 25);
  const RopeConfig config{.dim = 64, .theta = 160000, .yarn = yarn};
  EXPECT_EQ(range.low, kYarnV4Low);
  EXPECT_EQ(range.high, kYarnV4High);
  EXPECT_EQ(rope_magnitude(config), 1);
  const auto f = rope_frequencies(config);
  ASSERT_EQ(f.size(), std::size(kYarnV4Frequencies));
  for (std::size_t i = 0; i < f.size(); ++i) {
    EXPECT_NEAR(f[i] / kYarnV4Frequencies[i], 1, 1e-14) << i;
  }
  const auto own = rope_frequencies({.dim = 64, .theta = 160000});
  for (std::size_t i = 0; i <= 15; ++i) EXPECT_EQ(f[i], own[i]);
  for (std::size_t i = 25; i < 32; ++i) EXPECT_DOUBLE_EQ(f[i], own[i] / 16);
  EXPECT_NEAR(f[20] / own[20], 0.5 + 0.5 / 16, 1e-12);
}

// The model's code computes frequencies and angles in f32. Values from torch 2.15 on a CPU:
// theta^(-i / 32), blended as above, times f32(position).
TEST(Rope, AnglesInF32) {
  const RopeConfig main{.dim = 64, .theta = 10000, .f32_angles = true};
  RopeConfig compress{.dim = 64, .theta = 160000, .f32_angles = true};
  compress.yarn = YarnConfig{.factor = 16, .original_context = 65536};
  const RopeConfig configs[] = {main, compress};
  constexpr std::size_t kPairs[] = {0, 5, 12, 20, 31};
  struct Known {
    std::size_t config;
    std::int32_t position;
    float cosines[5];
  };
  constexpr Known kKnown[] = {
      {0, 1, {0.540302277f, 0.972014427f, 0.999500036f, 0.999994993f, 1.0f}},
      {0, 65535, {0.192344025f, -0.788775265f, 0.495427221f, 0.994468272f, -0.774074137f}},
      {0, 65536, {-0.721834779f, -0.911171615f, 0.52274251f, 0.994795084f, -0.774158657f}},
      {0, 1048575, {0.788042247f, 0.734388113f, -0.793054104f, -0.0655008927f, -0.0288500842f}},
      {1, 1, {0.540302277f, 0.988201499f, 0.999937475f, 0.99999994f, 1.0f}},
      {1, 65535, {0.192344025f, 0.297908694f, -0.756713569f, 0.817993224f, 0.999307156f}},
      {1, 65536, {-0.721834779f, 0.440200031f, -0.749364555f, 0.817822039f, 0.999307096f}},
      {1, 1048575, {0.788042247f, 0.657193244f, 0.541982532f, -0.926497638f, 0.827786207f}},
  };
  for (const Known& known : kKnown) {
    const RopeTable t = table_of(configs[known.config], known.position + 1);
    for (std::size_t i = 0; i < std::size(kPairs); ++i) {
      EXPECT_EQ(t.cos(LocalPos(known.position))[kPairs[i]], known.cosines[i])
          << known.config << " " << known.position << " " << kPairs[i];
    }
  }
}

// gpt-oss: the blended range is not rounded. Values from transformers 5.23, in f32.
TEST(Rope, YarnOfGptOss) {
  const YarnConfig yarn{
      .factor = 32, .original_context = 4096, .mscale_all_dim = 0, .truncate = false};
  const YarnRange range = yarn_range(64, 150000, yarn);
  EXPECT_NEAR(range.low, 8.0928, 1e-3);
  EXPECT_NEAR(range.high, 17.3980, 1e-3);
  const RopeConfig config{.dim = 64, .theta = 150000, .yarn = yarn};
  EXPECT_NEAR(rope_magnitude(config), 1.3465735902799727, 1e-15);
  const auto f = rope_frequencies(config);
  const std::pair<std::size_t, double> known[] = {
      {0, 1},
      {8, 0.0508132726},
      {9, 0.0317056961},
      {12, 0.00679495931},
      {15, 0.00105260219},
      {17, 0.000129318694},
      {18, 3.83088118e-05},
      {31, 3.0235114e-07},
  };
  for (const auto& [pair, frequency] : known) {
    EXPECT_NEAR(f[pair] / frequency, 1, 2e-6) << pair;
  }
}

// DeepSeek V3: factor 40, 4096 tokens, mscale = mscale_all_dim = 1. Values from
// tools/fixtures/make_codec_fixture.py (the published formula in numpy).
TEST(Rope, YarnOfDeepSeekV3) {
  const YarnConfig yarn{.factor = 40, .original_context = 4096};
  const YarnRange range = yarn_range(64, 10000, yarn);
  EXPECT_EQ(range.low, 10);
  EXPECT_EQ(range.high, 23);
  EXPECT_EQ(range.low, kYarnV3Low);
  EXPECT_EQ(range.high, kYarnV3High);
  const auto f = rope_frequencies({.dim = 64, .theta = 10000, .yarn = yarn});
  ASSERT_EQ(f.size(), std::size(kYarnV3Frequencies));
  for (std::size_t i = 0; i < f.size(); ++i) {
    EXPECT_NEAR(f[i] / kYarnV3Frequencies[i], 1, 1e-14) << i;
  }
}

// Llama 3.1: theta 500000, factor 8, low and high frequency factors 1 and 4, 8192 tokens. Values
// from the published formula in numpy; transformers 5.17, in f32, agrees to 4e-7.
TEST(Rope, Llama3OfLlama31) {
  const RopeConfig config{.dim = 128, .theta = 500000, .llama3 = Llama3RopeConfig{8, 8192, 1, 4}};
  const auto f = rope_frequencies(config);
  ASSERT_EQ(f.size(), 64u);
  const std::pair<std::size_t, double> want[] = {
      {0, 1.0},
      {10, 0.12868737343265052},
      {28, 0.003211445994752591},
      {29, 0.002166570763503359},  // the first blended pair
      {30, 0.0013718935677611381},
      {32, 0.0005248461609929547},
      {34, 0.0001785078127679964},  // the last blended pair
      {35, 9.556212353964683e-05},
      {50, 4.411534674558404e-06},
      {63, 3.068925988914511e-07}};
  for (const auto& [i, value] : want) EXPECT_NEAR(f[i] / value, 1, 1e-14) << i;
  EXPECT_EQ(rope_magnitude(config), 1);
}

TEST(Rope, LinearDividesEveryFrequency) {
  const auto own = rope_frequencies({.dim = 16, .theta = 10000});
  const auto f = rope_frequencies({.dim = 16, .theta = 10000, .linear_factor = 2.5});
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_DOUBLE_EQ(f[i], own[i] / 2.5);
}

// Gemma 4: theta^(-2i / 512) for the first 64 of 256 pairs.
TEST(Rope, PairsThatDoNotRotateKeepTheirElements) {
  const RopeConfig config{
      .dim = 512, .theta = 1e6, .pairing = RopePairing::split_half, .pairs = 64};
  const std::vector<double> f = rope_frequencies(config);
  ASSERT_EQ(f.size(), 256u);
  EXPECT_DOUBLE_EQ(f[63], std::pow(1e6, -126.0 / 512));
  EXPECT_EQ(std::ranges::count(f, 0.0), 192);
  const RopeTable table = *RopeTable::make(config, 1000);
  EXPECT_EQ(table.cos(LocalPos(999))[64], 1);
  EXPECT_EQ(table.sin(LocalPos(999))[255], 0);
  EXPECT_NE(table.sin(LocalPos(999))[63], 0);
  EXPECT_FALSE(RopeTable::make({.dim = 64, .pairs = 33}, 1).ok());
  EXPECT_TRUE(RopeTable::make({.dim = 64, .pairs = 0}, 1).ok());
}

TEST(Rope, RefusesScalingsOutOfRange) {
  const auto field = [](const RopeConfig& config) {
    const auto t = RopeTable::make(config, 4);
    return t ? std::string("none") : t.error().field;
  };
  const Llama3RopeConfig good;
  EXPECT_EQ(field({.llama3 = good}), "none");
  Llama3RopeConfig bad = good;
  bad.factor = 0.5;
  EXPECT_EQ(field({.llama3 = bad}), "rope.llama3.factor");
  bad = good;
  bad.original_context = std::nan("");
  EXPECT_EQ(field({.llama3 = bad}), "rope.llama3.original_context");
  bad = good;
  bad.low_freq_factor = 0;
  EXPECT_EQ(field({.llama3 = bad}), "rope.llama3.low_freq_factor");
  bad.low_freq_factor = bad.high_freq_factor;
  EXPECT_EQ(field({.llama3 = bad}), "none");
  bad.low_freq_factor = 5;
  EXPECT_EQ(field({.llama3 = bad}), "rope.llama3.high_freq_factor");
  EXPECT_EQ(field({.linear_factor = 0.5}), "rope.linear_factor");
  EXPECT_EQ(field({.llama3 = good, .linear_factor = 2}), "rope");
  EXPECT_EQ(field({.yarn = YarnConfig{}, .llama3 = good}), "rope");
}

TEST(Rope, YarnMagnitude) {
  YarnConfig yarn{.factor = 40, .original_context = 4096, .mscale = 1, .mscale_all_dim = 0};
  EXPECT_NEAR(rope_magnitude({.yarn = yarn}), 0.1 * std::log(40.0) + 1, 1e-15);
  yarn.mscale = 0.707;
  yarn.mscale_all_dim = 1;
  const double want = (0.0707 * std::log(40.0) + 1) / (0.1 * std::log(40.0) + 1);
  EXPECT_NEAR(rope_magnitude({.yarn = yarn}), want, 1e-15);
  const RopeTable t = table_of({.dim = 16, .theta = 10000, .yarn = yarn}, 1);
  EXPECT_EQ(t.cos(LocalPos(0))[0], static_cast<float>(want));
  yarn.factor = 1;
  EXPECT_EQ(rope_magnitude({.yarn = yarn}), 1);
}

TEST(Rope, BlendRangeIsClamped) {
  // Few tokens: every pair makes fewer than beta_slow turns.
  const YarnRange few = yarn_range(16, 10000, {.factor = 4, .original_context = 4});
  EXPECT_EQ(few.low, 0);
  EXPECT_LE(few.high, 0);
  // A huge context: high would be beyond the last pair.
  const YarnRange many = yarn_range(16, 10, {.factor = 4, .original_context = 1e30});
  EXPECT_EQ(many.high, 15);
  for (double context : {4.0, 1e30}) {
    for (double f : rope_frequencies(
             {.dim = 16, .yarn = YarnConfig{.factor = 4, .original_context = context}})) {
      EXPECT_TRUE(std::isfinite(f) && f > 0);
    }
  }
}

TEST(Rope, PairingsOnAKnownVector) {
  // Frequencies 1 and 0.1; x = 1 2 3 4; position 1.
  const double c0 = std::cos(1.0), s0 = std::sin(1.0), c1 = std::cos(0.1), s1 = std::sin(0.1);
  float a[4] = {1, 2, 3, 4};
  rotate_row(table_of({.dim = 4, .theta = 100}, 2), LocalPos(1), RopeDirection::forward, a);
  EXPECT_NEAR(a[0], 1 * c0 - 2 * s0, 1e-6);
  EXPECT_NEAR(a[1], 1 * s0 + 2 * c0, 1e-6);
  EXPECT_NEAR(a[2], 3 * c1 - 4 * s1, 1e-6);
  EXPECT_NEAR(a[3], 3 * s1 + 4 * c1, 1e-6);
  float b[4] = {1, 2, 3, 4};
  rotate_row(table_of({.dim = 4, .theta = 100, .pairing = RopePairing::split_half}, 2), LocalPos(1),
             RopeDirection::forward, b);
  EXPECT_NEAR(b[0], 1 * c0 - 3 * s0, 1e-6);
  EXPECT_NEAR(b[2], 1 * s0 + 3 * c0, 1e-6);
  EXPECT_NEAR(b[1], 2 * c1 - 4 * s1, 1e-6);
  EXPECT_NEAR(b[3], 2 * s1 + 4 * c1, 1e-6);
}

TEST(Rope, InverseUndoesForward) {
  const RopeTable t = table_of({.dim = 64}, 100);
  OwnedRows rows(DType::f32, 1, 64);
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (int c = 0; c < 64; ++c) rows.set(0, c, normal(rng));
  const OwnedRows before(rows);
  const LocalPos p(77);
  ASSERT_TRUE(apply_rope(t, std::span(&p, 1), rows.view, 1, 0, RopeDirection::forward).ok());
  EXPECT_GT(std::fabs(rows.get(0, 0) - before.get(0, 0)), 1e-3f);
  ASSERT_TRUE(apply_rope(t, std::span(&p, 1), rows.view, 1, 0, RopeDirection::inverse).ok());
  for (int c = 0; c < 64; ++c) EXPECT_NEAR(rows.get(0, c), before.get(0, c), 1e-6);
}

TEST(Rope, FastGivesTheReferenceBits) {
  for_each_target([](const std::string& target) {
    std::mt19937 rng(test_seed(2));
    for (const int dim : scaled({16, 48, 64, 128})) {
      for (RopePairing pairing : enum_values<RopePairing>()) {
        const RopeTable t = table_of({.dim = dim, .pairing = pairing}, 50);
        for (DType dtype : {DType::bf16, DType::f32}) {
          for (RopeDirection direction : enum_values<RopeDirection>()) {
            OwnedRows slow(dtype, 6, 3 * (dim + 32), 1);
            fill_adversarial(slow, rng);
            OwnedRows fast(slow);
            const std::vector<LocalPos> p = {LocalPos(3),  LocalPos(0), LocalPos(-1),
                                             LocalPos(49), LocalPos(7), LocalPos(8)};
            ASSERT_TRUE(apply_rope(t, p, slow.view, 3, 16, direction, CodecPath::reference).ok());
            ASSERT_TRUE(apply_rope(t, p, fast.view, 3, 16, direction, CodecPath::fast).ok());
            ASSERT_EQ(first_difference(slow.bytes, fast.bytes), -1)
                << target << " " << dim << " " << name(pairing);
          }
        }
      }
    }
  });
}

TEST(Rope, LeavesHolesAndOtherElements) {
  const RopeTable t = table_of({.dim = 16}, 4);
  for (CodecPath path : enum_values<CodecPath>()) {
    OwnedRows rows(DType::f32, 2, 96, 4);
    for (int c = 0; c < 96; ++c) rows.set(0, c, 1), rows.set(1, c, 1);
    const std::vector<LocalPos> p = {LocalPos(3), LocalPos(-1)};
    ASSERT_TRUE(apply_rope(t, p, rows.view, 2, 32, RopeDirection::forward, path).ok());
    for (int c = 0; c < 96; ++c) {
      EXPECT_EQ(rows.get(1, c), 1);
      if (c % 48 < 32) {
        EXPECT_EQ(rows.get(0, c), 1);
      }
      if (c % 48 == 32) {
        EXPECT_NE(rows.get(0, c), 1);
      }
    }
    EXPECT_EQ(rows.bytes[4 * 96], kPoison);
  }
}

TEST(Rope, RefusesWithAReason) {
  EXPECT_EQ(RopeTable::make({.dim = 15}, 4).error().field, "rope.dim");
  EXPECT_EQ(RopeTable::make({.dim = 0}, 4).error().field, "rope.dim");
  EXPECT_EQ(RopeTable::make({.theta = 1}, 4).error().field, "rope.theta");
  EXPECT_EQ(RopeTable::make({.theta = std::nan("")}, 4).error().field, "rope.theta");
  EXPECT_EQ(RopeTable::make({}, -1).error().field, "rope.positions");
  const auto yarn_error = [](const YarnConfig& y) {
    return RopeTable::make({.yarn = y}, 1).error().field;
  };
  EXPECT_EQ(yarn_error({.factor = 0.5}), "rope.yarn.factor");
  EXPECT_EQ(yarn_error({.original_context = 0}), "rope.yarn.original_context");
  EXPECT_EQ(yarn_error({.beta_slow = 0}), "rope.yarn.beta_slow");
  EXPECT_EQ(yarn_error({.beta_fast = 0.5}), "rope.yarn.beta_fast");
  EXPECT_EQ(yarn_error({.mscale = -1}), "rope.yarn.mscale");
  EXPECT_EQ(yarn_error({.mscale_all_dim = -1}), "rope.yarn.mscale_all_dim");
  EXPECT_TRUE(RopeTable::make({}, 0).ok());

  const RopeTable t = table_of({.dim = 16}, 4);
  OwnedRows rows(DType::f32, 2, 96);
  const std::vector<std::byte> before = rows.bytes;
  const auto apply = [&](std::vector<LocalPos> p, std::int64_t heads, std::int64_t first) {
    const auto r = apply_rope(t, p, rows.view, heads, first, RopeDirection::forward);
    return r.ok() ? std::string("ok") : r.error().field;
  };
  EXPECT_EQ(apply({LocalPos(0)}, 1, 0), "rows.rows");
  EXPECT_EQ(apply({LocalPos(0), LocalPos(4)}, 1, 0), "positions[1]");
  EXPECT_EQ(apply({LocalPos(-2), LocalPos(0)}, 1, 0), "positions[0]");
  EXPECT_EQ(apply({LocalPos(0), LocalPos(1)}, 0, 0), "heads");
  EXPECT_EQ(apply({LocalPos(0), LocalPos(1)}, 4, 0), "heads");
  EXPECT_EQ(apply({LocalPos(0), LocalPos(1)}, 1, 96), "first");
  EXPECT_EQ(apply({LocalPos(0), LocalPos(1)}, 1, -16), "first");
  EXPECT_EQ(apply({LocalPos(0), LocalPos(1)}, 1, 8), "first");
  EXPECT_EQ(first_difference(before, rows.bytes), -1);
}

// get_llama_4_attn_scale() of transformers 5.24.
TEST(Rope, QueriesGrowWithTheirPosition) {
  const RopeConfig plain{.dim = 16, .theta = 10000};
  RopeConfig grown = plain;
  grown.growth = RopeGrowth{.beta = 0.1, .context = 8};
  const auto from = RopeTable::make(plain, 40), to = RopeTable::make(grown, 40);
  ASSERT_TRUE(from.ok() && to.ok());
  for (const auto& [position, scale] :
       {std::pair(0, 1.0), std::pair(7, 1.0), std::pair(8, 1.0 + 0.1 * std::log(2.0)),
        std::pair(31, 1.0 + 0.1 * std::log(4.0))}) {
    for (int i = 0; i < 16; ++i) {
      EXPECT_NEAR(to->cos(LocalPos(position))[i], from->cos(LocalPos(position))[i] * scale, 1e-6);
    }
  }
  // Llama4TextAttention of transformers 5.24 counts a position from 1.
  grown.growth->shift = 1;
  const auto from_one = RopeTable::make(grown, 40);
  ASSERT_TRUE(from_one.ok());
  for (int position = 0; position < 39; ++position) {
    EXPECT_NEAR(from_one->cos(LocalPos(position))[0] * to->cos(LocalPos(0))[0],
                std::cos(position) * (1 + 0.1 * std::log1p((position + 1) / 8)), 1e-6);
  }
  grown.growth->beta = -1;
  EXPECT_FALSE(RopeTable::make(grown, 8).ok());
  grown.growth = RopeGrowth{.beta = 1, .context = 0};
  EXPECT_FALSE(RopeTable::make(grown, 8).ok());
}

// A table's length alone decides which frequencies it has.
TEST(Rope, LongTablesHaveOtherFrequencies) {
  RopeConfig config{.dim = 4, .theta = 100};
  config.longrope = LongRopeConfig{{1, 2}, {4, 8}, 10, 1};
  EXPECT_FALSE(rope_is_long(config, 10));
  EXPECT_TRUE(rope_is_long(config, 11));
  EXPECT_EQ(rope_frequencies(config, 10), (std::vector<double>{1, 0.05}));
  EXPECT_EQ(rope_frequencies(config, 11), (std::vector<double>{0.25, 0.0125}));
  config.yarn = YarnConfig{};
  EXPECT_FALSE(RopeTable::make(config, 4).ok());
  config.yarn.reset();
  config.longrope->short_factors.pop_back();
  EXPECT_FALSE(RopeTable::make(config, 4).ok());
}

}  // namespace
}  // namespace lathe
