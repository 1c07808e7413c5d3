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

}  // namespace
}  // namespace lathe::cuda

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
