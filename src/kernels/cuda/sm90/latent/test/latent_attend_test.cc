// Tests what latent attention rejects before it needs a device, and how calls are scheduled.
#include "kernels/cuda/sm90/latent/latent_attend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"

namespace lathe::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A decode step of two requests by page table. The arrays are never read.
struct LatentArgs {
  alignas(16) std::array<std::byte, 64> bytes{};
  std::vector<std::int32_t> indptr = {0, 1, 2}, lens = {5, 70}, list;
  std::vector<PageId> table = std::vector<PageId>(4);
  Scratch scratch{kDeviceMemory};
  AttendArgs args;

  explicit LatentArgs(LayoutKind layout = LayoutKind::mla_fp8_block) {
    const bool v4 = layout == LayoutKind::v4_fp8;
    AttentionProblem& p = args.problem;
    p = v4 ? deepseek_v4_problem(16) : deepseek_v3_problem(16);
    p.compress_ratio = p.window = 0;
    p.sink = false;
    args.q = {bytes.data(), DType::bf16, 2, 16 * p.qk_dim(), 16 * p.qk_dim()};
    args.out = {bytes.data(), DType::bf16, 2, 16 * 512, 16 * 512};
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.main.pool.emplace(bytes.data(), CacheLayout(layout), 64, 8);
    args.main.page_table = table;
    args.main.table_width = 2;
    args.execution.scratch = &scratch;
  }
  std::string refusal() const {
    const auto done = attend_latent_on_device(args);
    return done ? "ran" : done.error().message();
  }
};

template <class Change>
std::string latent_refusal(Change change, LayoutKind layout = LayoutKind::mla_fp8_block) {
  LatentArgs c(layout);
  change(c.args);
  return c.refusal();
}

TEST(AttendOnDevice, RefusesWhatTheKernelsDoNotTake) {
  EXPECT_EQ(latent_refusal([](AttendArgs& a) { a.q.dtype = DType::f32; }),
            "q.dtype: wanted bf16, or e4m3 for pages of mla_fp8, got f32");
  EXPECT_EQ(latent_refusal([](AttendArgs& a) { a.out.dtype = DType::f32; }),
            "out.dtype: wanted bf16, got f32");
  EXPECT_THAT(latent_refusal([](AttendArgs& a) { a.q.data += 2; }),
              HasSubstr("q: wanted an address that is a multiple of 16"));
  EXPECT_THAT(latent_refusal([](AttendArgs& a) { a.q.row_stride += 1; }),
              HasSubstr("q: wanted a stride that is a multiple of 16 bytes"));
  EXPECT_EQ(latent_refusal([](AttendArgs& a) {
              a.problem.heads = 129;
              a.q.cols = a.q.row_stride = 129 * 576;
              a.out.cols = a.out.row_stride = 129 * 512;
            }),
            "problem.heads: wanted 1 to 128, got 129");
  const auto pool = [](AttendArgs& a, const CacheLayout& layout) {
    a.main.pool.emplace(a.main.pool->data, layout, 64, 8);
  };
  EXPECT_EQ(latent_refusal([&](AttendArgs& a) { pool(a, CacheLayout(LayoutKind::mla_fp4)); }),
            "main.pool.layout: wanted mla_bf16, mla_fp8, mla_fp8_block, got mla_fp4");
  EXPECT_EQ(latent_refusal([](AttendArgs& a) { a.q.rows = a.out.rows = 3; }),
            "max_request_rows: wanted at least 2 (3 rows over 2 requests), got 1");
  EXPECT_THAT(latent_refusal([](AttendArgs& a) { a.problem.window = 128; }, LayoutKind::v4_fp8),
              HasSubstr("problem.window: wanted 0, or an index list"));
  for (const float scale : {1.4e-45f, 2e38f}) {
    EXPECT_THAT(
        latent_refusal([&](AttendArgs& a) { a.main.key_scale = scale; }, LayoutKind::mla_fp8),
        HasSubstr("main.key_scale: wanted a scale from 2^-100 to 2^60, got"));
  }
  EXPECT_EQ(latent_refusal(
                [](AttendArgs& a) {
                  a.main.key_scale = 0x1p40f;
                  a.problem.scale = 0x1p40f;
                },
                LayoutKind::mla_fp8),
            "problem.scale: wanted a scale from 2^-100 to 2^60, times key_scale and q_scale, got "
            "1099511627776 x 1099511627776 x 1");
  // A request's pages, or a row's list, may exceed the most keys of a work tile.
  const std::array<std::int32_t, 4> entries{};
  for (const bool paged : {true, false}) {
    EXPECT_EQ(latent_refusal(
                  [&](AttendArgs& a) {
                    a.problem.compress_ratio = 4;
                    a.extra = a.main;
                    a.extra.page_table = {};
                    a.extra.table_width = 0;
                    a.extra.indices = entries;
                    a.extra.index_width = 2;
                    if (!paged) a.main.page_table = {};
                    if (!paged) a.main.table_width = 0;
                  },
                  LayoutKind::v4_fp8),
              std::string("main.indices: wanted an index list, as extra has one, got ") +
                  (paged ? "a page table" : "none"));
  }
}

