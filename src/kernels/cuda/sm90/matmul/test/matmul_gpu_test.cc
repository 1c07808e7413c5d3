// GEMMs on the GPU: every instance against sums in double, the bits of rows, launches that overlap.
#include <list>

#include "kernels/cuda/common/test/gpu_test_util.h"
#include "kernels/cuda/sm90/matmul/test/matmul_checks.h"

namespace lathe::cuda {
namespace {

using matmul_test::kMxfp4;
using matmul_test::Placed;
using matmul_test::Problem;
using matmul_test::random_f32;
using matmul_test::WeightFormat;

class MatmulGpu : public GpuTest {
 public:
  /// Device memory for one problem.
  struct Device {
    const GpuTest& test;
    std::list<DeviceArray<std::byte>> kept;
    template <class T>
    T* put(const std::vector<T>& v) {
      const auto bytes = std::as_bytes(std::span(v));
      kept.push_back(std::move(DeviceArray<std::byte>::make(std::ssize(bytes) + 1)).value());
      must(copy_to_device(bytes, kept.back().data(), test.stream()));
      must(test.stream().wait());
      return reinterpret_cast<T*>(kept.back().data());
    }
    template <class T>
    void get(const T* from, std::vector<T>& to) const {
      must(copy_to_host(from, std::span(to), test.stream()));
      must(test.stream().wait());
    }
  };
  /// Whether the work tiles of all parts of K run at a time.
  static bool spreads(const MatmulCall& call, int split) {
    const std::int64_t tiles =
        ceil_div(call.w.rows, std::int64_t{256}) * ceil_div(call.x.rows, std::int64_t{128});
    return split > 1 && tiles * split <= 66;
  }
  static float* kept(Device& memory) {
    return memory.put(std::vector<float>(static_cast<std::size_t>(matmul_kept_bytes(132) / 4)));
  }
  int between(int a, int b) { return std::uniform_int_distribution<int>(a, b)(random); }
  void check(const Problem& p, const MatmulTiling& tiling, int sms) {
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ", m " << p.m << ", n " << p.n << ", k " << p.k << ", split "
                 << tiling.split << ", tile " << tiling.tile_rows << " x " << tiling.tile_tokens
                 << (tiling.pair ? ", pairs" : "") << ", " << sms << " SMs");
    Device memory{*this, {}};
    const Placed placed(p, memory);
    MatmulCall call = placed.call(p.m);
    call.kept = kept(memory);
    ASSERT_TRUE(matmul_takes(call));
    must(matmul_with_tiling({&call, 1}, tiling, sms, stream()));
    placed.expect_right(p.m, p.m * p.out_stride > 20000 ? 37 : 1);
  }

