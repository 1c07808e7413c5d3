// Runs the grouped GEMM for few tokens thread by thread on the CPU against sums in double.
// Compiled alone: it includes kernels.
#include "kernels/cuda/sm90/matmul/few/few_call.h"
#include "kernels/cuda/sm90/matmul/few/few_codes_call.h"
#include "kernels/cuda/sm90/matmul/test/matmul_checks.h"
#include "kernels/cuda/sm90/matmul/test/matmul_emulation.h"
// Device code is included last: it redefines CUDA's keywords.
#include "kernels/cuda/sm90/matmul/few/few_codes.cuh"
#include "kernels/cuda/sm90/matmul/few/few_kernel.cuh"

namespace lathe::cuda {
namespace {

using matmul_test::Host;
using matmul_test::kMxfp4;
using matmul_test::kNvfp4;
using matmul_test::Placed;
using matmul_test::Problem;
using matmul_test::random_f32;
using matmul_test::WeightFormat;

template <class Row>
void emulate_row(const FewParams& f, int blocks) {
  using T = FewTile<Row, 3>;
  emulate_blocks(1, {static_cast<unsigned>(blocks), 1, 1}, {T::kThreads, 1, 1}, few_kernel<T>, f);
}
// slots: tiles of tokens in shared memory.
template <class Call>
void emulate_few(const Call& call, int blocks, int slots) {
  FewParams f = make_few_params(call, blocks);
  ASSERT_EQ(f.x_slots, 2);
  f.x_slots = slots;
  if (is_mxfp4(call.w)) return emulate_row<Mxfp4Row>(f, blocks);
  if (call.w.dtype == DType::e2m1) return emulate_row<Nvfp4Row>(f, blocks);
  if (call.w.groups.dtype == DType::f16) return emulate_row<U4Row<true>>(f, blocks);
  if (call.w.groups.zeros != nullptr) return emulate_row<U4Row<false>>(f, blocks);
  emulate_row<U4SymmetricRow>(f, blocks);
}

void emulate_codes(std::span<const MatmulCall> calls, int split, int sms) {
  const auto l = make_few_codes(calls, split, sms);
  ASSERT_TRUE(l.has_value());
  ASSERT_LE(l->instance.shared_bytes, kFewShared);
  emulate_blocks(1, {static_cast<unsigned>(l->instance.blocks), 1, 1}, {32 * kFewCodesWarps, 1, 1},
                 few_codes_kernel, l->params);
}

class FewEmulated : public ::testing::Test {
 public:
  int between(int a, int b) { return std::uniform_int_distribution<int>(a, b)(random); }
  std::vector<WeightFormat> formats() const {
    return {kMxfp4,
            kNvfp4,
            WeightFormat(DType::u4, 32, DType::bf16, false),
            WeightFormat(DType::u4, 128, DType::bf16, false),
            WeightFormat(DType::u4, 32, DType::bf16, true),
            WeightFormat(DType::u4, 64, DType::f16, true),
            WeightFormat(DType::u4, 128, DType::f16, true),
            WeightFormat(DType::u4, 32, DType::f16, false)};
  }
  // Groups without tokens, with one, with a whole tile and with several.
  std::vector<std::int32_t> counts() { return {0, 1, 9, between(1, 20), 0, 8, 0}; }
  // Whole and half stages, and for groups of 32 chunks that end early.
  int depth(const WeightFormat& f) {
    return f.size >= 64 ? 128 * between(1, 4) : 32 * between(2, 12);
  }

  unsigned seed = std::random_device()();
  std::mt19937 random{seed};
};

TEST_F(FewEmulated, Experts) {
  for (const WeightFormat& format : formats()) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format));
    for (const int blocks : {1, 5}) {
      Host host;
      const auto run = [&](const GroupedMatmulCall& call) {
        emulate_few(call, blocks, between(1, 2));
      };
      const int k = depth(format);
      SCOPED_TRACE(::testing::Message() << blocks << " blocks, " << k << " columns");
      matmul_test::check_experts<float>(random, host, format, false, counts(), 128, k, run);
      matmul_test::check_experts<bf16>(random, host, format, false, counts(), 128, k, run);
    }
  }
}

TEST_F(FewEmulated, GatedExperts) {
  for (const WeightFormat& format : formats()) {
    for (const bool turns : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format));
      Host host;
      matmul_test::check_gated_experts(
          random, host, format, turns, counts(), 128, depth(format),
          [&](const GroupedMatmulCall& call) { emulate_few(call, 4, between(1, 2)); });
    }
  }
}

