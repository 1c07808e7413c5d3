// Latent attention on every SIMD target that this build has and this machine can run.
#include <gtest/gtest.h>

#include "layout/simd_targets.h"

#include "hwy/highway.h"
#include "kernels/cpu/latent/latent_math.h"
#include "kernels/cpu/latent/test/latent_test_util.h"

namespace lathe {
namespace {

using namespace latent_test;

TEST(LatentTargets, AllAgreeWithTheOracle) {
  int seen = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    EXPECT_STREQ(latent_simd_target(), hwy::TargetName(target));
    SCOPED_TRACE(hwy::TargetName(target));
    for (const LayoutKind kind : {LayoutKind::mla_bf16, LayoutKind::v4_fp8}) {
      for (const int heads : {1, 3, 16}) {
        Scene s(latent_layout(kind), 16, heads, {{1, 1}, {70, 3}, {200, 20}});
        expect_oracle(s);
        const Ints list = s.random_list(130);
        s.by_index(list);
        expect_oracle(s);
      }
    }
    ++seen;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  EXPECT_GE(seen, 1);
}

}  // namespace
}  // namespace lathe
