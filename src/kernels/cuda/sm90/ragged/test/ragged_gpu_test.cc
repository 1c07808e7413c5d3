// Tests attention over expanded keys on a GPU against the oracle in double precision.
#include <fmt/format.h>

#include "kernels/cuda/sm90/ragged/test/ragged_checks.h"

namespace lathe::cuda {
namespace {

class RaggedGpu : public RaggedTest {};

TEST_F(RaggedGpu, RandomBatches) {
  for (int i = 0; i < 24 * test_scale(); ++i) {
    const std::uint32_t seed = test_seed(700 + static_cast<std::uint32_t>(i));
    ref_test::Rng rng(seed);
    const RaggedDims d = random_ragged_dims(rng, 6);
    SCOPED_TRACE(text_of(d, seed));
    RaggedScene s(d, random_ragged_requests(rng, 5, 300, 500), seed);
    if (rng() % 2 == 0) s.add_random_sink();
    check(s, rng() % 2 == 0 ? DType::f32 : DType::bf16, i < 4 ? 20 : 1);
  }
}

TEST_F(RaggedGpu, ManyRequestsAndLongOnes) {
  for (const int nope : {128, 192}) {
    ref_test::Rng rng(test_seed(9));
    const RaggedDims d{.heads = 2, .nope_head = nope, .v_head = nope == 128 ? 128 : 256};
    check(RaggedScene(d, random_ragged_requests(rng, 60, 40, 100), test_seed(10)), DType::bf16, 20);
    check(RaggedScene(d, {{6000, 70}}, test_seed(11)));
  }
}

TEST_F(RaggedGpu, PassAfterPass) {
  ref_test::Rng rng(test_seed(12));
  const RaggedScene s({.heads = 6, .weights = DType::e4m3},
                      random_ragged_requests(rng, 8, 200, 300), test_seed(13));
  check_in(s, {.workspace = 600 * (2 * 576 + 4 + 512), .pass_tiles = 0}, 132);
}

TEST_F(RaggedGpu, A1MaskedKeyReachesNoRow) {
  for (const LayoutKind layout :
       {LayoutKind::mla_bf16, LayoutKind::mla_fp8, LayoutKind::mla_fp8_block}) {
    SCOPED_TRACE(name(layout));
    const bool wide = layout == LayoutKind::mla_fp8;  // 256 value dims: tiles of 64 keys
    RaggedScene s(
        {.layout = layout, .heads = 2, .nope_head = wide ? 192 : 128, .v_head = wide ? 256 : 128},
        {{700, 300}, {90, 40}}, test_seed(15));
    check_nonfinite_keys(s, layout == LayoutKind::mla_bf16 ? Wild::one : Wild::ones);
  }
}

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