TEST(AttendLatent, RefusesListsThatAreTooSmall) {
  LatentArgs c;
  LatentSchedule schedule;
  schedule.cut = cut_latent({.rows = 2, .requests = 2, .keys = 128, .heads = 16});
  std::vector<std::byte> workspace(
      static_cast<std::size_t>(schedule.cut.workspace_bytes()));  // never read
  const auto refused = [&] {
    const auto done = attend_latent(c.args, {}, schedule, workspace, nullptr);
    return done ? "ran" : done.error().message();
  };
  EXPECT_THAT(refused(), HasSubstr("schedule.list.items: wanted 2 entries, got 0"));
  std::vector<WorkItem> items(2);
  schedule.list.items = items;
  EXPECT_THAT(refused(), HasSubstr("schedule.list.row_items: wanted 3 entries, got 0"));
  std::vector<std::int64_t> row_items(3), worker_items(3);
  schedule.list.row_items = row_items;
  EXPECT_THAT(refused(), HasSubstr("schedule.list.worker_items: wanted 3 entries, got 0"));
  schedule.list.worker_items = worker_items;
  schedule.cut.tail = schedule.cut.all;
  EXPECT_THAT(refused(), HasSubstr("schedule.tail.items: wanted 2 entries, got 0"));
  const auto planned = plan_latent(c.args, schedule, nullptr);
  EXPECT_EQ(planned.error().field, "schedule.work_tile_keys");
  std::vector<std::int32_t> work_tile_keys(4);
  schedule.work_tile_keys = work_tile_keys;
  EXPECT_EQ(plan_latent(c.args, schedule, nullptr).error().field, "schedule.tail.items");
}

TEST(AttendLatent, RefusesArraysThatAreTooSmallToShareWork) {
  LatentArgs c;
  LatentSchedule schedule;
  schedule.cut = cut_latent({.rows = 2, .requests = 2, .keys = 128, .heads = 16, .dense = true});
  ASSERT_TRUE(schedule.cut.shared);
  const auto refused = [&] { return plan_latent(c.args, schedule, nullptr).error().field; };
  EXPECT_EQ(refused(), "schedule.list.items");
  std::vector<WorkItem> items(static_cast<std::size_t>(schedule.cut.all.items));
  schedule.list.items = items;
  EXPECT_EQ(refused(), "schedule.list.worker_items");
  std::vector<std::int64_t> worker_items(3);
  schedule.list.worker_items = worker_items;
  EXPECT_EQ(refused(), "schedule.split_tiles");
}

TEST(AttendOnDevice, NeedsScratchOfTheDevice) {
  LatentArgs c;
  c.args.execution.scratch = nullptr;
  EXPECT_EQ(c.refusal(), "execution.scratch: wanted scratch of device memory, got none");
  Scratch host;
  c.args.execution.scratch = &host;
  EXPECT_EQ(c.refusal(),
            "execution.scratch: wanted scratch of device memory, got scratch of the host");
  EXPECT_EQ(host.growths(), 0);
}

