// Runs the matmul kernels thread by thread on the CPU (common/emulator.h) against sums in double.
// Compiled alone: it includes kernels.
#include <bit>

#include <list>

#include "kernels/cuda/sm90/matmul/test/matmul_checks.h"
// Device code is included last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/matmul/deep/deep_packed.cuh"
#include "kernels/cuda/sm90/matmul/matmul.cuh"
#include "kernels/cuda/sm90/matmul/matmul_bf16.cuh"
#include "kernels/cuda/sm90/matmul/matmul_codes.cuh"
#include "kernels/cuda/sm90/matmul/matmul_e4m3.cuh"
#include "kernels/cuda/sm90/matmul/matmul_packed.cuh"
#include "kernels/cuda/sm90/matmul/quantize.cuh"

namespace lathe::cuda {
namespace {

using matmul_test::kMxfp4;
using matmul_test::Placed;
using matmul_test::Problem;
using matmul_test::random_f32;
using matmul_test::WeightFormat;

/// Host memory in place of the device's.
struct Host {
  std::list<std::vector<uint4>> kept;
  template <class T>
  T* put(const std::vector<T>& v) {
    kept.emplace_back(v.size() * sizeof(T) / sizeof(uint4) + 1);
    std::memcpy(kept.back().data(), v.data(), v.size() * sizeof(T));
    return reinterpret_cast<T*>(kept.back().data());
  }
  template <class T>
  void get(const T* from, std::vector<T>& to) const {
    std::memcpy(to.data(), from, to.size() * sizeof(T));
  }
};

CUtensorMap map_of(const RowBoxes& b) {
  CUtensorMap map{};
  const PageMap m{static_cast<const unsigned char*>(b.base),
                  b.page_stride,
                  b.row_stride,
                  b.box_rows,
                  b.element_bytes,
                  b.box_bytes,
                  b.rows,
                  b.pages,
                  b.row_bytes,
                  b.turn_stride};
  std::memcpy(&map, &m, sizeof m);
  return map;
}

template <class Format, int kTokens, MatmulCluster kCluster, bool kGroups = false>
void emulate_tile(const MatmulLaunch& l) {
  using T = MatmulTile<Format, kTokens, kCluster, kGroups>;
  MatmulMaps maps{};
  maps.x = map_of(l.x);
  for (int i = 0; i < l.params.weight_count; ++i) {
    maps.weights[i] = map_of(l.weights[i]);
    maps.out[i] = map_of(l.out[i]);
  }
  if (l.params.dense.items > 0) {
    maps.x_dense = map_of(l.x_dense);
    maps.weights[kDenseWeight] = map_of(l.weights[kDenseWeight]);
  }
  const int blocks = T::kPair ? 2 : l.params.split;
  emulate_clusters(blocks, {static_cast<unsigned>(l.instance.clusters * blocks), 1, 1}, T::kThreads,
                   matmul_kernel<T>, l.params, maps);
}
template <class Row, MatmulCluster kCluster>
void emulate_deep(const MatmulLaunch& l) {
  using Format = MatmulPackedDeep<Row>;
  if constexpr (kCluster == MatmulCluster::wide) {
    if (l.instance.tokens == 8) return emulate_tile<Format, 8, kCluster>(l);
  }
  if (l.instance.tokens == 16) return emulate_tile<Format, 16, kCluster>(l);
  if (l.instance.tokens == 32) return emulate_tile<Format, 32, kCluster>(l);
  emulate_tile<Format, 64, kCluster>(l);
}
template <class Format>
void emulate_format(const MatmulLaunch& l) {
  if constexpr (requires { typename Format::Row; }) {
    using Row = typename Format::Row;
    if (l.instance.warpgroups == 4) return emulate_deep<Row, MatmulCluster::wide>(l);
    if (l.instance.warpgroups == 1) return emulate_deep<Row, MatmulCluster::narrow>(l);
  }
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  if (l.instance.pair) {
    if constexpr (std::is_same_v<Format, MatmulBf16>) {
      if (l.instance.tokens == 256) return emulate_tile<Format, 256, kPair>(l);
    }
    return emulate_tile<Format, 128, kPair>(l);
  }
  if (l.instance.tokens == 8) return emulate_tile<Format, 8, kParts>(l);
  if (l.instance.tokens == 16) return emulate_tile<Format, 16, kParts>(l);
  if (l.instance.tokens == 32) return emulate_tile<Format, 32, kParts>(l);
  if (l.instance.tokens == 64) return emulate_tile<Format, 64, kParts>(l);
  emulate_tile<Format, 128, kParts>(l);
}
template <class Format>
void emulate_groups(const MatmulLaunch& l) {
  constexpr auto kParts = MatmulCluster::parts, kPair = MatmulCluster::pair;
  if (l.instance.tokens == 8) return emulate_tile<Format, 8, kParts, true>(l);
  if (l.instance.tokens == 32) return emulate_tile<Format, 32, kParts, true>(l);
  if (!l.instance.pair) return emulate_tile<Format, 128, kParts, true>(l);
  emulate_tile<Format, 128, kPair, true>(l);
}
// Calls run<Format>() with the kernel's format.
template <class Run>
void with_format(const WeightView& w, const MatmulLaunch& l, const Run& run) {
  if (l.params.x_scales != nullptr) return run.template operator()<MatmulE4m3>();
  if (w.dtype == DType::bf16) return run.template operator()<MatmulBf16>();
  if (w.dtype == DType::e4m3) return run.template operator()<MatmulE4m3Weights>();
  if (is_mxfp4(w)) return run.template operator()<MatmulMxfp4Weights>();
  if (w.dtype == DType::e2m1) return run.template operator()<MatmulNvfp4Weights>();
  if (w.groups.dtype == DType::f16) return run.template operator()<MatmulU4HalfWeights>();
  if (w.groups.zeros != nullptr) return run.template operator()<MatmulU4ZeroWeights>();
  run.template operator()<MatmulU4Weights>();
}
void emulate_matmul(const GroupedMatmulCall& call, int tokens, int sms) {
  const MatmulLaunch l = make_launch(call, tokens, sms);
  with_format(call.w, l, [&]<class Format>() { emulate_groups<Format>(l); });
}
void emulate_matmul(std::span<const MatmulCall> calls, const MatmulTiling& tiling, int sms) {
  const MatmulLaunch l = make_launch(calls, tiling, sms);
  with_format(calls[0].w, l, [&]<class Format>() { emulate_format<Format>(l); });
}

class MatmulEmulated : public ::testing::Test {
 public:
  void check(const Problem& p, const MatmulTiling& tiling, int sms) {
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ", m " << p.m << ", n " << p.n << ", k " << p.k << ", split "
                 << tiling.split << ", tile " << tiling.tile_rows << " x " << tiling.tile_tokens
                 << (tiling.pair ? ", pairs" : "") << ", " << sms << " SMs");
    Host host;
    const Placed placed(p, host);
    const MatmulCall call = placed.call(p.m);
    ASSERT_TRUE(matmul_takes(call));
    emulate_matmul({&call, 1}, tiling, sms);
    placed.expect_right(p.m);
  }
  int between(int a, int b) { return std::uniform_int_distribution<int>(a, b)(random); }

