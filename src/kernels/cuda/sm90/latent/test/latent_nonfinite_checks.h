// Tests of latent attention on caches with keys that are not finite, for a GPU and for the fake
// runtime: prefill, verify steps and decode by page table, every layout and kernel.
#pragma once

#include "kernels/cuda/sm90/latent/test/latent_gpu_test_util.h"
#include "kernels/ref/test/nonfinite_test_util.h"

namespace lathe::cuda {

using latent_test::Scene;
using ref_test::edge_keys, ref_test::Wild, ref_test::WildKey;

struct NonfiniteFamily {
  const char* name;
  LayoutKind layout;
  bool e4m3;  // fp8 operands
  int heads;  // few heads: A and B are swapped
  int rope = 64;
  std::int32_t m_rows = 64;  // least M block where a work tile has more than 32 M rows
  int page = 64;
};

inline constexpr NonfiniteFamily kNonfiniteFamilies[] = {
    {"m64_bf16", LayoutKind::mla_bf16, false, 48},
    {"m64_bf16_heads_128", LayoutKind::mla_bf16, false, 128},
    {"m64_bf16_by_rows", LayoutKind::mla_bf16, false, 24, 64, 64, 100},
    {"m64_bf16_512", LayoutKind::mla_bf16, false, 48, 0},
    {"swap_ab_bf16", LayoutKind::mla_bf16, false, 3},
    {"swap_ab_bf16_by_rows", LayoutKind::mla_bf16, false, 3, 64, 64, 100},
    {"swap_ab_bf16_512", LayoutKind::mla_bf16, false, 5, 0},
    {"m64_fp8", LayoutKind::mla_fp8, false, 48},
    {"swap_ab_fp8", LayoutKind::mla_fp8, false, 3},
    {"small_m_fp8", LayoutKind::mla_fp8, false, 48, 64, 16},
    {"m64_fp8_block", LayoutKind::mla_fp8_block, false, 48, 64, 64, 16},
    {"m64_fp8_block_512", LayoutKind::mla_fp8_block, false, 48, 0},
    {"swap_ab_fp8_block", LayoutKind::mla_fp8_block, false, 3},
    {"swap_ab_fp8_block_512", LayoutKind::mla_fp8_block, false, 5, 0},
    {"small_m_fp8_block", LayoutKind::mla_fp8_block, false, 48, 64, 16},
    {"native_m64", LayoutKind::mla_fp8, true, 48},
    {"native_swap_ab", LayoutKind::mla_fp8, true, 3},
    {"native_small_m", LayoutKind::mla_fp8, true, 48, 64, 16},
};

class LatentNonfinite : public DeviceCall, public ::testing::WithParamInterface<NonfiniteFamily> {
 protected:
  CacheLayout layout() const {
    return CacheLayout(GetParam().layout, {.nope = 512, .rope = GetParam().rope});
  }
  /// Requests by page table, with keys about the edges of what rows see made wild in turn.
  void check(const latent_test::Requests& requests, int heads, int sms,
             std::span<const Wild> kinds) {
    const NonfiniteFamily& family = GetParam();
    Scene s(layout(), family.page, heads, requests);
    const Matrix<bf16> q = rounded(s.q);
    Matrix<e4m3> codes(family.e4m3 ? s.q.rows : 0, s.q.cols);
    s.args.q = q.view();
    if (family.e4m3) {
      for (std::size_t i = 0; i < codes.data.size(); ++i) codes.data[i] = to_e4m3(s.q.data[i] * 3);
      s.args.q = codes.view();
      s.args.q_scale = 0.3f;
    }
    const Outputs clean = attend(s.args, sms, 1, 0, 0, family.m_rows);
    const Outputs want = s.oracle();
    if (!family.e4m3) expect_oracle(clean, want);
    const ConstPoolView pool = s.pool.view();
    auto* bytes = const_cast<std::byte*>(pool.data);
    const std::vector<std::byte> kept(bytes, bytes + pool.bytes());
    for (const Wild wild : kinds) {
      for (std::size_t r = 0; r < requests.size(); ++r) {
        if (requests[r].second < 2) continue;
        const std::vector<WildKey> keys = edge_keys(s.args, r);
        for (const WildKey& key : keys) {
          SCOPED_TRACE(fmt::format("wild {} request {} position {}", static_cast<int>(wild), r,
                                   key.position));
          if (!make_wild(s, key, wild)) continue;
          const Outputs got = attend(s.args, sms, 1, 0, 0, family.m_rows);
          // A score of -inf leaves a row's LSE finite.
          expect_wild_seen_alone(s.args, {&key, 1}, got, clean, true, wild != Wild::infinite);
          std::memcpy(bytes, kept.data(), kept.size());
        }
      }
    }
  }
};

TEST_P(LatentNonfinite, A1MaskedKeyReachesNoRowOfAVerifyStep) {
  constexpr Wild kKinds[] = {Wild::ones, Wild::infinite, Wild::one, Wild::scales};
  check({{130, 4}, {64, 1}}, GetParam().heads, 2, kKinds);
}
// Split work tiles: a partial with a NaN must reach the rows that see it.
TEST_P(LatentNonfinite, A1MaskedKeyReachesNoRowOfSplitWork) {
  constexpr Wild kKinds[] = {Wild::ones};
  check({{300, 2}}, GetParam().heads, 12, kKinds);
}
// More rows than a tile has keys, with several rows in an M block: whole tiles are masked for the
// first M blocks.
TEST_P(LatentNonfinite, A1MaskedKeyReachesNoRowOfAPrefill) {
  constexpr Wild kKinds[] = {Wild::nan};
  check({{150, 70}}, /*heads=*/4, 3, kKinds);
}

INSTANTIATE_TEST_SUITE_P(Families, LatentNonfinite, ::testing::ValuesIn(kNonfiniteFamilies),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace lathe::cuda