  unsigned seed = std::random_device()();
  std::mt19937 random{seed};
};

TEST_F(MatmulGpu, EveryTileAndSplit) {
  for (const int tokens : {8, 16, 32, 64, 128}) {
    for (const int split : {1, 2, 4, 8}) {
      const int rows = 16 * between(3, 8);
      Problem p(random, between(1, tokens + 70), 2 * between(50, 900), 8 * between(64, 500));
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      if (between(0, 1) == 0) {
        p.out_bf16 = true;
      } else if (between(0, 1) == 0) {
        p.before = random_f32(random, p.m * p.out_stride);
      }
      check(p, {split, rows, tokens, false}, between(0, 1) == 0 ? 132 : split * between(1, 3));
    }
  }
  for (const int tokens : {128, 256}) {
    for (const int split : {1, 2, 4}) {
      for (const bool out_bf16 : {false, true}) {
        const int each = between(0, 1) == 0 ? 2 : 8;
        Problem p(random, between(1, 900), each * between(100 / each, 1800 / each),
                  8 * between(64, 500));
        p.out_bf16 = out_bf16;
        p.out_stride = (p.n + 15) / 8 * 8 + each % 8 * between(0, 1);
        if (!out_bf16 && between(0, 2) > 0) p.before = random_f32(random, p.m * p.out_stride);
        check(p, {split, 128, tokens, true}, between(0, 1) == 0 ? 132 : 2 * between(1, 3));
      }
    }
  }
}

TEST_F(MatmulGpu, CodesOfWeights) {
  for (const int tokens : {8, 16, 32, 64, 128}) {
    for (const int split : {1, 2, 4, 8}) {
      Problem p(random, between(1, tokens + 70), 2 * between(50, 500), 32 * between(32, 100),
                DType::e4m3);
      check(p, {split, 16 * between(3, 8), tokens, false}, 132);
    }
  }
  Problem p(random, between(1, 500), 2 * between(50, 500), 32 * between(32, 100), DType::e4m3);
  check(p, {1, 128, 128, true}, 132);
}

TEST_F(MatmulGpu, PackedWeights) {
  for (const WeightFormat& format : matmul_test::packed_formats()) {
    SCOPED_TRACE(::testing::Message() << name(format));
    const int step = std::max(32, int{format.size});
    const auto columns = [&](int a, int b) { return step * between(a / step + 1, b / step); };
    for (const int tokens : {8, 16, 32, 64, 128}) {
      const int split = 1 << between(0, 3);
      Problem p(random, between(1, tokens + 70), 2 * between(50, 500), columns(1024, 3200), format);
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      if (between(0, 1) == 0) p.before = random_f32(random, p.m * p.out_stride);
      check(p, {split, 16 * between(3, 8), tokens, false}, 132);
    }
    for (const int tokens : {8, 16, 32, 64}) {
      Problem p(random, between(1, tokens), 2 * between(50, 500), columns(1024, 3200), format);
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      p.out_bf16 = between(0, 1) == 0;
      check(p, {1, 256, tokens, false, 4}, 132);
      if (tokens > 8) check(p, {1 << between(0, 2), 64, tokens, false, 1}, 132);
    }
    for (const int split : {1, 2}) {
      Problem p(random, between(1, 500), 2 * between(50, 500), columns(1024, 3200), format);
      p.out_bf16 = split == 1;
      check(p, {split, 128, 128, true}, 132);
    }
    Device memory{*this, {}};
    for (const int m : {1, 33, 300}) {
      matmul_test::check_gated(random, memory, format, false, m, 8 * between(9, 70),
                               columns(256, 1900), [&](const MatmulCall& call) {
                                 must(matmul_on_device({&call, 1}, stream()));
                               });
    }
    const auto run = [&](const GroupedMatmulCall& call) {
      must(grouped_matmul_on_device(call, stream()));
    };
    for (const int mean : {2, 12, 30, 100}) {
      std::vector<std::int32_t> counts(static_cast<std::size_t>(between(1, 8)));
      for (std::int32_t& c : counts) c = between(0, 2) == 0 ? 0 : between(0, 2 * mean);
      matmul_test::check_experts<float>(random, memory, format, false, counts, 256,
                                        columns(256, 768), run);
      matmul_test::check_gated_experts(random, memory, format, mean % 4 == 0, counts, 128,
                                       columns(256, 768), run);
    }
  }
}

TEST_F(MatmulGpu, CodesOfBoth) {
  for (const int tokens : {8, 16, 32, 64, 128}) {
    for (const int split : {1, 2, 4, 8}) {
      Problem p(random, between(1, tokens + 70), 2 * between(50, 500), 16 * between(64, 200),
                DType::e4m3);
      p.make_x_codes(random);
      check(p, {split, 16 * between(3, 8), tokens, false}, 132);
    }
  }
}

// The same in pairs of tiles with tokens on M. Rows of out with and without whole 16-byte words.
TEST_F(MatmulGpu, CodesOfBothInPairs) {
  for (const int tokens : {128, 256}) {
    for (const int split : {1, 2, 4}) {
      for (const bool out_bf16 : {false, true}) {
        const int each = between(0, 1) == 0 ? 2 : 8;
        Problem p(random, between(1, 900), each * between(100 / each, 1800 / each),
                  16 * between(64, 200), DType::e4m3);
        p.make_x_codes(random);
        p.out_bf16 = out_bf16;
        p.out_stride = (p.n + 15) / 8 * 8 + each % 8 * between(0, 1);
        if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
        if (!out_bf16 && between(0, 2) > 0) p.before = random_f32(random, p.m * p.out_stride);
        check(p, {split, 128, tokens, true}, between(0, 1) == 0 ? 132 : 2 * between(1, 3));
      }
    }
  }
}

TEST_F(MatmulGpu, ExpertsAndHeads) {
  for (const WeightFormat& format :
       {WeightFormat(DType::bf16), WeightFormat(DType::e4m3), kMxfp4}) {
    for (const int mean : {1, 6, 20, 150, 900}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format) << ", " << mean);
      std::vector<std::int32_t> counts(static_cast<std::size_t>(between(1, mean < 200 ? 40 : 4)));
      for (std::int32_t& c : counts) c = between(0, 2) == 0 ? 0 : between(0, 2 * mean);
      Device memory{*this, {}};
      for (const bool codes : {false, true}) {
        if (codes && format.dtype != DType::e4m3) continue;
        const int k = 32 * between(8, 24);
        const auto run = [&](const GroupedMatmulCall& call) {
          must(grouped_matmul_on_device(call, stream()));
        };
        matmul_test::check_experts<float>(random, memory, format, codes, counts, 256, k, run);
        matmul_test::check_experts<bf16>(random, memory, format, codes, counts, 256, k, run);
      }
    }
    for (const bool turns : {false, true}) {
      for (const int mean : {2, 12, 30, 100, 900}) {
        std::vector<std::int32_t> counts(static_cast<std::size_t>(between(1, mean < 200 ? 30 : 3)));
        for (std::int32_t& c : counts) c = between(0, 2) == 0 ? 0 : between(0, 2 * mean);
        Device memory{*this, {}};
        for (const bool codes : {false, true}) {
          if (codes && format.dtype != DType::e4m3) continue;
          matmul_test::check_gated_experts(
              random, memory, format, turns, counts, 128 * between(1, 2), 32 * between(8, 24),
              [&](const GroupedMatmulCall& call) {
                must(grouped_matmul_on_device(call, stream()));
              },
              codes);
        }
      }
    }
    if (format.packed()) continue;
    Device memory{*this, {}};
    const auto run = [&](const GroupedMatmulCall& call) {
      must(grouped_matmul_on_device(call, stream()));
    };
    for (const int m : {between(1, 90), between(100, 500)}) {
      for (const int n : {128, 384}) {
        matmul_test::check_heads<float>(random, memory, format, m, between(1, 20), n, run);
        matmul_test::check_heads<bf16>(random, memory, format, m, between(1, 20), n, run);
      }
    }
  }
}