  unsigned seed = std::random_device()();
  std::mt19937 random{seed};
};

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
  for (const int out_stride : {402, 404}) {
    Problem p(random, between(200, 300), 4 * between(25, 100), 8 * between(40, 60));
    p.out_stride = out_stride;
    check(p, {1, 128, 256, true}, 2);
  }
}

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

// A dense GEMM next to the groups has the bits of a launch of its own, and the groups are right.
// Its parts of K are work tiles of their own, each with its own out.
TEST_F(MatmulEmulated, DenseNextToGroups) {
  constexpr int kSms = 24;
  struct Case {
    DType dtype;
    bool codes;
    int tokens;
  };
  for (const Case c : {Case{DType::bf16, false, 8},
                       {DType::bf16, false, 32},
                       {DType::e4m3, false, 8},
                       {DType::e4m3, true, 8}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(c.dtype)
                                      << (c.codes ? ", codes" : "") << ", " << c.tokens);
    Host host;
    Problem p(random, between(1, 2 * c.tokens), 2 * between(50, 200),
              c.dtype == DType::bf16 ? 1280 : 2304, c.dtype);
    if (c.codes) p.make_x_codes(random);
    const Placed placed(p, host);
    DenseCall dense{.call = placed.call(p.m)};
    const int parts = choose_tiling(shape_of({&dense.call, 1}, kSms)).split;
    EXPECT_GT(parts, 1);
    emulate_matmul({&dense.call, 1}, {parts, 64, 16, false}, kSms);
    placed.expect_right(p.m);
    const std::vector<float> want = placed.read();
    std::vector<float> sums(static_cast<std::size_t>(parts) * want.size());
    float* const out = host.put(sums);
    dense.call.out.data = reinterpret_cast<std::byte*>(out);
    const std::vector<std::int32_t> counts = {0, between(1, 9), 3, 0, between(1, 30)};
    matmul_test::check_experts<float>(random, host, c.dtype, c.codes, counts, 128, 384,
                                      [&](GroupedMatmulCall call) {
                                        call.dense = &dense;
                                        ASSERT_TRUE(grouped_matmul_takes(call));
                                        emulate_matmul(call, c.tokens, kSms);
                                      });
    host.get(out, sums);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (static_cast<std::int64_t>(i) % p.out_stride >= p.n) continue;
      float sum = sums[i];
      for (int part = 1; part < parts; ++part)
        sum += sums[static_cast<std::size_t>(part) * want.size() + i];
      wrong += sum != want[i];
    }
    EXPECT_EQ(wrong, 0);
  }
}

