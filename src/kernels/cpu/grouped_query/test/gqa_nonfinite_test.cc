// Tests grouped-query attention on the CPU with keys that are not finite: they reach no row that
// does not see them.
#include "kernels/cpu/grouped_query/test/gqa_test_util.h"
#include "kernels/ref/test/nonfinite_test_util.h"

namespace lathe::cpu_test {
namespace {

using namespace ref_test;

TEST(GqaNonfinite, A1MaskedKeyReachesNoRow) {
  for (const LayoutKind kind : {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8}) {
    for (const int window : {0, 20}) {
      for (const Wild wild : {Wild::ones, Wild::values, Wild::one, Wild::infinite}) {
        const std::vector<std::pair<int, int>> requests = {{70, 2}, {130, 40}};
        GqaScene s({.kind = kind}, requests), dirty({.kind = kind}, requests);
        s.args.problem.window = dirty.args.problem.window = window;
        const ConstPoolView pool = s.pool.view();
        for (const AttendFn kernel : {cpu_attend_gqa, ref_attend_gqa}) {
          const Outputs clean = run(kernel, s.args, s.dims.v_dim);
          for (std::size_t r = 0; r < 2; ++r) {
            for (const WildKey& key : edge_keys(s.args, r)) {
              if (!make_wild(dirty, key, wild)) continue;
              SCOPED_TRACE(fmt::format("{} window {} wild {} request {} position {}", name(kind),
                                       window, static_cast<int>(wild), r, key.position));
              const Outputs got = run(kernel, dirty.args, s.dims.v_dim);
              expect_wild_seen_alone(s.args, {&key, 1}, got, clean,
                                     wild == Wild::ones || wild == Wild::values, wild == Wild::ones,
                                     wild != Wild::infinite);
              std::memcpy(const_cast<std::byte*>(dirty.pool.view().data), pool.data,
                          static_cast<std::size_t>(pool.bytes()));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe::cpu_test