TEST_F(MatmulGpu, Gated) {
  for (const WeightFormat& format :
       {WeightFormat(DType::bf16), WeightFormat(DType::e4m3), kMxfp4}) {
    for (const bool codes : {false, true}) {
      if (codes && format.dtype != DType::e4m3) continue;
      for (const int m : {1, 8, 33, 100, 600}) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format) << ", " << m);
        Device memory{*this, {}};
        matmul_test::check_gated(random, memory, format, codes, m, 8 * between(9, 70),
                                 32 * between(8, 60), [&](const MatmulCall& call) {
                                   must(matmul_on_device({&call, 1}, stream()));
                                 });
      }
    }
  }
}

// A row's bits are equal for every m and tile, and from run to run.
TEST_F(MatmulGpu, RowsIgnoreTheBatch) {
  for (const auto& [n, k] : {std::pair{512, 2048}, std::pair{640, 4104}, std::pair{8192, 512}}) {
    Problem p(random, 300, n, k);
    p.out_stride = n + 8;
    std::vector<float> want;
    Device memory{*this, {}};
    const Placed device(p, memory);
    const auto compare = [&](std::int64_t m) {
      const std::vector<float> got = device.read();
      if (want.empty()) want = got;
      const auto count = static_cast<std::size_t>(m * p.out_stride);
      ASSERT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(float)), 0)
          << "seed " << seed << ", n " << n << ", k " << k << ", m " << m;
    };
    for (std::int64_t m = 300; m >= 1; --m) {
      const MatmulCall call = device.call(m);
      must(matmul_on_device({&call, 1}, stream()));
      compare(m);
    }
    MatmulCall call = device.call(300);
    call.kept = kept(memory);
    call.arrivals = memory.put(std::vector<std::uint32_t>(132));
    const int split = choose_tiling(shape_of({&call, 1}, 132)).split;
    for (int i = 0; i < 30; ++i) {
      const bool pair = between(0, 1) == 0;
      const bool spread = pair && spreads(call, split) && between(0, 1) == 0;
      const int tokens = spread ? 64 * between(2, 3)
                         : pair ? 64 * between(2, 4)
                                : 8 << between(0, 4);
      must(matmul_with_tiling({&call, 1},
                              {split, pair ? 128 : 16 * between(3, 8), tokens, pair, 2, spread},
                              132, stream()));
      compare(300);
    }
  }
}

// Nor does a tile of three warpgroups change them. Rows and tokens end inside tiles and boxes.
TEST_F(MatmulGpu, TallTilesHaveTheBitsOfOthers) {
  for (const std::int64_t m : {between(1, 64), between(65, 256), between(257, 1000)}) {
    Problem p(random, m, 8 * between(50, 2000), 8 * between(20, 400));
    p.out_bf16 = true;
    p.out_stride = p.n + 8 * between(0, 1);
    if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
    Device memory{*this, {}};
    const Placed device(p, memory);
    const MatmulCall call = device.call(m);
    must(matmul_with_tiling({&call, 1}, {1, 128, 128, true}, 132, stream()));
    const std::vector<float> want = device.read();
    const MatmulTiling tall{.tile_rows = 192, .tile_tokens = 256, .pair = true, .tall = true};
    must(matmul_with_tiling({&call, 1}, tall, 132, stream()));
    const std::vector<float> got = device.read();
    ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
        << "seed " << seed << ", m " << m << ", n " << p.n << ", k " << p.k;
  }
}

