// The emulated CUDA backend's counts of written values, against the CPU's counts.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "ops/cache_write.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using ops_test::GpuContext;
using ops_test::Rows;

constexpr std::int64_t kTokens = 37, kPages = 3;
constexpr std::int32_t kPage = 16;

void expect_done(const Result<void>& done) { ASSERT_TRUE(done) << done.error().message(); }

/// Values from far below to far above what a scale can represent, with some zeros and infinities.
void randomize_wide(Rows& x, std::mt19937& rng) {
  std::uniform_real_distribution<float> exponent(-14, 10);
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const auto draw = rng() % 64;
      const float v = draw == 0 ? 0 : draw == 1 ? INFINITY : std::exp2(exponent(rng));
      x.row(r)[c] = rng() % 2 == 0 ? v : -v;
    }
  }
}

class GpuCacheWrite : public ::testing::Test {
 protected:
  void SetUp() override {
    SCOPED_TRACE(test_seed(5));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      slots.emplace_back(t % 9 == 4 ? -1 : static_cast<std::int32_t>(kTokens - t));
      positions.emplace_back(static_cast<std::int32_t>(rng() % 64));
    }
  }
  PoolView on_host(const CacheLayout& layout) {
    bytes.resize(static_cast<std::size_t>(kPages * layout.page_stride(kPage)));
    return {bytes.data(), layout, kPage, kPages};
  }
  PoolView on_device(const CacheLayout& layout) {
    return {gpu.bring(bytes.data(), bytes.size()), layout, kPage, kPages};
  }
  void expect_equal_counts() {
    EXPECT_EQ(of_gpu.counts().stored, 0);  // until they are collected
    ASSERT_TRUE(gpu.backend->collect_counts().ok());
    ASSERT_TRUE(gpu.backend->collect_counts().ok());  // and nothing is added twice
    const ValueCounts got = of_gpu.counts(), wanted = of_cpu.counts();
    EXPECT_GT(wanted.saturated, 0);
    EXPECT_GT(wanted.flushed, 0);
    EXPECT_EQ(got.stored, wanted.stored);
    EXPECT_EQ(got.saturated, wanted.saturated);
    EXPECT_EQ(got.flushed, wanted.flushed);
  }

  std::mt19937 rng{test_seed(5)};
  GpuContext gpu;
  ops_test::Context cpu{1};
  ValueTally of_gpu, of_cpu;
  std::vector<Slot> slots;
  std::vector<LocalPos> positions;
  std::vector<std::byte> bytes;
};

TEST_F(GpuCacheWrite, CountsWhatRowsLose) {
  for (const CacheLayout& layout :
       {CacheLayout(LayoutKind::gqa_fp8, {.kv_heads = 2, .head_dim = 64, .v_head_dim = 32}),
        CacheLayout(LayoutKind::mla_fp8)}) {
    Rows rows(kTokens, layout.row_elems());
    randomize_wide(rows, rng);
    const PoolView host = on_host(layout);
    const TensorScales scales{0.5f, 3.0f};
    expect_done(write_rows(cpu.ops, rows.view(), slots, host, scales, &of_cpu));
    expect_done(write_rows(gpu.ops, constant(gpu.rows(rows)), gpu.list(slots), on_device(layout),
                           scales, &of_gpu));
  }
  expect_equal_counts();
}

TEST_F(GpuCacheWrite, CountsWhatRotatedRowsLose) {
  const CacheLayout layout(LayoutKind::mla_fp8);
  const RopeTable table = RopeTable::make({.dim = 64}, 64).value();
  Rows rows(kTokens, layout.row_elems());
  randomize_wide(rows, rng);
  // RoPE would turn infinities into NaN, which neither device counts.
  for (float& v : rows.data) v = std::isinf(v) ? 1e30f : v;
  const PoolView host = on_host(layout);
  RopeWrite op{.k = rows.view(), .positions = positions, .slots = slots, .table = &table};
  op.scales = {0.5f, 1};
  op.tally = &of_cpu;
  expect_done(rope_write(cpu.ops, op, host));
  op.k = constant(gpu.rows(rows));
  op.positions = gpu.list(positions);
  op.slots = gpu.list(slots);
  op.tally = &of_gpu;
  expect_done(rope_write(gpu.ops, op, on_device(layout)));
  expect_equal_counts();
}

}  // namespace
}  // namespace lathe
