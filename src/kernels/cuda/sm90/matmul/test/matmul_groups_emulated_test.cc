// Grouped GEMMs, with a dense one next to them, emulated, against sums in double.
#include "kernels/cuda/sm90/matmul/test/matmul_checks.h"
#include "kernels/cuda/sm90/matmul/test/matmul_emulation.h"

namespace lathe::cuda {
namespace {

using matmul_test::emulate_matmul;
using matmul_test::Host;
using matmul_test::kMxfp4;
using matmul_test::MatmulEmulated;
using matmul_test::Placed;
using matmul_test::Problem;
using matmul_test::WeightFormat;

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

// Tiles of 256 tokens, of which a group may need a part.
TEST_F(MatmulEmulated, ExpertsOfManyTokens) {
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(dtype));
    Host host;
    const std::vector<std::int32_t> counts = {
        0, 64, between(65, 128), 1, 129, between(193, 256), between(257, 330), 0, 2};
    const auto run = [&](const GroupedMatmulCall& call) { emulate_matmul(call, 256, 4); };
    const bool codes = dtype == DType::e4m3;
    matmul_test::check_experts<float>(random, host, dtype, codes, counts, 256, 160, run);
    matmul_test::check_experts<bf16>(random, host, dtype, codes, counts, 384, 192, run);
    matmul_test::check_gated_experts(random, host, dtype, true, counts, 256, 160, run, codes);
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
        const bool codes = format.dtype == DType::e4m3 && between(0, 1) == 0;
        matmul_test::check_gated_experts(
            random, host, format, turns, {0, 1, 9, between(1, 70), 0, 17, 0}, turns ? 128 : 256,
            32 * between(5, 12),
            [&](const GroupedMatmulCall& call) { emulate_matmul(call, tokens, 4); }, codes);
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

}  // namespace
}  // namespace lathe::cuda
