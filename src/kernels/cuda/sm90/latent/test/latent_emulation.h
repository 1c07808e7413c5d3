// Runs calls of latent attention as a GPU would, with kernels run thread by thread on the CPU
// (common/emulator.h).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/sm90/latent/test/latent_checks.h"

namespace lathe::cuda {

using latent_test::Ints;
using latent_test::Scene;

/// More pages of each source than any scene has.
inline constexpr std::int64_t kRoomForAll = 1 << 20;

/// Runs a scene's call on `sms` SMs. With row_request, the kernels get `positions` and the page
/// table in place of the scene's slots. room_pages: staged pages of each source that fit; 0: not
/// staged. last: rows at the end that are split into items of last_keys. min_block_m, fixed_keys:
/// as in LatentShape.
Outputs attend(Scene& s, int sms, std::span<const std::int32_t> row_request = {},
               std::span<const std::int32_t> positions = {}, std::int64_t room_pages = 0,
               std::int64_t last = 0, std::int32_t min_block_m = 64, std::int64_t last_keys = 128,
               std::int64_t fixed_keys = 0);

/// Runs a scene on the kernels and compares with the oracle.
inline void check_scene(Scene& s, int sms, std::span<const std::int32_t> row_request = {},
                        std::span<const std::int32_t> positions = {}, std::int64_t room_pages = 0,
                        std::int64_t last = 0, std::int32_t min_block_m = 64,
                        std::int64_t last_keys = 128) {
  const Matrix<bf16> q = rounded(s.q);
  s.args.q = q.view();
  const Outputs want = s.oracle();
  expect_oracle(attend(s, sms, row_request, positions, room_pages, last, min_block_m, last_keys),
                want);
}

}  // namespace lathe::cuda