// The same for codes of both, whose tiles have tokens on N or on M.
TEST_F(MatmulGpu, RowsOfCodesIgnoreTheBatch) {
  for (const auto& [n, k] : {std::pair{512, 2048}, std::pair{640, 4112}, std::pair{4096, 7168}}) {
    Problem p(random, 300, n, k, DType::e4m3);
    p.make_x_codes(random);
    Device memory{*this, {}};
    const Placed device(p, memory);
    MatmulCall call = device.call(300);
    call.kept = kept(memory);
    call.arrivals = memory.put(std::vector<std::uint32_t>(132));
    const int split = choose_tiling(shape_of({&call, 1}, 132)).split;
    std::vector<float> want;
    for (const MatmulTiling& tiling : {MatmulTiling{split, 128, 32},
                                       {split, 64, 64},
                                       {split, 128, 128},
                                       {split, 96, 8},
                                       {split, 128, 128, true},
                                       {split, 128, 256, true},
                                       {split, 128, 128, true, 2, true},
                                       {split, 128, 256, true, 2, true}}) {
      if (tiling.spread && !spreads(call, split)) continue;
      must(matmul_with_tiling({&call, 1}, tiling, 132, stream()));
      const std::vector<float> got = device.read();
      if (want.empty()) want = got;
      ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << "seed " << seed << ", n " << n << ", k " << k << ", tile " << tiling.tile_rows << " x "
          << tiling.tile_tokens << (tiling.pair ? ", pairs" : "");
    }
  }
}

// The same for weights that have a kernel of their own for few tokens.
TEST_F(MatmulGpu, RowsOfFewKernelsIgnoreTheBatch) {
  for (const auto& [n, k] : {std::pair{512, 2048}, std::pair{2112, 1568}, std::pair{12288, 1536},
                             std::pair{17408, 512}}) {
    for (const WeightFormat& format :
         {WeightFormat(DType::e4m3), kMxfp4, WeightFormat(DType::u4, 32, DType::bf16, false),
          WeightFormat(DType::u4, 32, DType::bf16, true),
          WeightFormat(DType::u4, 32, DType::f16, true)}) {
      Problem p(random, 20, n, k, format);
      p.out_bf16 = true;
      std::vector<float> want;
      for (std::int64_t m = 20; m >= 1; --m) {
        Device memory{*this, {}};
        const Placed device(p, memory);
        const MatmulCall call = device.call(m);
        must(matmul_on_device({&call, 1}, stream()));
        const std::vector<float> got = device.read();
        if (want.empty()) want = got;
        const auto count = static_cast<std::size_t>(m * p.out_stride);
        // The gaps between rows are NaN.
        ASSERT_EQ(std::memcmp(got.data(), want.data(), count * sizeof(float)), 0)
            << "seed " << seed << ", " << name(format) << ", n " << n << ", k " << k << ", m " << m;
      }
    }
  }
}

// Each GEMM reads the previous one's output, in a graph with overlapping launches.
TEST_F(MatmulGpu, ChainsOfEarlyLaunches) {
  constexpr std::int64_t kWidth = 1024, kTokens = 40;
  constexpr int kLinks = 24;
  Device memory{*this, {}};
  std::vector<bf16*> weights;
  for (int i = 0; i < kLinks; ++i) {
    std::vector<bf16> w = matmul_test::random_bf16(random, kWidth * kWidth);
    for (bf16& v : w) v = to_bf16(to_f32(v) / 32);
    weights.push_back(memory.put(w));
  }
  bf16* const first = memory.put(matmul_test::random_bf16(random, kTokens * kWidth));
  const auto run = [&](bool apart, std::vector<bf16>& result) {
    std::vector<bf16*> links;
    for (int i = 0; i < kLinks; ++i) {
      links.push_back(memory.put(std::vector<bf16>(kTokens * kWidth, to_bf16(std::nanf("")))));
    }
    const auto bytes = [](bf16* a) { return reinterpret_cast<std::byte*>(a); };
    const auto chain = [&]() -> Result<void> {
      for (int i = 0; i < kLinks; ++i) {
        const auto l = static_cast<std::size_t>(i);
        const MatmulCall call{.x = {i == 0 ? bytes(first) : bytes(links[l - 1]), DType::bf16,
                                    kTokens, kWidth, kWidth},
                              .w = {bytes(weights[l]), DType::bf16, kWidth, kWidth},
                              .out = {bytes(links[l]), DType::bf16, kTokens, kWidth, kWidth}};
        if (auto ok = matmul_on_device({&call, 1}, stream()); !ok) return ok;
        if (apart) must(stream().wait());
      }
      return {};
    };
    if (apart) {
      must(chain());
    } else {
      auto graph = Graph::capture(stream(), chain);
      must(graph);
      must(graph.value().launch(stream()));
    }
    must(stream().wait());
    result.resize(kTokens * kWidth);
    memory.get(links.back(), result);
  };
  std::vector<bf16> want, got;
  run(true, want);
  for (int i = 0; i < 20; ++i) {
    run(false, got);
    ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * 2), 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
