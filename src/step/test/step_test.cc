#include "step/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <new>
#include <random>
#include <string>

#include "base/integers.h"
#include "base/test_scale.h"

namespace {
std::atomic<long> allocations{0};
}

// Counts this program's allocations. Not inlined, because GCC would report malloc() and free()
// inside them as mismatched with new and delete.
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(n == 0 ? 1 : n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan plan_of(const AttentionProblem& problem, KeyUnit unit, std::int32_t page_size = 16) {
  Plan plan;
  plan.problem = problem;
  const LayoutKind kind =
      problem.kind == ProblemKind::window_compressed ? LayoutKind::v4_fp8 : LayoutKind::mla_bf16;
  plan.caches.push_back({CacheRole::main, CacheLayout(kind), page_size, 1});
  if (problem.two_sources()) {
    plan.caches.push_back(
        {CacheRole::compressed, CacheLayout(kind), page_size / 4, problem.compress_ratio});
  }
  for (Phase phase : enum_values<Phase>()) {
    Route route;
    route.kernel = std::string(name(phase));
    route.unit = phase == Phase::extend ? unit : KeyUnit::slot;
    plan.phase(phase).phase = phase;
    plan.phase(phase).routes = {route};
  }
  plan.table_multiple = 4;
  plan.max_rows = 64;
  plan.max_requests = 8;
  plan.context_length = 400;
  return plan;
}

AttentionProblem v32() {
  AttentionProblem p = deepseek_v32_problem();
  p.top_k = 8;
  return p;
}
AttentionProblem v4(std::int32_t ratio, std::int32_t top_k) {
  AttentionProblem p = deepseek_v4_problem(64, ratio, top_k);
  p.window = 10;
  return p;
}

const StepOptions kOptions{.main_pages = 300, .compressed_pages = 300, .index_multiple = 8};
const StepBound kBound{64, 8, 400, 3200};  // the largest random batch gathers 8 * 397 rows

std::vector<PageId> pages(std::initializer_list<int> list) {
  std::vector<PageId> out;
  for (int p : list) out.emplace_back(p);
  return out;
}
template <class Index>
std::vector<int> values(std::span<const Index> list) {
  std::vector<int> out;
  for (Index i : list) out.push_back(i.value);
  return out;
}

/// A batch with its page lists.
struct RandomBatch {
  std::vector<std::vector<PageId>> lists;
  std::vector<StepRequest> requests;
  StepBatch batch;

  RandomBatch(std::mt19937& rng, const Plan& plan) {
    batch.phase = static_cast<Phase>(rng() % enum_count<Phase>);
    const auto count = rng() % 9;
    lists.reserve(20);
    for (unsigned r = 0; r < count; ++r) {
      StepRequest q;
      q.rows = static_cast<std::int32_t>(rng() % (batch.phase == Phase::decode ? 2 : 9));
      q.cached = static_cast<std::int32_t>(rng() % (rng() % 2 == 0 ? 390 : 20));
      q.padding = rng() % 8 == 0;
      const auto make = [&](std::int32_t page_size, std::int32_t ratio) {
        std::vector<PageId> list;
        for (int i = 0; i <= (q.cached + q.rows) / ratio / page_size; ++i) {
          list.emplace_back(static_cast<int>(rng() % 300));
        }
        lists.push_back(list);
        return std::span<const PageId>(lists.back());
      };
      q.pages = make(plan.main().page_size, 1);
      if (plan.problem.two_sources()) {
        q.compressed_pages =
            make(plan.cache(CacheRole::compressed)->page_size, plan.problem.compress_ratio);
      }
      requests.push_back(q);
    }
    batch.requests = requests;
  }
};

using Snapshot = std::map<std::string, std::string>;
Snapshot snapshot(const StepView& v) {
  Snapshot s;
  for_each_array(v, [&](const char* field, auto span) {
    s[field] = std::string(reinterpret_cast<const char*>(span.data()), span.size_bytes());
  });
  for (const auto& [field, n] :
       {std::pair{"rows", v.rows}, std::pair{"requests", v.requests},
        std::pair{"max_rows", v.max_rows}, std::pair{"max_context", v.max_context},
        std::pair{"selecting_rows", v.selecting_rows}, std::pair{"window_width", v.window_width},
        std::pair{"width", v.page_table.width},
        std::pair{"entry_width", v.compressed_table.width}}) {
    s[field] = std::to_string(n);
  }
  s["route"] = v.route == nullptr ? "" : v.route->kernel;
  return s;
}

std::vector<AttentionProblem> problems() {
  return {deepseek_v3_problem(), v32(), v4(4, 6), v4(128, 0), v4(0, 0)};
}

TEST(Step, ReplanningGivesWhatAFreshStepGives) {
  std::mt19937 rng(test_seed(7));
  for (const AttentionProblem& problem : problems()) {
    for (KeyUnit unit : {KeyUnit::slot, KeyUnit::ragged_row}) {
      for (bool fixed : {false, true}) {
        const Plan plan = plan_of(problem, unit);
        StepOptions options = kOptions;
        options.fixed_strides = fixed;
        auto reused = Step::make(plan, options, kBound);
        ASSERT_TRUE(reused.ok()) << reused.error().message();
        std::map<std::string, const void*> addresses;
        for (int i = 0; i < 60 * test_scale(); ++i) {
          const RandomBatch b(rng, plan);
          reused->poison();
          const long before = allocations.load();
          const auto done = reused->plan(b.batch);
          EXPECT_EQ(allocations.load(), before) << "re-planning allocated";
          auto fresh = Step::make(plan, options, kBound);
          ASSERT_EQ(done.ok(), fresh->plan(b.batch).ok());
          ASSERT_TRUE(done.ok()) << done.error().message();
          ASSERT_EQ(snapshot(reused->view()), snapshot(fresh->view()));
          for_each_array(reused->view(), [&](const char* field, auto span) {
            if (span.empty()) return;
            const auto known = addresses.emplace(field, span.data()).first;
            EXPECT_EQ(known->second, span.data()) << field << " moved";
          });
          if (fixed) {
            EXPECT_EQ(reused->view().page_table.width, 28);
          }
        }
      }
    }
  }
}

// Tables are copied in every step. A plan for a long context must not make them wide for batches of
// short requests.
TEST(Step, FixedTablesAreAsWideAsThePaddedContext) {
  EXPECT_EQ(padded_context(0), 1024);
  EXPECT_EQ(padded_context(1024), 1024);
  EXPECT_EQ(padded_context(1025), 2048);
  EXPECT_EQ(padded_context(1 << 20), 1 << 20);
  const Plan plan = plan_of(v4(4, 6), KeyUnit::slot);
  StepOptions options = kOptions;
  options.fixed_strides = true;
  const std::int64_t main_page = plan.main().page_size;
  const std::int64_t entries_page = plan.cache(CacheRole::compressed)->page_size;
  const std::int64_t bound = 5000;
  auto step = Step::make(plan, options, {.rows = 4, .requests = 2, .context = bound});
  ASSERT_TRUE(step.ok()) << step.error().message();
  const std::vector<PageId> pages(static_cast<std::size_t>(ceil_div(bound, main_page)), PageId(1));
  for (const auto& [cached, context] :
       {std::pair{0, 1024}, {1023, 1024}, {1024, 2048}, {2500, 4096}, {4999, 5000}}) {
    const StepRequest requests[] = {{pages, pages, 3, 1, false}, {pages, pages, cached, 1, false}};
    ASSERT_TRUE(step->plan({Phase::decode, requests}).ok());
    const StepView& v = step->view();
    EXPECT_EQ(v.page_table.width, round_up(ceil_div(context, main_page), plan.table_multiple));
    EXPECT_EQ(v.compressed_table.width,
              round_up(ceil_div(context / 4, entries_page), plan.table_multiple));
    EXPECT_EQ(v.page_table.at(1, cached / main_page), PageId(1));
  }
}

TEST(Step, RowsOfAnExtendBatch) {
  const Plan plan = plan_of(v32(), KeyUnit::ragged_row);
  auto step = Step::make(plan, kOptions, kBound);
  ASSERT_TRUE(step.ok());
  const auto a = pages({7}), b = pages({2});
  const StepRequest requests[] = {{a, {}, 7, 3, false}, {b, {}, 2, 2, false}};
  ASSERT_TRUE(step->plan({Phase::extend, requests}).ok());
  const StepView& v = step->view();
  EXPECT_EQ(values(v.positions), (std::vector<int>{7, 8, 9, 2, 3}));
  EXPECT_THAT(v.row_request, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(v.row_lens, ElementsAre(8, 9, 10, 3, 4));
  EXPECT_EQ(values(v.out_slots), (std::vector<int>{119, 120, 121, 34, 35}));
  EXPECT_THAT(v.q_indptr, ElementsAre(0, 3, 5));
  EXPECT_THAT(v.kv_lens, ElementsAre(10, 4));
  EXPECT_EQ(v.page_table.width, 4);
  EXPECT_EQ(v.page_table.at(0, 0), PageId(7));
  EXPECT_TRUE(v.page_table.at(1, 1).is_hole());
  // A row selects only if it has more than top_k = 8 keys.
  EXPECT_EQ(v.selecting_rows, 2);
}

// Groups of four tokens in pages of 16.
TEST(Step, TokensThatShareAnIndexKey) {
  AttentionProblem problem = v32();
  problem.index_pool = 4;
  const Plan plan = plan_of(problem, KeyUnit::slot);
  auto step = Step::make(plan, kOptions, kBound);
  ASSERT_TRUE(step.ok());
  const auto a = pages({7, 3}), b = pages({2});
  const StepRequest requests[] = {{a, {}, 14, 6, false}, {b, {}, 6, 2, false}};
  ASSERT_TRUE(step->plan({Phase::extend, requests}).ok());
  const StepView& v = step->view();
  EXPECT_THAT(v.row_lens, ElementsAre(15, 16, 17, 18, 19, 20, 7, 8));
  EXPECT_THAT(v.index_lens, ElementsAre(3, 4, 4, 4, 4, 5, 1, 2));
  // The last token of a group writes its key.
  EXPECT_EQ(values(v.compressed_out_slots),
            (std::vector<int>{-1, 7 * 4 + 3, -1, -1, -1, 3 * 4, -1, 2 * 4 + 1}));
  // A row selects only if it has more than 8 / 4 keys.
  EXPECT_EQ(v.selecting_rows, 6);
}

// A window of 128,000 tokens in 400 of context: its lists would need gigabytes.
TEST(Step, E13ListsOfWindowKeysAreNoWiderThanTheContext) {
  AttentionProblem problem = v4(4, 2);
  problem.window = 128000;
  const Plan plan = plan_of(problem, KeyUnit::slot);
  const std::vector<PageId> main(25, PageId(3)), entries(25, PageId(6));
  const StepRequest requests[] = {{main, entries, 399, 1, false}};
  StepOptions options = kOptions;
  for (const auto& [fixed, width] : {std::pair{false, 400}, std::pair{true, 128000}}) {
    options.fixed_strides = fixed;  // a GPU's step kernel writes whole windows
    auto step = Step::make(plan, options, kBound);
    ASSERT_TRUE(step.ok());
    ASSERT_TRUE(step->plan({Phase::decode, requests}).ok());
    EXPECT_EQ(step->view().window_width, width);
    EXPECT_THAT(step->view().window_lens, ElementsAre(400));
  }
}

TEST(Step, WindowAndCompressedEntries) {
  const Plan plan = plan_of(v4(4, 2), KeyUnit::ragged_row);
  auto step = Step::make(plan, kOptions, kBound);
  ASSERT_TRUE(step.ok());
  // Positions 14 .. 16: the window of 10 starts at 5, so page 0 (positions 0 .. 15) is needed.
  const auto main = pages({3, 8}), entries = pages({6});
  const StepRequest requests[] = {{main, entries, 14, 3, false}};
  ASSERT_TRUE(step->plan({Phase::extend, requests}).ok());
  const StepView& v = step->view();
  EXPECT_EQ(v.window_width, 16);
  EXPECT_THAT(v.window_lens, ElementsAre(10, 10, 10));
  EXPECT_EQ(v.window_slots[0], Slot(48 + 5));
  EXPECT_EQ(v.window_slots[9], Slot(48 + 14));
  EXPECT_TRUE(v.window_slots[10].is_hole());
  EXPECT_EQ(v.window_slots[2 * 16 + 9], Slot(8 * 16));
  EXPECT_THAT(v.compressed_lens, ElementsAre(3, 4, 4));
  EXPECT_EQ(values(v.compressed_out_slots), (std::vector<int>{-1, 6 * 4 + 3, -1}));
  EXPECT_EQ(v.selecting_rows, 3);
  // A page before the window may be freed.
  const auto slid = pages({-1, 8});
  const StepRequest later[] = {{slid, entries, 25, 1, false}};
  EXPECT_FALSE(step->plan({Phase::decode, later}).ok());  // 6 entries need 2 pages
  const auto more = pages({6, 9});
  const StepRequest fine[] = {{slid, more, 25, 1, false}};
  ASSERT_TRUE(step->plan({Phase::decode, fine}).ok());
  EXPECT_EQ(step->view().window_slots[0], Slot(8 * 16));
  const StepRequest early[] = {{slid, more, 24, 1, false}};
  EXPECT_EQ(step->plan({Phase::decode, early}).error().field, "requests[0].pages[0]");
}

TEST(Step, ShortV4RowsSeeNoEntry) {
  const Plan plan = plan_of(v4(4, 2), KeyUnit::slot);
  auto step = Step::make(plan, kOptions, kBound);
  const auto main = pages({3}), entries = pages({6});
  const StepRequest requests[] = {{main, entries, 0, 4, false}};
  ASSERT_TRUE(step->plan({Phase::extend, requests}).ok());
  EXPECT_THAT(step->view().compressed_lens, ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(step->view().selecting_rows, 0);
}

TEST(Step, PaddingRowsSeeAndWriteNothing) {
  const Plan plan = plan_of(deepseek_v3_problem(), KeyUnit::slot);
  auto step = Step::make(plan, kOptions, kBound);
  const auto a = pages({7});
  const StepRequest requests[] = {{a, {}, 4, 1, false}, {{}, {}, 0, 1, true}};
  ASSERT_TRUE(step->plan({Phase::decode, requests}).ok());
  const StepView& v = step->view();
  EXPECT_EQ(v.rows, 2);
  EXPECT_THAT(v.kv_lens, ElementsAre(5, 0));
  EXPECT_THAT(v.row_lens, ElementsAre(5, 0));
  EXPECT_TRUE(v.out_slots[1].is_hole());
}

TEST(Step, ExceededBoundsAreNamed) {
  const Plan plan = plan_of(v32(), KeyUnit::ragged_row);
  auto step = Step::make(plan, kOptions, {10, 2, 40, 50});
  ASSERT_TRUE(step.ok());
  const auto list = pages({1, 2, 3});
  const StepRequest r[] = {
      {list, {}, 30, 5, false}, {list, {}, 30, 5, false}, {list, {}, 0, 0, false}};
  const auto field = [&](Phase phase, std::span<const StepRequest> requests) {
    const auto done = step->plan({phase, requests});
    EXPECT_FALSE(done.ok());
    if (done.ok()) return std::string();
    EXPECT_EQ(done.error().code, ErrorCode::exhausted);
    EXPECT_EQ(step->view().rows, 0);
    return done.error().field;
  };
  EXPECT_EQ(field(Phase::extend, r), "requests");
  EXPECT_TRUE(step->plan({Phase::verify, std::span(r).first(2)}).ok());
  const StepRequest wide[] = {{list, {}, 0, 11, false}};
  EXPECT_EQ(field(Phase::verify, wide), "rows");
  const StepRequest lengthy[] = {{list, {}, 40, 1, false}};
  EXPECT_EQ(field(Phase::decode, lengthy), "requests[0] context");
}

// Grouped queries gather whole requests: 70 keys exceed 50 rows. Latents are gathered tile by tile.
TEST(Step, OnlyGroupedQueriesMustFitTheCompactBuffer) {
  const auto list = pages({1, 2, 3});
  const StepRequest r[] = {{list, {}, 30, 5, false}, {list, {}, 30, 5, false}};
  for (const AttentionProblem& problem : {v32(), deepseek_v3_problem()}) {
    const Plan plan = plan_of(problem, KeyUnit::ragged_row);
    auto step = Step::make(plan, kOptions, {10, 2, 40, 50});
    EXPECT_TRUE(step->plan({Phase::extend, r}).ok());
  }
  Plan plan = plan_of(deepseek_v3_problem(), KeyUnit::ragged_row);
  plan.problem = gqa_problem();
  auto step = Step::make(plan, kOptions, {10, 2, 40, 50});
  EXPECT_EQ(step->plan({Phase::extend, r}).error().field, "gather rows");
}

TEST(Step, WrongBatchesAreErrors) {
  Plan plan = plan_of(v32(), KeyUnit::slot);
  plan.phase(Phase::verify).routes.clear();
  auto step = Step::make(plan, kOptions, kBound);
  const auto list = pages({1, 300, -1});
  const auto error = [&](Phase phase, StepRequest q) {
    const auto done = step->plan({phase, std::span(&q, 1)});
    return done.ok() ? std::string() : done.error().message();
  };
  EXPECT_THAT(error(Phase::decode, {list, {}, 3, 2, false}), HasSubstr("requests[0].rows"));
  EXPECT_THAT(error(Phase::verify, {list, {}, 3, 2, false}), HasSubstr("phase"));
  EXPECT_THAT(error(Phase::extend, {list, {}, 16, 1, false}), HasSubstr("requests[0].pages[1]"));
  EXPECT_THAT(error(Phase::extend, {list, {}, 48, 1, false}), HasSubstr("4 pages"));
  EXPECT_THAT(error(Phase::extend, {list, {}, -1, 1, false}), HasSubstr("0 or more"));
  EXPECT_EQ(error(Phase::extend, {list, {}, 16, 0, false}), "");
  EXPECT_TRUE(step->plan({}).ok());
  EXPECT_EQ(step->view().rows, 0);
  EXPECT_FALSE(Step::make(plan, {}, kBound).ok());  // no pages
}

// Grouped queries with a window: pages before the window may be freed, the others may not.
TEST(Step, AWindowOfGroupedQueriesDoesWithoutItsOldPages) {
  AttentionProblem problem = gqa_problem();
  problem.window = 20;
  for (const KeyUnit unit : {KeyUnit::slot, KeyUnit::ragged_row}) {
    const Plan plan = plan_of(problem, unit);
    auto step = Step::make(plan, kOptions, kBound);
    ASSERT_TRUE(step.ok());
    // Rows at 60 to 62 read from position 41 on, which is on page 2 (16 tokens per page).
    const auto list = pages({-1, -1, 7, 9});
    const StepRequest q{list, {}, 60, 3};
    ASSERT_TRUE(step->plan({Phase::extend, std::span(&q, 1)}).ok());
    const StepView& v = step->view();
    EXPECT_EQ(v.page_table.at(0, 1), PageId());
    EXPECT_EQ(v.page_table.at(0, 2), PageId(7));
    EXPECT_THAT(values(v.out_slots), ElementsAre(9 * 16 + 12, 9 * 16 + 13, 9 * 16 + 14));
    EXPECT_THAT(std::vector(v.row_lens.begin(), v.row_lens.end()), ElementsAre(61, 62, 63));
    const StepRequest earlier{list, {}, 50, 3};  // reads from position 31 on
    const auto refused = step->plan({Phase::extend, std::span(&earlier, 1)});
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().field, HasSubstr("requests[0].pages[1]"));
    // Pages before the window are not read, but they go into the table, so their ids are checked.
    const auto strays = pages({-1, 300, 7, 9});
    const StepRequest stray{strays, {}, 60, 3};
    const auto unknown = step->plan({Phase::extend, std::span(&stray, 1)});
    ASSERT_FALSE(unknown.ok());
    EXPECT_THAT(unknown.error().message(), HasSubstr("requests[0].pages[1]: wanted -1 or a page"));
  }
}

// Chunks of 20: rows from 60 on read from there, rows from 59 on from position 40 on.
TEST(Step, ChunksDoWithoutThePagesBeforeThem) {
  AttentionProblem problem = gqa_problem();
  problem.window = 20;
  problem.chunked = true;
  const Plan plan = plan_of(problem, KeyUnit::slot);
  auto step = Step::make(plan, kOptions, kBound);
  ASSERT_TRUE(step.ok());
  const auto list = pages({-1, -1, -1, 9});
  const StepRequest q{list, {}, 60, 3}, earlier{list, {}, 59, 3};
  ASSERT_TRUE(step->plan({Phase::extend, std::span(&q, 1)}).ok());
  const auto refused = step->plan({Phase::extend, std::span(&earlier, 1)});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().field, HasSubstr("requests[0].pages[2]"));
}

TEST(Step, AStateGoesFromSlotToSlot) {
  const Plan plan = plan_of(v32(), KeyUnit::slot);
  StepOptions options = kOptions;
  options.state = {32, 10};
  auto step = Step::make(plan, options, kBound);
  ASSERT_TRUE(step.ok());
  const auto list = pages({0, 1, 2, 3, 4, 5, 6});
  const auto slots = pages({-1, 5, 6});
  StepRequest first{list, {}, 0, 70};
  first.state_slots = slots;
  StepRequest next{list, {}, 70, 2};
  next.state_slots = slots;
  next.state_before = PageId(4);
  const std::vector<StepRequest> requests{first, next};
  const StepBound wide{100, 8, 400, 3200};
  step = Step::make(plan, options, wide);
  ASSERT_TRUE(step->plan({Phase::extend, requests}).ok());
  const StepView& v = step->view();
  EXPECT_EQ(v.state_tokens, 32);
  EXPECT_THAT(values(v.state_before), ElementsAre(-1, 4));
  EXPECT_EQ(v.state_table.at(0, 0), PageId());
  EXPECT_EQ(v.state_table.at(0, 1), PageId(5));
  EXPECT_EQ(v.state_table.at(1, 2), PageId(6));
  next.state_before = PageId(10);
  EXPECT_THAT(step->plan({Phase::extend, std::span(&next, 1)}).error().field,
              HasSubstr("state_before"));
  next.state_before = PageId(4);
  const auto short_list = pages({-1, 5, -1});
  next.state_slots = short_list;
  EXPECT_THAT(step->plan({Phase::extend, std::span(&next, 1)}).error().field,
              HasSubstr("state_slots[2]"));
}

TEST(Step, BoundOfAPlan) {
  Plan plan = plan_of(v32(), KeyUnit::ragged_row);
  EXPECT_EQ(step_bound(plan).gather_rows, 0);
  plan.phase(Phase::extend).routes[0].adapter = AdapterUse{.name = "gather", .out_bytes = 1152};
  plan.budgets.push_back({BudgetKind::gather, 1152 * 1000, 0});
  EXPECT_EQ(step_bound(plan).gather_rows, 1000);
  EXPECT_EQ(step_bound(plan_of(v32(), KeyUnit::slot)).gather_rows, 0);
  auto step = Step::make(plan, kOptions);
  ASSERT_TRUE(step.ok());
  EXPECT_GE(step->bytes(),
            5 * 4 * step->bound().rows);  // five arrays of 4 bytes per row, and tables
}

}  // namespace
}  // namespace lathe