// A tile of a gated dense GEMM next to the groups adds all parts of K.
TEST_F(MatmulEmulated, GatedDenseNextToGroups) {
  constexpr int kSms = 24;
  const Activation activation{ActivationKind::silu};
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(dtype));
    Host host;
    const std::int64_t m = between(1, 16), n = 8 * between(9, 30), stride = n + 8;
    const std::int64_t k = dtype == DType::bf16 ? 1280 : 2304;
    const Problem a(random, m, n, k, dtype), b(random, m, n, k, dtype);
    const Placed first(a, host), second(b, host);
    const bool up_first = between(0, 1) == 1;
    DenseCall dense{.call = first.call(m)};
    MatmulCall& call = dense.call;
    call.up = second.call(m).w;
    if (up_first) std::swap(call.w, call.up);
    call.activation = &activation;
    std::vector<bf16> want(static_cast<std::size_t>(m * stride)), got = want;
    bf16 *const alone = host.put(want), *const out = host.put(got);
    const auto rows = [&](bf16* at) {
      return MutableRowsView{reinterpret_cast<std::byte*>(at), DType::bf16, m, n, stride};
    };
    call.out = rows(alone);
    const int split = choose_tiling(shape_of({&call, 1}, kSms)).split;
    EXPECT_GT(split, 1);
    emulate_matmul({&call, 1}, {split, 64, 8, false}, kSms);
    host.get(alone, want);
    call.out = rows(out);
    const std::vector<std::int32_t> counts = {2, 0, between(1, 20)};
    matmul_test::check_gated_experts(random, host, dtype, false, counts, 128, 384,
                                     [&](GroupedMatmulCall groups) {
                                       groups.dense = &dense;
                                       ASSERT_TRUE(grouped_matmul_takes(groups));
                                       emulate_matmul(groups, 8, kSms);
                                     });
    host.get(out, got);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(bf16)), 0);
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
  // Rows of out with and without whole 16-byte words.
  for (const int more : {0, 1}) {
    Problem p(random, between(1, 150), 4 * between(25, 100), 16 * between(20, 40), DType::e4m3);
    p.make_x_codes(random);
    p.out_stride = p.n + 4 + more;
    check(p, {1, 128, 128, true}, 2);
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

// Codes and scales equal those of base/float_formats.h bit for bit, with zeros and a NaN among the
// rows.
TEST_F(MatmulEmulated, QuantizesAsTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const bool power_of_two : {false, true}) {
      constexpr std::int64_t m = 5, k = 300, stride = 306, scale_stride = 6, blocks = 3;
      std::vector<float> x = random_f32(random, m * stride);
      for (float& v : x) v = to_f32(to_bf16(v));
      std::fill_n(x.begin() + stride, 128, 0.f);
      x[3 * stride + 7] = std::numeric_limits<float>::quiet_NaN();
      std::vector<bf16> halves;
      for (const float v : x) halves.push_back(to_bf16(v));
      std::vector<std::uint32_t> codes(m * k / 4);
      std::vector<float> scales(blocks * scale_stride);
      const QuantizeParams p{
          .x = dtype == DType::bf16 ? static_cast<const void*>(halves.data()) : x.data(),
          .rows = m,
          .cols = k,
          .x_stride = stride,
          .blocks = blocks,
          .scale_stride = scale_stride,
          .codes = reinterpret_cast<std::uint8_t*>(codes.data()),
          .scales = scales.data(),
          .x_bf16 = dtype == DType::bf16,
          .power_of_two = power_of_two,
          .places = nullptr,
          .copies = 1,
          .own = -1};
      emulate({(m * blocks * 32 + 127) / 128, 1, 1}, 128, quantize_rows_kernel, p);
      for (std::int64_t r = 0; r < m; ++r) {
        for (std::int64_t b = 0; b < blocks; ++b) {
          const std::int64_t first = b * 128, end = std::min<std::int64_t>(k, first + 128);
          float most = 0;
          bool nan = false;
          for (std::int64_t i = first; i < end; ++i) {
            const float v = x[static_cast<std::size_t>(r * stride + i)];
            nan |= std::isnan(v);
            most = std::max(most, std::abs(v));
          }
          const float got = scales[static_cast<std::size_t>(b * scale_stride + r)];
          if (nan) {
            EXPECT_TRUE(std::isnan(got));
            continue;
          }
          float scale = most == 0 ? 1.f : most / 448.f;
          if (power_of_two) scale = pow2_ceil(scale);
          ASSERT_EQ(got, scale) << "seed " << seed;
          for (std::int64_t i = first; i < end; ++i) {
            const float v = x[static_cast<std::size_t>(r * stride + i)];
            ASSERT_EQ(p.codes[r * k + i], to_e4m3(v / scale).bits) << "seed " << seed;
          }
        }
      }
    }
  }
}