TEST(LatentCut, PartsStayWithinWhatThePlanBudgets) {
  for (const std::int64_t requests : {1, 3, 8, 64, 300, 4096}) {
    for (const std::int64_t keys : {1, 2048, 32768, 1 << 20}) {
      for (const std::int32_t heads : {1, 64, 128}) {
        for (const auto& [dense, fp8_pages] :
             {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
          const LatentCut cut = cut_latent({.rows = requests,
                                            .requests = requests,
                                            .keys = keys,
                                            .heads = heads,
                                            .dense = dense,
                                            .fp8_pages = fp8_pages});
          EXPECT_LE(cut.workspace_bytes(), kLatentPartialBytes);
          EXPECT_EQ(cut.work_tiles(), requests);
          EXPECT_GE(cut.all.items, cut.all.work_tiles);
          EXPECT_GE(cut.tail.items, cut.tail.work_tiles);
          if (!cut.shared && !cut.all.cut() && !cut.tail.cut()) {
            EXPECT_EQ(cut.workspace_bytes(), 0);
          }
        }
      }
    }
  }
  // One long request occupies nearly all of the 132 SMs.
  EXPECT_GE(
      cut_latent({.requests = 1, .keys = 1 << 20, .heads = 64, .dense = true}).all.work_tile_items,
      128);
}

// Few requests get more, smaller M blocks while SMs are idle.
TEST(LatentCut, SmallBlocksWhereSmsWouldIdle) {
  LatentShape s{.rows = 1, .requests = 1, .keys = 2048, .heads = 64, .fp8_pages = true};
  LatentCut cut = cut_latent(s);
  EXPECT_EQ(cut.block_m, 16);
  EXPECT_EQ(cut.m_blocks, 4);
  EXPECT_GE(cut.all.work.workers * cut.m_blocks, 64);
  EXPECT_LE(cut.all.work.workers * cut.m_blocks, s.sms);
  s.min_block_m = 32;
  EXPECT_EQ(cut_latent(s).block_m, 32);
  s.min_block_m = 64;
  EXPECT_EQ(cut_latent(s).block_m, 64);
  s.min_block_m = 16;
  // Each M block has a single row.
  s.heads = 40;
  EXPECT_EQ(cut_latent(s).block_m, 64);
  s.heads = 96;
  EXPECT_LT(cut_latent(s).block_m, 64);
  s.heads = 64;
  for (const std::int64_t rows : {4, 16, 128, 4096}) {
    s.rows = s.requests = rows;
    EXPECT_EQ(cut_latent(s).block_m, 64) << rows;
  }
  // Rows of a request that are whole M blocks.
  s = {.rows = 4,
       .requests = 1,
       .request_rows = 4,
       .keys = 4096,
       .heads = 16,
       .dense = true,
       .fp8_pages = true};
  EXPECT_EQ(cut_latent(s).block_m, 16);
  EXPECT_EQ(cut_latent(s).m_blocks, 4);
}

// 18 tiles of keys over at most 8 blocks a request: three each where kernels support single tiles,
// four where tiles come in pairs.
TEST(LatentCut, SingleTilesWhereKernelsTakeThem) {
  LatentShape s{.rows = 8, .requests = 8, .keys = 1152, .heads = 128, .fp8_pages = true};
  const LatentCut cut = cut_latent(s);
  EXPECT_EQ(cut.block_m, 64);
  EXPECT_EQ(cut.all.work_tile_items, 6);
  EXPECT_EQ(cut.all.work.fixed_split, 192);
  s.fp8_pages = false;
  EXPECT_EQ(cut_latent(s).all.work.fixed_split, 256);
  s.fp8_pages = s.fp8 = true;
  EXPECT_EQ(cut_latent(s).all.work.fixed_split % 128, 0);
}

// 4096 rows are 31 waves of 132 SMs plus four rows, or 62 waves of pairs of blocks plus four rows.
TEST(LatentCut, LastRowsGoToAllSms) {
  for (const std::int32_t heads : {16, 64, 128}) {
    LatentShape s{.rows = 4096, .requests = 1, .request_rows = 4096, .keys = 2048, .heads = heads};
    const LatentCut cut = cut_latent(s);
    EXPECT_EQ(cut.all.work_tiles, 4092);
    EXPECT_FALSE(cut.all.cut());
    EXPECT_EQ(cut.tail.work_tiles, 4);
    EXPECT_GE(cut.tail.work_tile_items, 8);
    EXPECT_LE(cut.tail.work_tile_items, 16);
    // No tail: whole waves, fewer rows than SMs, and requests.
    s.rows = 31 * 132;
    EXPECT_EQ(cut_latent(s).tail.work_tiles, 0);
    s.rows = 60;
    EXPECT_EQ(cut_latent(s).tail.work_tiles, 0);
    s.dense = true;
    s.requests = 4096;
    s.request_rows = 1;
    EXPECT_EQ(cut_latent(s).tail.work_tiles, 0);
  }
}

// A prefill of 4096 rows of 2048 keys, with pools of `pages` pages.
LatentShape extend_of(std::int64_t pages, std::int32_t heads = 64) {
  return {.rows = 4096,
          .requests = 1,
          .request_rows = 4096,
          .keys = 2048,
          .heads = heads,
          .main = {pages, 64, 576, 2048}};
}

TEST(LatentCut, StagesWhatManyRowsList) {
  const LatentCut all = cut_latent(extend_of(512));
  EXPECT_EQ(all.main.room, 512);
  EXPECT_EQ(all.extra.room, 0);
  // Lists of 32 MiB, and 512 pages of 64 rows of 1152 bytes.
  EXPECT_GE(all.workspace_bytes(), 4096 * 2048 * 4 + 512 * 64 * 1152);
  // Of a million tokens, as many as the plan budgets.
  const LatentCut some = cut_latent(extend_of(16384));
  EXPECT_GT(some.main.room, 1000);
  EXPECT_LT(some.main.room, 16384);
  EXPECT_LE(some.workspace_bytes(), kLatentPartialBytes);
  EXPECT_GT(some.workspace_bytes(), kLatentPartialBytes - 64 * 1152);
}

TEST(LatentCut, StagesNothingWhereItDoesNotPay) {
  EXPECT_EQ(cut_latent(extend_of(0)).main.room, 0);
  // Lists that may point to a million tokens.
  LatentShape many = extend_of(16384);
  many.tokens = 1 << 20;
  EXPECT_EQ(cut_latent(many).main.room, 0);
  EXPECT_EQ(cut_latent(extend_of(512, 16)).main.room, 0);
  LatentShape decode = extend_of(512);
  decode.rows = decode.requests = 128;
  decode.request_rows = 1;
  EXPECT_EQ(cut_latent(decode).main.room, 0);
  // More pages than one block can distinguish.
  LatentShape pages = extend_of(1 << 20);
  pages.main.page_tokens = 1;
  pages.tokens = 8192;
  EXPECT_EQ(cut_latent(pages).main.room, 0);
}

TEST(LatentCut, TwoPoolsShareTheStage) {
  LatentShape s = extend_of(4096, 128);
  s.keys = 640;
  s.tokens = 32768;
  s.main = {4096, 64, 512, 128};
  s.extra = {2048, 64, 512, 512};
  const LatentCut cut = cut_latent(s);
  EXPECT_GT(cut.main.room, 500);
  EXPECT_GT(cut.extra.room, 500);
  EXPECT_LE(cut.workspace_bytes(), kLatentPartialBytes);
  // Page sizes that are not multiples of the arrays' alignment.
  auto* base = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
  s.main.row_elems = s.extra.row_elems = 576;
  for (const std::int64_t tokens : {1, 3, 5, 7, 61}) {
    s.main.page_tokens = s.extra.page_tokens = tokens;
    s.main.pages = s.extra.pages = 101;
    LatentCut odd = cut;
    stage_latent(s, odd);
    EXPECT_EQ(odd.main.room, 101);
    const LatentStaging staging(odd, base);
    const std::byte* end = staging.arrays.of[1].rows + odd.extra.room * tokens * 576 * 2;
    EXPECT_LE(end - base, odd.workspace_bytes());
  }
}

TEST(CheckStaged, OtherPoolsThanTheCuts) {
  LatentCut cut;
  cut.main = {{8, 64, 576, 128}, 2, 8};
  AttendArgs args;
  std::byte nothing{};
  args.q.rows = 2;
  args.main.index_width = 128;
  const CacheLayout layout(LayoutKind::mla_fp8_block);
  args.main.pool.emplace(&nothing, layout, 64, 8);
  EXPECT_TRUE(check_staged(args, cut));
  args.main.pool.emplace(&nothing, layout, 64, 9);
  EXPECT_EQ(check_staged(args, cut).error().message(),
            "main.pool: wanted fp8 as schedule.cut stages, 8 pages of 64 tokens, lists of 128, "
            "got 9 pages of 64 tokens, lists of 128");
  // A second source that the cut does not know would be read as if it were staged.
  args.main.pool.emplace(&nothing, layout, 64, 8);
  args.problem.kind = ProblemKind::window_compressed;
  args.problem.compress_ratio = 4;
  args.extra = args.main;
  EXPECT_EQ(check_staged(args, cut).error().message(),
            "extra.pool: wanted fp8 as schedule.cut stages, none, "
            "got 8 pages of 64 tokens, lists of 128");
  // A second source without pages lists nothing, and is fine.
  args.extra.pool.emplace(&nothing, layout, 64, 0);
  EXPECT_TRUE(check_staged(args, cut));
  args.extra = {};
  EXPECT_TRUE(check_staged(args, cut));
  args.main.pool.reset();
  EXPECT_THAT(check_staged(args, cut).error().message(), HasSubstr("got none"));
  args.q.rows = 3;
  EXPECT_EQ(check_staged(args, cut).error().message(),
            "q.rows: wanted 2, as schedule.cut stages, got 3");
}

}  // namespace
}  // namespace lathe::cuda
