// Tests latent attention on the CPU with keys that are not finite: they reach no row that does not
// see them.
#include "kernels/cpu/latent/test/latent_test_util.h"
#include "kernels/ref/test/nonfinite_test_util.h"

namespace lathe::latent_test {
namespace {

class LatentNonfinite : public ::testing::TestWithParam<LayoutKind> {};

TEST_P(LatentNonfinite, A1MaskedKeyReachesNoRow) {
  for (const AttendFn kernel : {cpu_attend_latent, ref_attend_latent}) {
    for (const Wild wild : {Wild::ones, Wild::nan, Wild::infinite, Wild::one, Wild::scales}) {
      Scene s(CacheLayout(GetParam(), {.nope = 512, .rope = 64}), 16, 5,
              {{70, 2}, {130, 9}, {3, 1}});
      const Outputs clean = s.attend(kernel);
      for (std::size_t r = 0; r < 2; ++r) {
        for (const WildKey& key : edge_keys(s.args, r)) {
          Scene dirty(CacheLayout(GetParam(), {.nope = 512, .rope = 64}), 16, 5,
                      {{70, 2}, {130, 9}, {3, 1}});
          if (!make_wild(dirty, key, wild)) continue;
          SCOPED_TRACE(fmt::format("wild {} request {} position {}", static_cast<int>(wild), r,
                                   key.position));
          // A score of -inf leaves a row's LSE finite.
          expect_wild_seen_alone(s.args, {&key, 1}, dirty.attend(kernel), clean, true,
                                 wild != Wild::infinite);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LatentNonfinite,
                         ::testing::Values(LayoutKind::mla_bf16, LayoutKind::mla_fp8,
                                           LayoutKind::mla_fp8_block),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace lathe::latent_test
