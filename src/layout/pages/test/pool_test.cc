#include "layout/pages/pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace lathe {
namespace {

TEST(Pool, PagesFromABudget) {
  // mla_fp8_block: 64 x 656 = 41984 bytes per page and layer; 3 layers: 125952.
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  auto pool = Pool::create({layout, 64, 3, 10 * 125952 - 1, 0});
  ASSERT_TRUE(pool) << pool.error().message();
  EXPECT_EQ(pool->pages(), 9);
  EXPECT_EQ(pool->bytes_per_page(), 125952);
  EXPECT_EQ(pool->bytes(), 9 * 125952);
  EXPECT_EQ(pool->shape(), (PoolShape{64, 9}));
  EXPECT_EQ(pool->used_bytes(), 0);
  ASSERT_TRUE(pool->ledger().allocate(2));
  EXPECT_EQ(pool->used_bytes(), 2 * 125952);
  EXPECT_EQ(Pool::create({layout, 64, 3, 125952, 0})->pages(), 1);

  // Page padding counts: a v4_fp8 page of 2 entries has 1728 bytes, not 1168.
  EXPECT_EQ(Pool::create({CacheLayout(LayoutKind::v4_fp8), 2, 1, 5 * 1728 + 1727, 0})->pages(), 5);
}

TEST(Pool, BadSpecs) {
  const CacheLayout fp8(LayoutKind::mla_fp8);
  const auto message = [&](std::int32_t page, std::int32_t layers, std::int64_t budget,
                           std::int64_t pages) {
    const auto r = Pool::create({fp8, page, layers, budget, pages});
    EXPECT_FALSE(r);
    return r ? std::string() : r.error().message();
  };
  EXPECT_EQ(message(64, 2, 73727, 0),
            "budget_bytes: wanted at least 73728 bytes, which one page needs, got 73727; raise the "
            "budget or make pages smaller");
  EXPECT_EQ(message(64, 2, 0, 0),
            "budget_bytes, pages: wanted one of the two, got none; one page needs 73728 bytes");
  EXPECT_EQ(message(64, 2, 73728, 1),
            "budget_bytes, pages: wanted one of the two, got both; one page needs 73728 bytes");
  EXPECT_EQ(message(0, 1, 0, 1), "page_size: wanted 1 to 65536, got 0; try 64");
  EXPECT_EQ(message(64, 0, 0, 1), "layers: wanted 1 to 4096, got 0");
  EXPECT_EQ(message(64, 4097, 0, 1), "layers: wanted 1 to 4096, got 4097");
  EXPECT_EQ(message(64, 1, -1, 0), "budget_bytes: wanted 0 or more, got -1");
  EXPECT_EQ(message(64, 1, 0, -1), "pages: wanted 0 or more, got -1");
  // 2^31 slots are one more than allowed.
  EXPECT_EQ(message(64, 1, 0, 1 << 25),
            "pages: wanted 1 to 33554431 (slots are 32 bits wide), got 33554432");
  EXPECT_EQ(message(64, 1, (std::int64_t{1} << 25) * 36864, 0),
            "budget_bytes: wanted room for at most 33554431 pages (slots are 32 bits wide), got "
            "1236950581248; give at most 1236950544384 bytes");
  const PoolPart wide{
      CacheLayout(LayoutKind::gqa_bf16, {.kv_heads = 1024, .head_dim = 1024, .v_head_dim = 1024}),
      65536, 4096};
  EXPECT_FALSE(pool_pages({&wide, 1}, {0, 32767}));  // 2^65 bytes
}

TEST(Pool, AnAllocatorMayFail) {
  const Memory none{
      MemoryKind::host, [](std::int64_t bytes) -> Result<OwnedBytes> {
        return Error{ErrorCode::exhausted, "pool", std::to_string(bytes), "nothing", ""};
      }};
  const auto r = Pool::create({CacheLayout(LayoutKind::mla_fp8), 64, 1, 0, 1}, none);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(), "pool: wanted 36864, got nothing");
}

TEST(Pool, LayersLieOneAfterAnother) {
  auto pool = Pool::create({CacheLayout(LayoutKind::index_fp8), 64, 3, 0, 5});
  ASSERT_TRUE(pool);
  std::byte* base = pool->view(0).data;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % 64, 0u);
  EXPECT_EQ(pool->view(1).data - base, 5 * 8448);
  EXPECT_EQ(pool->view(2).data - base, 10 * 8448);
  EXPECT_EQ(pool->view(2).pages, 5);
  EXPECT_EQ(pool->view(2).page_size, 64);
  std::memset(base, 1, static_cast<std::size_t>(pool->bytes()));  // all bytes can be written
  Pool moved = std::move(*pool);
  EXPECT_EQ(moved.view(0).data, base);
  EXPECT_EQ(std::as_const(moved).view(2).data[5 * 8448 - 1], std::byte{1});
}

TEST(Pool, PoisonLeavesHeldPagesAlone) {
  auto pool = Pool::create({CacheLayout(LayoutKind::mla_fp8), 2, 2, 0, 3});
  ASSERT_TRUE(pool);
  std::memset(pool->view(0).data, 0, static_cast<std::size_t>(pool->bytes()));
  ASSERT_TRUE(pool->ledger().allocate(2));
  ASSERT_TRUE(pool->ledger().begin_write(PageId(1)));
  ASSERT_TRUE(pool->ledger().release(PageId(1)));  // no owner, but still being written
  pool->poison_free();
  for (int layer = 0; layer < 2; ++layer) {
    const ConstPoolView view = std::as_const(*pool).view(layer);
    for (std::int64_t b = 0; b < view.bytes(); ++b) {
      ASSERT_EQ(view.data[b], b < 2 * view.page_stride ? std::byte{0} : std::byte{0xff});
    }
  }
}

}  // namespace
}  // namespace lathe
