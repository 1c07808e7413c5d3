// For tests of operators that write keys on the emulated GPU: a pool, and the positions and slots
// of a batch's rows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "layout/codec/value_tally.h"
#include "ops/test/gpu_test_util.h"

namespace lathe::ops_test {

/// A NaN-poisoned pool on the host, and for each row a position below 50 and a slot. Every fifth
/// row only pads the batch.
struct CacheRows {
  static constexpr std::int32_t kPage = 16;
  static constexpr std::int64_t kPages = 3;

  CacheLayout layout;
  std::vector<LocalPos> positions;
  std::vector<Slot> slots;
  std::vector<std::byte> bytes;

  CacheRows(const CacheLayout& of, std::int64_t rows, std::mt19937& rng)
      : layout(of),
        bytes(static_cast<std::size_t>(kPages * layout.page_stride(kPage)), std::byte{0x5a}) {
    std::vector<std::int32_t> free(kPages * kPage);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), rng);
    for (std::int64_t t = 0; t < rows; ++t) {
      const bool pads = t % 5 == 3;
      positions.emplace_back(pads ? -1 : static_cast<std::int32_t>(rng() % 50));
      slots.emplace_back(pads ? -1 : free[static_cast<std::size_t>(t)]);
    }
  }
  bool pads(std::int64_t row) const { return positions[static_cast<std::size_t>(row)].value < 0; }
  PoolView pool(std::byte* at) const { return {at, layout, kPage, kPages}; }
};

class GpuCacheRows : public ::testing::Test {
 protected:
  PoolView pool_there(const CacheRows& s) {
    return s.pool(gpu.bring(s.bytes.data(), s.bytes.size()));
  }
  std::vector<std::byte> read(const PoolView& pool, std::size_t bytes) {
    EXPECT_TRUE(gpu.backend->wait().ok());
    std::vector<std::byte> out(bytes);
    EXPECT_TRUE(gpu.backend->download(gpu.ops, pool.data, out).ok());
    return out;
  }
  /// stored: number of values that `wanted` has counted. If there are any, some must exceed what
  /// their scale can represent.
  void expect_equal_counts(const ValueTally& got, const ValueTally& wanted, std::int64_t stored) {
    ASSERT_TRUE(gpu.backend->collect_counts().ok());
    const ValueCounts a = got.counts(), b = wanted.counts();
    EXPECT_EQ(b.stored, stored);
    EXPECT_EQ(b.saturated > 0 && b.flushed > 0, stored > 0);
    EXPECT_EQ(a.stored, b.stored);
    EXPECT_EQ(a.saturated, b.saturated);
    EXPECT_EQ(a.flushed, b.flushed);
  }

  std::mt19937 rng{7};
  GpuContext gpu;
  Context ref{1, Device::ref};
};

}  // namespace lathe::ops_test
