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

class LatentNonfiniteCall : public DeviceCall {
 protected:
  /// Makes keys about the edges of what rows see wild, one after another.
  void check_scene(Scene& s, bool fp8_q, int sms, std::span<const Wild> kinds, std::int32_t m_rows,
                   std::int64_t room_pages) {
    const Matrix<bf16> q = rounded(s.q);
    Matrix<e4m3> codes(fp8_q ? s.q.rows : 0, s.q.cols);
    s.args.q = q.view();
    if (fp8_q) {
      for (std::size_t i = 0; i < codes.data.size(); ++i) codes.data[i] = to_e4m3(s.q.data[i] * 3);
      s.args.q = codes.view();
      s.args.q_scale = 0.3f;
    }
    const auto run = [&] { return attend(s.args, sms, 1, room_pages, 0, m_rows); };
    const Outputs clean = run();
    if (!fp8_q) expect_oracle(clean, s.oracle());
    const ConstPoolView pool = s.pool.view();
    auto* bytes = const_cast<std::byte*>(pool.data);
    const std::vector<std::byte> kept(bytes, bytes + pool.bytes());
    for (const Wild wild : kinds) {
      for (std::size_t r = 0; r < s.args.kv_lens.size(); ++r) {
        if (s.args.q_indptr[r + 1] - s.args.q_indptr[r] < 2) continue;
        for (const WildKey& key : edge_keys(s.args, r)) {
          SCOPED_TRACE(fmt::format("wild {} request {} position {}", static_cast<int>(wild), r,
                                   key.position));
          if (!make_wild(s, key, wild)) continue;
          // A score of -inf leaves a row's LSE finite.
          expect_wild_seen_alone(s.args, {&key, 1}, run(), clean, true, wild != Wild::infinite);
          std::memcpy(bytes, kept.data(), kept.size());
        }
      }
    }
  }
};

class LatentNonfinite : public LatentNonfiniteCall,
                        public ::testing::WithParamInterface<NonfiniteFamily> {
 protected:
  CacheLayout layout() const {
    return CacheLayout(GetParam().layout, {.nope = 512, .rope = GetParam().rope});
  }
  /// Requests by page table, with keys about the edges of what rows see made wild in turn.
  void check(const latent_test::Requests& requests, int heads, int sms,
             std::span<const Wild> kinds) {
    Scene s(layout(), GetParam().page, heads, requests);
    check_scene(s, GetParam().e4m3, sms, kinds, GetParam().m_rows, 0);
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

struct NonfiniteLists {
  const char* name;
  LayoutKind layout;
  bool e4m3;
  int heads;
  std::int64_t room_pages = 0;  // of prepare()
};

class LatentNonfiniteLists : public LatentNonfiniteCall,
                             public ::testing::WithParamInterface<NonfiniteLists> {};

// By lists, a row's keys are its own: a key in the list of another row reaches it neither in place
// of a missing key nor through staged pages.
TEST_P(LatentNonfiniteLists, A1KeyOfAnotherRowReachesNoRow) {
  constexpr Wild kKinds[] = {Wild::ones, Wild::one};
  constexpr int kWidth = 140, kWindow = 20;
  const NonfiniteLists& family = GetParam();
  Scene s(layout_of(family.layout), 16, family.heads, {{130, 4}, {64, 1}});
  const bool v4 = family.layout == LayoutKind::v4_fp8;
  const Ints list = s.batch.causal_list(16, kWidth, v4 ? kWindow : 0);
  Ints first;  // positions 0 to 9
  for (std::int32_t row = 0; row < 5; ++row) {
    for (int i = 0; i < 10; ++i) first.push_back(s.batch.entry(row < 4 ? 0 : 1, 0).value * 16 + i);
  }
  if (v4) {
    s.by_two_sources(list, kWindow, first);
  } else {
    s.by_index(list);
  }
  check_scene(s, family.e4m3, 2, kKinds, 64, family.room_pages);
}

INSTANTIATE_TEST_SUITE_P(
    Families, LatentNonfiniteLists,
    ::testing::Values(NonfiniteLists{"m64_bf16", LayoutKind::mla_bf16, false, 64},
                      NonfiniteLists{"swap_ab_bf16", LayoutKind::mla_bf16, false, 8},
                      NonfiniteLists{"m64_fp8_block", LayoutKind::mla_fp8_block, false, 64},
                      NonfiniteLists{"swap_ab_fp8_block", LayoutKind::mla_fp8_block, false, 8},
                      NonfiniteLists{"m64_v4", LayoutKind::v4_fp8, false, 64},
                      NonfiniteLists{"swap_ab_v4", LayoutKind::v4_fp8, false, 8},
                      NonfiniteLists{"staged_fp8_block", LayoutKind::mla_fp8_block, false, 64, 99},
                      NonfiniteLists{"staged_v4", LayoutKind::v4_fp8, false, 64, 99},
                      NonfiniteLists{"native_m64", LayoutKind::mla_fp8, true, 64},
                      NonfiniteLists{"native_swap_ab", LayoutKind::mla_fp8, true, 8}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace lathe::cuda
