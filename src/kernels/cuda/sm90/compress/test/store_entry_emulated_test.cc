// Runs store_entry() thread by thread on the CPU (common/emulator.h), against the host's codec.
// Compiled alone: it includes kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/test_scale.h"
#include "kernels/cuda/common/emulator.h"
#include "kernels/cuda/sm90/compress/store_entry.cuh"
#include "layout/codec/codec.h"

namespace lathe::cuda {
namespace {

struct StoreParams {
  const float* rows;          // [blocks, dim]
  const std::int32_t* slots;  // [blocks]
  std::int32_t dim;
  EntryPool pool;
};

__global__ void store_kernel(const StoreParams p) {
  alignas(16) __shared__ float entry[kCompressMostDim];
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < p.dim; i += 256) {
    entry[i] = p.rows[static_cast<std::int64_t>(blockIdx.x) * p.dim + i];
  }
  sync_block();
  store_entry(p.pool, p.slots[blockIdx.x], entry, p.dim);
}

constexpr std::int32_t kPage = 8;
constexpr std::int64_t kPages = 3, kRows = 20;

// Every second row has large and small values; some are not finite or zero.
std::vector<float> random_entries(std::mt19937& rng, std::int64_t dim) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(kRows * dim));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(dim);
    out[i] = normal(rng) * (row % 2 == 0 ? 1 : std::exp(8 * normal(rng)));
    if (row % 5 == 3) out[i] = 0;
  }
  for (const float special : {INFINITY, -INFINITY, NAN, -NAN, -0.0f, 3e38f, 1e-40f}) {
    for (int n = 0; n < 3; ++n) out[rng() % out.size()] = special;
  }
  return out;
}

TEST(StoreEntry, HasTheBytesOfTheHostsCodec) {
  const auto seed = test_seed(20261130);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const char* name :
       {"v4_fp8(nope=448,rope=64)", "v4_fp8(nope=192,rope=64)", "v4_fp8(nope=64,rope=16)",
        "mla_bf16(nope=448,rope=64)", "mla_bf16(nope=32,rope=16)", "index_fp8(dim=128)",
        "index_fp8(dim=48)", "index_fp8(dim=512,scale=raw_f32)"}) {
    SCOPED_TRACE(name);
    const CacheLayout layout = CacheLayout::parse(name).value();
    const std::int64_t dim = layout.row_elems();
    std::vector<Slot> slots;
    for (std::int32_t i = 0; i < kRows; ++i) slots.emplace_back(i + 3);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots[4] = Slot(-1);
    slots[7] = Slot(static_cast<std::int32_t>(kPages * kPage));
    const std::vector<float> rows = random_entries(rng, dim);
    std::vector<std::byte> got(static_cast<std::size_t>(kPages * layout.page_stride(kPage)),
                               std::byte{0x5a});
    std::vector<std::byte> wanted = got;
    const auto pool = entry_pool(PoolView(got.data(), layout, kPage, kPages));
    ASSERT_TRUE(pool.ok());
    const StoreParams p{rows.data(), &slots.data()->value, static_cast<std::int32_t>(dim), *pool};
    emulate_blocks(1, {kRows, 1, 1}, {256, 1, 1}, store_kernel, p);
    const RowsView view{reinterpret_cast<const std::byte*>(rows.data()), DType::f32, kRows, dim,
                        dim};
    slots[7] = Slot(-1);
    ASSERT_TRUE(encode_rows(view, slots, PoolView(wanted.data(), layout, kPage, kPages)).ok());
    EXPECT_EQ(got, wanted);
  }
}

TEST(StoreEntry, OtherLayoutsAreRejected) {
  for (const char* name : {"mla_fp8(nope=448,rope=64)", "mla_fp4(nope=448,rope=64)",
                           "mla_fp8_block(nope=512,rope=64)"}) {
    const CacheLayout layout = CacheLayout::parse(name).value();
    std::vector<std::byte> bytes(static_cast<std::size_t>(layout.page_stride(kPage)));
    const auto pool = entry_pool(PoolView(bytes.data(), layout, kPage, 1));
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.error().field, "pool.layout");
  }
}

}  // namespace
}  // namespace lathe::cuda
