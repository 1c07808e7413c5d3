// Tests that no call below its maxima needs more workspace than planned.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>

#include "base/test_scale.h"
#include "kernels/cuda/sm90/latent/latent.h"

namespace lathe::cuda {
namespace {

// Places a call's arrays in scratch as latent_attend.cc does.
std::int64_t taken(const LatentShape& shape) {
  LatentSchedule schedule;
  schedule.cut = cut_latent(shape);
  std::int64_t bytes = schedule.cut.workspace_bytes();
  take_arrays(schedule, [&]<class T>(std::span<T>&, std::int64_t entries) {
    bytes += (entries * static_cast<std::int64_t>(sizeof(T)) + 255) / 256 * 256;
  });
  return bytes;
}

using Random = std::mt19937;

// Most values are small, as most calls are.
std::int64_t draw(Random& random, std::int64_t most) {
  std::int64_t limit = most;
  for (int halvings = static_cast<int>(random() % 12); halvings > 0 && limit > 1; --halvings) {
    limit = (limit + 1) / 2;
  }
  return std::uniform_int_distribution<std::int64_t>(1, limit)(random);
}

LatentShape below(Random& random, const LatentShape& most) {
  LatentShape s = most;
  s.request_rows = draw(random, most.request_rows);
  s.requests = draw(random, most.requests);
  s.rows = most.dense ? std::min(most.rows, s.requests * s.request_rows) : draw(random, most.rows);
  s.keys = draw(random, most.keys);
  if (most.main.pages > 0) {
    s.main.pages = draw(random, most.main.pages);
    s.main.width = s.keys;
  }
  if (most.main.pages > 0 && random() % 2 == 0) s.tokens = draw(random, 1 << 20);
  return s;
}

TEST(LatentWorkspace, HoldsEveryCallBelowItsMaxima) {
  const std::uint32_t seed = test_seed(20);
  SCOPED_TRACE(seed);
  Random random(seed);
  for (int round = 0; round < 400 * test_scale(); ++round) {
    LatentShape most;
    most.dense = random() % 2 == 0;
    most.heads = std::array{1, 3, 8, 16, 24, 32, 48, 64, 128}[random() % 9];
    most.requests = draw(random, 4096);
    most.request_rows = random() % 3 == 0 ? draw(random, 4096) : 1;
    most.rows = most.requests * most.request_rows;
    most.keys = draw(random, most.dense ? 1 << 20 : 4096);
    most.fp8_pages = random() % 2 == 0;
    most.fp8 = most.dense && most.fp8_pages && random() % 2 == 0;
    most.sms = std::array{1, 78, 132}[random() % 3];
    if (random() % 4 == 0) most.fixed_keys = kLatentFixedKeys;
    if (most.fp8_pages && !most.dense) {
      most.main = {draw(random, 1 << 15), 64, 576, most.keys};
    }
    const std::int64_t bytes = latent_workspace_bytes(most);
    for (int call = 0; call < 40; ++call) {
      const LatentShape s = call == 0 ? most : below(random, most);
      ASSERT_LE(taken(s), bytes) << (most.dense ? "dense, " : "lists, ") << most.heads << " heads, "
                                 << s.rows << " of " << most.rows << " rows, " << s.requests
                                 << " of " << most.requests << " requests, " << s.request_rows
                                 << " of " << most.request_rows << " rows a request, " << s.keys
                                 << " of " << most.keys << " keys, " << most.sms << " SMs, fixed "
                                 << most.fixed_keys;
      // Smaller maxima need no more.
      ASSERT_LE(latent_workspace_bytes(s), bytes);
    }
  }
}

// A decode step needs two partials of each SM, or its lists' splits, but not the limit.
TEST(LatentWorkspace, IsNotTheLimitWhereLessIsEnough) {
  LatentShape decode{.rows = 1, .requests = 1, .keys = 2048, .heads = 16, .fp8_pages = true};
  EXPECT_LT(latent_workspace_bytes(decode), std::int64_t{8} << 20);
  decode.dense = true;
  decode.keys = 131072;
  decode.rows = decode.requests = 128;
  EXPECT_LT(latent_workspace_bytes(decode), kLatentPartialBytes + (1 << 20));
  LatentShape extend{.rows = 4096, .requests = 1, .request_rows = 4096, .keys = 2048, .heads = 64};
  extend.main = {4096, 64, 576, 2048};
  EXPECT_GE(latent_workspace_bytes(extend), kLatentPartialBytes);
}

}  // namespace
}  // namespace lathe::cuda
