#include "layout/codec/value_tally.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float_formats.h"
#include "layout/pages/pool.h"

namespace lathe {
namespace {

// Compares with counts from the codes that the codec writes and the values that it was given.
TEST(ValueTally, CountsWhatTheCodecLoses) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const CacheLayout layout(LayoutKind::gqa_fp8, {.kv_heads = 3, .head_dim = 32, .v_head_dim = 16});
  const std::int64_t width = layout.row_elems();
  constexpr std::int64_t kRows = 57;
  auto pool = Pool::create({.layout = layout, .page_size = 16, .pages = 4});
  ASSERT_TRUE(pool);
  const TensorScales scales{0.37f, 5};
  std::uniform_real_distribution<float> exponent(-14, 14);
  std::vector<float> x(static_cast<std::size_t>(kRows * width));
  for (float& v : x) v = std::exp2(exponent(random)) * ((random() & 1u) != 0 ? 1.0f : -1.0f);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[6] = std::numeric_limits<float>::infinity();
  x[7] = 0;
  std::vector<Slot> slots;
  for (std::int64_t r = 0; r < kRows; ++r)
    slots.emplace_back(r % 9 == 4 ? -1 : static_cast<int>(r));
  const RowsView rows{reinterpret_cast<const std::byte*>(x.data()), DType::f32, kRows, width,
                      width};
  ASSERT_TRUE(encode_rows(rows, slots, pool->view(0), scales));

  ValueCounts want;
  std::vector<float> back(static_cast<std::size_t>(width));
  const MutableRowsView out{reinterpret_cast<std::byte*>(back.data()), DType::f32, 1, width, width};
  for (std::int64_t r = 0; r < kRows; ++r) {
    const Slot slot = slots[static_cast<std::size_t>(r)];
    if (slot.is_hole()) continue;
    ASSERT_TRUE(decode_rows(pool->view(0), slot, out, scales));
    for (std::int64_t i = 0; i < width; ++i) {
      const float v = x[static_cast<std::size_t>(r * width + i)];
      const bool key = i < 3 * 32;
      const float scale = key ? scales.key : scales.value;
      const float stored = back[static_cast<std::size_t>(i)];
      ++want.stored;
      want.flushed += v != 0 && stored == 0 ? 1 : 0;
      // Code 448 is correct for values up to 464, half a step of 32 above it.
      const bool most = std::fabs(stored) == 448.0f * scale;
      want.saturated += most && std::fabs(v) > (448 + 16) * double{scale} ? 1 : 0;
      if (!std::isfinite(v)) continue;
      float& largest = key ? want.largest_key : want.largest_value;
      largest = std::max(largest, std::fabs(v));
    }
  }
  ValueTally tally;
  tally.add(rows, slots, layout, scales);
  const ValueCounts got = tally.counts();
  EXPECT_GT(want.saturated, 0);
  EXPECT_GT(want.flushed, 0);
  EXPECT_EQ(got.stored, want.stored);
  EXPECT_EQ(got.saturated, want.saturated);
  EXPECT_EQ(got.flushed, want.flushed);
  EXPECT_EQ(got.largest_key, want.largest_key);
  EXPECT_EQ(got.largest_value, want.largest_value);
}

}  // namespace
}  // namespace lathe
