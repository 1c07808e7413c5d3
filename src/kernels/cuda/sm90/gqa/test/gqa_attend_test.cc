// Tests what grouped-query attention rejects before it needs a device, and the block sizes and
// memory that it plans for a call.
#include "kernels/cuda/sm90/gqa/gqa_attend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"

namespace lathe::cuda {
namespace {

using ::testing::HasSubstr;

// A decode step of two requests by page table. The arrays are never read.
struct GqaCall {
  alignas(16) std::array<std::byte, 64> bytes{};
  std::vector<std::int32_t> indptr = {0, 1, 2}, lens = {5, 70}, list = {0, 0};
  std::vector<PageId> table = std::vector<PageId>(4);
  Scratch scratch{kDeviceMemory};
  AttendArgs args;

  explicit GqaCall(LayoutDims dims = {.kv_heads = 2, .head_dim = 128, .v_head_dim = 128}) {
    AttentionProblem& p = args.problem;
    p = gqa_problem(4 * dims.kv_heads, dims.kv_heads, dims.head_dim);
    p.v_head_dim = dims.v_head_dim;
    const std::int64_t width = p.heads * p.head_dim, out = p.heads * p.v_head_dim;
    args.q = {bytes.data(), DType::bf16, 2, width, width};
    args.out = {bytes.data(), DType::bf16, 2, out, out};
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.main.pool.emplace(bytes.data(), CacheLayout(LayoutKind::gqa_bf16, dims), 64, 8);
    args.main.page_table = table;
    args.main.table_width = 2;
    args.execution.scratch = &scratch;
  }
  std::string refusal() const {
    const auto done = attend_gqa_on_device(args);
    return done ? "ran" : done.error().message();
  }
};

template <class Change>
std::string gqa_refusal(Change change) {
  GqaCall c;
  change(c);
  return c.refusal();
}

TEST(AttendGqaOnDevice, RefusesWhatTheKernelsDoNotTake) {
  EXPECT_EQ(gqa_refusal([](GqaCall& c) { c.args.q.dtype = DType::f32; }),
            "q.dtype: wanted bf16, got f32");
  EXPECT_EQ(gqa_refusal([](GqaCall& c) { c.args.out.dtype = DType::f64; }),
            "out.dtype: wanted bf16 or f32, got f64");
  EXPECT_THAT(gqa_refusal([](GqaCall& c) { c.args.q.data += 2; }),
              HasSubstr("q: wanted an address and strides of whole 16 bytes"));
  EXPECT_THAT(gqa_refusal([](GqaCall& c) { c.args.q.row_stride += 4; }),
              HasSubstr("q: wanted an address and strides of whole 16 bytes"));
  EXPECT_THAT(gqa_refusal([](GqaCall& c) {
                const CacheLayout layout = c.args.main.pool->layout;
                c.args.main.pool.emplace(c.bytes.data(), layout, 48, 8);
              }),
              HasSubstr("main.pool.page_size: wanted one of 16, 32, 64, 128, got 48"));
  EXPECT_THAT(gqa_refusal([](GqaCall& c) {
                c.args.main.page_table = {};
                c.args.main.table_width = 0;
                c.args.main.indices = c.list;
                c.args.main.index_width = 1;
              }),
              HasSubstr("main: wanted keys named by a page table of a pool, got an index list"));
  EXPECT_EQ(gqa_refusal([](GqaCall& c) { c.args.q.rows = c.args.out.rows = 3; }),
            "max_request_rows: wanted at least 2 (3 rows over 2 requests), got 1");
  EXPECT_EQ(gqa_refusal([](GqaCall& c) { c.args.max_kv_len = -1; }),
            "max_kv_len: wanted 0 or more, got -1");
  EXPECT_THAT(gqa_refusal([](GqaCall& c) { c.args.execution.scratch = nullptr; }),
              HasSubstr("execution.scratch: wanted scratch of device memory, got none"));
  EXPECT_THAT(GqaCall({.kv_heads = 2, .head_dim = 96, .v_head_dim = 96}).refusal(),
              HasSubstr("problem.head_dim: wanted one of 64, 128, 256, 512, got 96"));
  EXPECT_THAT(GqaCall({.kv_heads = 2, .head_dim = 128, .v_head_dim = 64}).refusal(),
              HasSubstr("problem.v_head_dim: wanted the head_dim 128, got 64"));
  EXPECT_THAT(GqaCall({.kv_heads = 2, .head_dim = 192, .v_head_dim = 192}).refusal(),
              HasSubstr("problem.head_dim: wanted one of 64, 128, 256, 512, got 192"));
}

TEST(AttendGqaOnDevice, TakesChunksOfWholePages) {
  const auto refusal = [](std::int32_t chunk) {
    return gqa_refusal([&](GqaCall& c) {
      c.args.problem.window = chunk;
      c.args.problem.chunked = true;
      c.args.execution.scratch = nullptr;
    });
  };
  for (const std::int32_t chunk : {64, 128, 8192}) {
    EXPECT_THAT(refusal(chunk), HasSubstr("execution.scratch")) << chunk;
  }
  for (const std::int32_t chunk : {1, 32, 65, 96, 8200}) {
    EXPECT_THAT(refusal(chunk), HasSubstr(fmt::format("problem.window: wanted chunks of whole "
                                                      "pages of 64 tokens, got {}",
                                                      chunk)));
  }
}

TEST(GqaShape, GivesBlocksTheRowsOfARequest) {
  GqaCall c;
  EXPECT_EQ(gqa_shape(c.args, 132).block_m, 8);
  for (const auto& [rows, block_m] :
       {std::pair{2, 8}, {3, 16}, {8, 32}, {9, 64}, {16, 64}, {17, 128}, {1000, 128}}) {
    c.args.q.rows = 2 * rows;
    c.args.max_request_rows = rows;
    const GqaShape shape = gqa_shape(c.args, 132);
    EXPECT_EQ(shape.block_m, block_m) << rows;
    // With 4 heads a group, the last M block of each request may be partial.
    EXPECT_GE(shape.max_blocks, 2 * ((4 * rows + block_m - 1) / block_m)) << rows;
    EXPECT_EQ(shape.workers, block_m == 128 ? 132 : 264);
  }
}

// Two e4m3 heads of 64 dims are an item where all rows of a request fit its M block.
TEST(GqaShape, PairsHeadsOf64) {
  struct Case {
    LayoutKind kind;
    std::int32_t kv_heads, dim, rows;
    bool pairs;
    std::int32_t block_m;
  };
  constexpr LayoutKind kBf16 = LayoutKind::gqa_bf16, kFp8 = LayoutKind::gqa_fp8;
  for (const Case& k : {Case{kFp8, 8, 64, 1, true, 16}, Case{kFp8, 2, 64, 3, true, 32},
                        Case{kFp8, 8, 64, 8, true, 64}, Case{kFp8, 8, 64, 9, false, 64},
                        Case{kFp8, 1, 64, 1, false, 8}, Case{kFp8, 3, 64, 1, false, 8},
                        Case{kFp8, 8, 128, 1, false, 8}, Case{kBf16, 8, 64, 1, false, 8}}) {
    SCOPED_TRACE(
        fmt::format("{} KV heads {} dim {} rows {}", name(k.kind), k.kv_heads, k.dim, k.rows));
    const LayoutDims dims = {.kv_heads = k.kv_heads, .head_dim = k.dim, .v_head_dim = k.dim};
    GqaCall c(dims);
    c.args.main.pool.emplace(c.bytes.data(), CacheLayout(k.kind, dims), 64, 8);
    c.args.q.rows = 2 * k.rows;
    c.args.max_request_rows = k.rows;
    const GqaShape shape = gqa_shape(c.args, 132);
    EXPECT_EQ(shape.pairs, k.pairs);
    EXPECT_EQ(shape.block_m, k.block_m);
    const GqaParams p = gqa_params(c.args, shape, nullptr, nullptr);
    const std::int32_t heads = k.pairs ? 2 : 1;
    EXPECT_EQ(p.kv_heads, k.kv_heads / heads);
    EXPECT_EQ(p.group.divisor, 4 * heads);
    EXPECT_GE(p.block_m, k.pairs ? 8 * k.rows : 0);
  }
}

// 16 M rows of e4m3 heads of 128 dims have tiles of 128 keys.
TEST(GqaShape, GivesTilesTheirKeys) {
  struct Case {
    LayoutKind kind;
    std::int32_t dim, rows, tile;
  };
  constexpr LayoutKind kBf16 = LayoutKind::gqa_bf16, kFp8 = LayoutKind::gqa_fp8;
  for (const Case& k : {Case{kFp8, 128, 2, 64}, Case{kFp8, 128, 3, 128}, Case{kFp8, 128, 4, 128},
                        Case{kFp8, 128, 5, 64}, Case{kFp8, 64, 4, 64}, Case{kFp8, 256, 4, 64},
                        Case{kBf16, 128, 4, 64}}) {
    SCOPED_TRACE(fmt::format("{} dim {} rows {}", name(k.kind), k.dim, k.rows));
    const LayoutDims dims = {.kv_heads = 2, .head_dim = k.dim, .v_head_dim = k.dim};
    GqaCall c(dims);
    c.args.main.pool.emplace(c.bytes.data(), CacheLayout(k.kind, dims), 64, 8);
    c.args.q.rows = 2 * k.rows;
    c.args.max_request_rows = k.rows;
    const GqaShape shape = gqa_shape(c.args, 132);
    EXPECT_EQ(shape.tile, k.tile);
    const GqaParams p = gqa_params(c.args, shape, nullptr, nullptr);
    EXPECT_EQ(p.piece_tiles * p.tile, kGqaFixedKeys);
  }
}

// Each row is a request of its own, whose keys are those of its list.
TEST(GqaShape, OfLists) {
  AttendArgs args;
  args.problem.kind = ProblemKind::sparse_latent;
  args.problem.heads = 32;
  args.problem.nope = 128;
  args.problem.rope = 32;
  const std::vector<std::int32_t> lens = {300, 20};
  const ConstPoolView pool(nullptr, CacheLayout(LayoutKind::mla_bf16, {.nope = 128, .rope = 32}),
                           48, 1);
  args.main.pool.emplace(pool);
  args.main.index_width = 64;
  args.kv_lens = lens;
  args.q.rows = 100;
  args.max_request_rows = 99;
  const GqaShape shape = gqa_shape(args, 132);
  EXPECT_EQ(shape.block_m, 32);
  EXPECT_GE(shape.max_blocks, 100);
  EXPECT_EQ(shape.workers, 264);
  const GqaParams p = gqa_params(args, shape, nullptr, nullptr);
  EXPECT_EQ(p.requests, 100);
  EXPECT_EQ(p.max_keys, 64);
  // Entries and lengths may be missing where a step is only planned.
  EXPECT_NE(p.indices, nullptr);
  EXPECT_EQ(p.index_lengths, nullptr);
}

TEST(GqaShape, KeepsToTheDeclaredBytes) {
  for (const std::int32_t dim : kGqaHeadDims) {
    GqaCall c({.kv_heads = 8, .head_dim = dim, .v_head_dim = dim});
    c.args.q.rows = 8192;
    c.args.max_request_rows = 8192;
    EXPECT_LE(gqa_shape(c.args, 132).bytes(), kGqaPartialBytes) << dim;
  }
}

// Pieces of about 2048 keys, at most 8; only for few rows, and where a window does not make them
// needless.
TEST(GqaShape, CutsARequestByItsOwnKeys) {
  struct Case {
    std::int64_t rows, keys;
    std::int32_t window;
    std::int64_t blocks, pieces;
  };
  for (const Case& k :
       {Case{1, 2048, 0, 0, 1}, Case{1, 2049, 0, 2, 8}, Case{8, 16384, 0, 8, 8},
        Case{1, 1 << 20, 0, 8, 8}, Case{1, 1 << 20, 128, 0, 1}, Case{9, 16384, 0, 0, 1}}) {
    GqaCall c;
    c.args.execution.batch_invariant = true;
    c.args.q.rows = c.args.max_request_rows = k.rows;
    c.args.max_kv_len = k.keys;
    c.args.main.table_width = 1 << 20;
    c.args.problem.window = k.window;
    const GqaShape shape = gqa_shape(c.args, 132);
    EXPECT_EQ(shape.pieces, k.pieces) << k.rows << ", " << k.keys;
    EXPECT_EQ(shape.partials, k.blocks * c.args.problem.kv_heads * std::ssize(c.args.kv_lens));
  }
}

TEST(GqaWorkspace, HoldsEveryCallBelowItsMaxima) {
  for (const std::int32_t dim : kGqaHeadDims) {
    for (const std::int32_t group : {1, 4, 5, 7}) {
      GqaCall c({.kv_heads = 2, .head_dim = dim, .v_head_dim = dim});
      c.args.problem.heads = 2 * group;
      c.args.problem.window = group == 7 ? 64 : 0;
      c.args.problem.chunked = group == 7;
      for (const std::int64_t most : {1, 2, 3, 17, 40, 300}) {
        c.args.q.rows = 2 * most;
        c.args.max_request_rows = most;
        const std::int64_t bytes = gqa_workspace_bytes(c.args, 132);
        AttendArgs fewer = c.args;
        for (std::int64_t rows = 1; rows <= most; ++rows) {
          fewer.q.rows = 2 * rows;
          fewer.max_request_rows = rows;
          EXPECT_LE(gqa_shape(fewer, 132).bytes(), bytes) << dim << ", " << group << ", " << rows;
          EXPECT_LE(gqa_workspace_bytes(fewer, 132), bytes);
        }
      }
    }
  }
}

// Blocks of 8 to 64 M rows, and of 128; values of 256 dims in keys of 320.
TEST(GqaShape, OfLatents) {
  AttendArgs args;
  args.problem.kind = ProblemKind::dense_latent;
  args.problem.heads = 32;
  args.problem.nope = 256;
  args.problem.rope = 64;
  const ConstPoolView pool(nullptr, CacheLayout(LayoutKind::mla_bf16, {.nope = 256, .rope = 64}),
                           16, 1);
  args.main.pool.emplace(pool);
  for (const auto& [rows, block_m] : {std::pair{1, 32}, {2, 64}, {3, 128}, {8192, 128}}) {
    args.q.rows = args.max_request_rows = rows;
    const GqaShape shape = gqa_shape(args, 132);
    EXPECT_EQ(shape.block_m, block_m) << rows;
    EXPECT_EQ(shape.tile, 64);
    EXPECT_LE(shape.bytes(), kGqaPartialBytes);
  }
}

}  // namespace
}  // namespace lathe::cuda