// Rows that go to several places each, and to one in order after them.
TEST_F(MatmulEmulated, QuantizesToPlaces) {
  constexpr std::int64_t m = 6, k = 256, copies = 3, placed_rows = m * copies, own = 20;
  constexpr std::int64_t rows = own + m;
  const std::vector<float> x = random_f32(random, m * k);
  std::vector<std::int32_t> places(placed_rows);
  for (std::size_t i = 0; i < placed_rows; ++i) places[i] = static_cast<std::int32_t>(i);
  std::shuffle(places.begin(), places.end(), random);
  std::vector<std::uint32_t> plain(m * k / 4), placed(rows * k / 4);
  std::vector<float> plain_scales(2 * m), placed_scales(2 * rows);
  QuantizeParams p{.x = x.data(),
                   .rows = m,
                   .cols = k,
                   .x_stride = k,
                   .blocks = 2,
                   .scale_stride = m,
                   .codes = reinterpret_cast<std::uint8_t*>(plain.data()),
                   .scales = plain_scales.data(),
                   .x_bf16 = false,
                   .power_of_two = false,
                   .places = nullptr,
                   .copies = 1,
                   .own = -1};
  emulate({m * 2 * 32 / 128, 1, 1}, 128, quantize_rows_kernel, p);
  p.codes = reinterpret_cast<std::uint8_t*>(placed.data());
  p.scales = placed_scales.data();
  p.scale_stride = rows;
  p.places = places.data();
  p.copies = copies;
  p.own = own;
  emulate({m * 2 * 32 / 128, 1, 1}, 128, quantize_rows_kernel, p);
  for (std::int64_t i = 0; i < placed_rows + m; ++i) {
    const bool in_order = i >= placed_rows;
    const std::int64_t row = in_order ? i - placed_rows : i / copies;
    const std::int64_t to = in_order ? own + row : places[static_cast<std::size_t>(i)];
    EXPECT_EQ(std::memcmp(p.codes + to * k, plain.data() + row * k / 4, k), 0) << "seed " << seed;
    for (std::int64_t b = 0; b < 2; ++b) {
      EXPECT_EQ(p.scales[b * rows + to], plain_scales[static_cast<std::size_t>(b * m + row)]);
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
    const MatmulTiling tiling{pair ? 2 : 4, 128, pair ? 128 : 16, pair};
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

// Experts with no, one, nine and many rows, and rows that belong to no expert.
TEST_F(MatmulEmulated, Experts) {
  for (const WeightFormat& format :
       {WeightFormat(DType::bf16), WeightFormat(DType::e4m3), kMxfp4}) {
    for (const int tokens : {8, 32, 128}) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << ", " << name(format) << ", " << tokens);
      Host host;
      for (const bool codes : {false, true}) {
        if (codes && format.dtype != DType::e4m3) continue;
        const std::vector<std::int32_t> counts = {0, 1, 9, between(1, 70), 0, 17, 0};
        const int n = tokens == 128 ? 256 : 128, k = 32 * between(5, 12);
        const auto run = [&](const GroupedMatmulCall& call) { emulate_matmul(call, tokens, 3); };
        matmul_test::check_experts<float>(random, host, format, codes, counts, n, k, run);
        matmul_test::check_experts<bf16>(random, host, format, codes, counts, n, k, run);
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
                                      {1, 128, 128, true}}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(c.dtype) << ", tile "
                                        << tiling.tile_rows << " x " << tiling.tile_tokens);
      Host host;
      matmul_test::check_gated(random, host, c.dtype, c.codes, between(1, 40), 8 * between(9, 30),
                               16 * between(20, 40), [&](const MatmulCall& call) {
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

TEST_F(MatmulEmulated, GatedExperts) {
  for (const WeightFormat& format :
       {WeightFormat(DType::bf16), WeightFormat(DType::e4m3), kMxfp4}) {
    for (const int tokens : {8, 32, 128}) {
      for (const bool turns : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << "seed " << seed << ", " << name(format) << ", " << tokens);
        Host host;
        matmul_test::check_gated_experts(
            random, host, format, turns, {0, 1, 9, between(1, 70), 0, 17, 0}, turns ? 128 : 256,
            32 * between(5, 12),
            [&](const GroupedMatmulCall& call) { emulate_matmul(call, tokens, 4); });
      }
    }
  }
}

TEST_F(MatmulEmulated, Heads) {
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Host host;
    for (const int tokens : {8, 128}) {
      const auto run = [&](const GroupedMatmulCall& call) { emulate_matmul(call, tokens, 3); };
      const int m = between(1, tokens + 20);
      for (const int n : {128, 384}) {
        matmul_test::check_heads<float>(random, host, dtype, m, 3, n, run);
        matmul_test::check_heads<bf16>(random, host, dtype, m, 3, n, run);
      }
    }
  }
}

TEST_F(MatmulEmulated, TakesWhatItCanRead) {
  Problem p(random, 3, 64, 64);
  Host host;
  const Placed placed(p, host);
  const MatmulCall good = placed.call(3);
  EXPECT_TRUE(matmul_takes(good));
  const auto refuses = [&](auto change) {
    MatmulCall call = good;
    change(call);
    if (matmul_takes(call)) return false;
    const auto done = matmul_on_device({&call, 1}, nullptr);
    EXPECT_TRUE(!done.ok() && done.error().code == ErrorCode::unsupported);
    return true;
  };
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.x.dtype = DType::f32; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.w.dtype = DType::f16; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.w.dtype = DType::e2m1; }));  // no scales
  // MXFP4 must be packed.
  static const ue8m0 scales[128] = {};
  EXPECT_TRUE(refuses([&](MatmulCall& c) {
    c.w.dtype = DType::e2m1;
    c.w.mx_scales = scales;
  }));
  // Packed weights: sizes of groups, types and places of their scales, an order of columns.
  alignas(16) static const std::byte groups[4096] = {};
  const auto refuses_u4 = [&](auto change) {
    return refuses([&](MatmulCall& c) {
      c.w.dtype = DType::u4;
      c.w.groups = {groups, DType::bf16, 32, nullptr};
      change(c.w);
    });
  };
  EXPECT_FALSE(refuses_u4([](WeightView&) {}));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.size = 16; }));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.size = 128; }));  // 64 columns
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.dtype = DType::e4m3; }));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.groups.data += 8; }));
  EXPECT_TRUE(refuses_u4(
      [](WeightView& w) { w.groups.zeros = reinterpret_cast<const std::uint8_t*>(groups) + 4; }));
  EXPECT_TRUE(
      refuses_u4([](WeightView& w) { w.columns = reinterpret_cast<const std::int32_t*>(groups); }));
  EXPECT_TRUE(refuses_u4([](WeightView& w) { w.dtype = DType::e2m1; }));
  EXPECT_FALSE(refuses_u4([](WeightView& w) {
    w.dtype = DType::e2m1;
    w.groups.dtype = DType::ue8m0;
  }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.x.row_stride = 68; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.x.cols = c.w.cols = 60; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) { c.w.data += 8; }));
  EXPECT_TRUE(refuses([](MatmulCall& c) {
    c.out.dtype = DType::bf16;
    c.add = true;
  }));
  const Activation silu{ActivationKind::silu};
  EXPECT_TRUE(refuses([&](MatmulCall& c) { c.activation = &silu; }));  // f32 out, and no `up`
  EXPECT_TRUE(refuses([](MatmulCall& c) {
    c.out.dtype = DType::bf16;
    c.out.row_stride = 71;
  }));
  EXPECT_FALSE(refuses([](MatmulCall& c) { c.out.row_stride = 71; }));
  // No tokens: nothing to do. Too many calls, and a different x, are errors.
  MatmulCall none = good;
  none.x.rows = none.out.rows = 0;
  EXPECT_TRUE(matmul_on_device({&none, 1}, nullptr).ok());
  const std::vector<MatmulCall> many(kMatmulCalls + 1, good);
  EXPECT_FALSE(matmul_on_device(many, nullptr).ok());
  MatmulCall other = good;
  other.x.rows = other.out.rows = 2;
  const MatmulCall two[] = {good, other};
  EXPECT_FALSE(matmul_on_device(two, nullptr).ok());
  none = good;
  none.w.rows = none.out.cols = 0;
  EXPECT_EQ(make_launch({&none, 1}, {}, 132).instance.clusters, 0);
}

}  // namespace
}  // namespace lathe::cuda