// Few tokens a group, packed weights, whole units of rows, and rows that are neither short nor so
// long that tokens have no room.
TEST(FewCall, TakesWhatItIsFasterWith) {
  alignas(16) static const std::byte bytes[16] = {};
  static const std::int32_t offsets[1] = {};
  GroupedMatmulCall good;
  good.w = {.data = bytes,
            .dtype = DType::e2m1,
            .rows = 64,
            .cols = 7168,
            .groups = {bytes, DType::ue8m0, kMxBlock, nullptr}};
  good.x.rows = 80;
  good.groups = 10;
  good.offsets = offsets;
  const auto takes = [&](auto change) {
    GroupedMatmulCall call = good;
    change(call);
    return few_takes(call);
  };
  EXPECT_TRUE(takes([](GroupedMatmulCall&) {}));
  EXPECT_FALSE(takes([](GroupedMatmulCall& c) { c.x.rows = 81; }));
  EXPECT_FALSE(takes([](GroupedMatmulCall& c) { c.offsets = nullptr; }));
  EXPECT_FALSE(takes([](GroupedMatmulCall& c) { c.w.rows = 72; }));
  EXPECT_FALSE(takes([](GroupedMatmulCall& c) { c.w.cols = 1024; }));
  EXPECT_FALSE(takes([](GroupedMatmulCall& c) { c.w.cols = 16384; }));
  EXPECT_FALSE(takes([](GroupedMatmulCall& c) { c.w.groups = {}; }));
  const auto takes_u4 = [&](std::int64_t tokens, DType scales, const std::uint8_t* zeros) {
    return takes([&](GroupedMatmulCall& c) {
      c.w.dtype = DType::u4;
      c.w.groups = {bytes, scales, 32, zeros};
      c.x.rows = tokens;
    });
  };
  EXPECT_TRUE(takes_u4(9, DType::bf16, nullptr));
  EXPECT_FALSE(takes_u4(8, DType::bf16, nullptr));
  EXPECT_TRUE(takes_u4(9, DType::f16, nullptr));
  EXPECT_TRUE(takes_u4(9, DType::bf16, reinterpret_cast<const std::uint8_t*>(bytes)));
}

// One weight, gated or not, with up to a tile of tokens.
TEST_F(FewEmulated, OneWeight) {
  for (const WeightFormat& format : formats()) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << name(format));
    Problem p(random, between(1, 8), 16 * between(1, 9), depth(format), format);
    if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
    for (const int kind : {0, 1, 2}) {
      if (kind == 1) p.before = random_f32(random, p.m * p.out_stride);
      if (kind == 2) p.before.clear();
      p.out_bf16 = kind == 2;
      Host host;
      const Placed placed(p, host);
      const MatmulCall call = placed.call(p.m);
      emulate_few(call, 3, 2);
      placed.expect_right(p.m);
    }
    Host host;
    matmul_test::check_gated(random, host, format, false, between(1, 8), 16 * between(2, 10),
                             depth(format),
                             [&](const MatmulCall& call) { emulate_few(call, 4, between(1, 2)); });
  }
}

// e4m3 weights: one warp for a unit and several, parts of K, K that ends inside a chunk, out of
// every kind.
TEST_F(FewEmulated, Codes) {
  for (const int split : {1, 2, 4}) {
    for (const int sms : {1, 3, 40}) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << split << ", " << sms);
      Problem p(random, between(1, sms == 40 ? 4 : 8), 16 * between(4, 9),
                16 * between(8 * split, 70), DType::e4m3);
      if (between(0, 2) == 0) p.scale_by_rows(random);
      if (between(0, 1) == 0) p.bias = random_f32(random, p.n);
      for (const int kind : {0, 1, 2}) {
        if (kind == 1) p.before = random_f32(random, p.m * p.out_stride);
        if (kind == 2) p.before.clear();
        p.out_bf16 = kind == 2;
        Host host;
        const Placed placed(p, host);
        const MatmulCall call = placed.call(p.m);
        emulate_codes({&call, 1}, split, sms);
        placed.expect_right(p.m);
      }
    }
  }
}

TEST_F(FewEmulated, GatedCodes) {
  for (const int sms : {2, 30}) {
    for (const int split : {1, 2}) {
      Host host;
      matmul_test::check_gated(random, host, DType::e4m3, false, between(1, 4), 8 * between(2, 20),
                               16 * between(20, 40), [&](const MatmulCall& call) {
                                 emulate_codes({&call, 1}, split, sms);
                               });
    }
  }
}

// Weights of unequal heights that share x, in one launch.
TEST_F(FewEmulated, CodesThatShareX) {
  Problem p(random, 5, 160, 512, DType::e4m3);
  Problem q(random, 5, 16, 512, DType::e4m3), r(random, 5, 48, 512, DType::e4m3);
  q.x = r.x = p.x;
  q.out_bf16 = true;
  Host host;
  const Placed a(p, host), b(q, host), c(r, host);
  MatmulCall calls[3] = {a.call(5), b.call(5), c.call(5)};
  calls[1].x = calls[2].x = calls[0].x;
  emulate_codes(calls, 2, 3);
  a.expect_right(5);
  b.expect_right(5);
  c.expect_right(5);
}

}  // namespace
}  // namespace lathe::cuda
