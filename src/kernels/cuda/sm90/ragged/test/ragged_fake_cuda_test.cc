// Runs whole calls of attention over expanded keys without a GPU, with emulated kernels, and
// compares them with the oracle in double precision.
#include <fmt/format.h>

#include "kernels/cuda/sm90/ragged/test/ragged_checks.h"

namespace lathe::cuda {
namespace {

class RaggedFake : public RaggedTest {};

TEST_F(RaggedFake, EveryInstance) {
  for (const int nope : {128, 192}) {
    for (const int v : {128, 256}) {
      const RaggedDims d{.heads = 1, .nope_head = nope, .v_head = v};
      SCOPED_TRACE(text_of(d, 1));
      const RaggedScene s(d, {{140, 140}, {70, 3}}, test_seed(1));
      check(s, v == 128 ? DType::bf16 : DType::f32);
    }
  }
}

TEST_F(RaggedFake, RandomBatches) {
  for (int i = 0; i < 4 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(300 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    const RaggedDims d = random_ragged_dims(rng, 3);
    SCOPED_TRACE(text_of(d, seed));
    RaggedScene s(d, random_ragged_requests(rng, 3, 140, 150), seed);
    if (rng() % 2 == 0) s.add_random_sink();
    check(s, rng() % 2 == 0 ? DType::f32 : DType::bf16);
  }
}

TEST_F(RaggedFake, HolesAreNoKeys) {
  RaggedScene s({.page = 16}, {{150, 20}, {40, 1}, {70, 2}}, test_seed(5));
  s.batch.entry(0, 0) = PageId(-1);
  s.batch.entry(0, 8) = PageId(1 << 24);
  s.batch.entry(1, 1) = PageId(-5);
  for (int page = 0; page < 5; ++page) s.batch.entry(2, page) = PageId(-1);
  check(s);
}

// One request and one head per pass.
TEST_F(RaggedFake, PassAfterPass) {
  const RaggedScene s({.page = 16, .heads = 4, .weights = DType::e4m3},
                      {{90, 20}, {0, 1}, {77, 77}, {33, 1}}, test_seed(6));
  check_in(s, {.workspace = 100 * (2 * 576 + 4 + 512), .pass_tiles = 0}, 3);
  check_in(s, {.workspace = std::int64_t{1} << 30, .pass_tiles = 0}, 5);
}

TEST_F(RaggedFake, EachConventionOfLse) {
  RaggedScene s({.page = 16}, {{150, 20}, {0, 1}, {40, 1}}, test_seed(9));
  for (int page = 0; page < 3; ++page) s.batch.entry(2, page) = PageId(-1);
  AttendArgs args = on_device(s.args, DType::bf16);
  // expect_ragged_oracle() says where 6e-3 comes from: keys are rounded to bf16.
  expect_each_convention(s.oracle().lse, 6e-3, 0, [&](LseConvention convention) {
    args.lse_convention = convention;
    must(attend_ragged_on_device(args));
    return Outputs{read(args.out), read(args.lse)};
  });
}

TEST_F(RaggedFake, HeadsThatShareBlocksOfScalesStayTogether) {
  const RaggedScene s({.heads = 4, .nope_head = 192, .v_head = 256, .weights = DType::e4m3},
                      {{50, 9}}, test_seed(7));
  check_in(s, {.workspace = std::int64_t{1} << 30, .pass_tiles = 0}, 2);
}

// f32 weights can't use tensor cores, and must still work.
TEST_F(RaggedFake, WeightsInF32) {
  check(RaggedScene({.heads = 1, .weights = DType::f32}, {{40, 5}}, test_seed(8)));
}

TEST_F(RaggedFake, A1MaskedKeyReachesNoRow) {
  for (const LayoutKind layout :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    SCOPED_TRACE(name(layout));
    const bool wide = layout == LayoutKind::mla_fp8;  // 256 value dims: tiles of 64 keys
    RaggedScene s(
        {.layout = layout, .heads = 1, .nope_head = wide ? 192 : 128, .v_head = wide ? 256 : 128},
        {{150, 20}, {90, 70}}, test_seed(15));
    check_nonfinite_keys(s, layout == LayoutKind::mla_bf16 ? Wild::one : Wild::ones);
  }
}

}  // namespace
}  // namespace lathe::cuda
