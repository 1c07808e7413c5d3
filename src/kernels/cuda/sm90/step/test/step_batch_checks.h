// Checks step_rows() against Step for every kind of problem: captured once and replayed over
// batches of several sizes. A Device is that of step_checks.h and has also
//   capture(work)  records what `work` launches, to be run any number of times
#pragma once

#include <fmt/format.h>

#include "attn/problem_name.h"
#include "kernels/cuda/sm90/step/test/step_checks.h"
#include "step/step.h"

namespace lathe::cuda {

/// A plan for steps, with no kernels chosen.
inline Plan plan_for_steps(const AttentionProblem& problem) {
  Plan plan;
  plan.problem = problem;
  const CacheLayout layout(problem.kind == ProblemKind::window_compressed
                               ? LayoutKind::v4_fp8
                               : LayoutKind::mla_fp8_block);
  plan.caches.push_back({CacheRole::main, layout, 16, 1});
  if (problem.two_sources()) {
    plan.caches.push_back({CacheRole::compressed, layout, 4, problem.compress_ratio});
  }
  for (Phase phase : enum_values<Phase>()) {
    Route route;
    route.kernel = std::string(name(phase));
    route.unit = KeyUnit::slot;
    plan.phase(phase).phase = phase;
    plan.phase(phase).routes = {route};
  }
  plan.table_multiple = 4;
  return plan;
}

inline std::vector<AttentionProblem> problems_for_steps() {
  const auto v4 = [](std::int32_t ratio, std::int32_t top_k) {
    AttentionProblem p = deepseek_v4_problem(64, ratio, top_k);
    p.window = 50;
    return p;
  };
  AttentionProblem v32 = deepseek_v32_problem();
  v32.top_k = 50;
  return {deepseek_v3_problem(), v32, v4(4, 20), v4(128, 0), v4(0, 0)};
}

/// A batch of at most `bound`, and everything that a step computes from it, on a device.
template <class Device>
struct StepThere {
  template <class T>
  using Array = ArrayOf<Device, T>;
  static constexpr std::int64_t kPagesEach = 40;

  StepThere(Device& d, const Plan& step_plan, const StepOptions& options, const StepBound& room)
      : plan(step_plan),
        bound(room),
        window_width((plan.problem.window + options.index_multiple - 1) / options.index_multiple *
                     options.index_multiple),
        width(columns(bound.context, 16)),
        entry_width(two() ? columns(bound.context / plan.problem.compress_ratio, 4) : 0),
        pool{16, options.main_pages},
        entry_pool{4, options.compressed_pages},
        indptr(make<std::int64_t>(d, bound.requests + 1)),
        entry_list_indptr(make<std::int64_t>(d, bound.requests + 1)),
        pages(make<PageId>(d, bound.requests * kPagesEach)),
        entry_pages(make<PageId>(d, bound.requests * kPagesEach)),
        cached(make<std::int32_t>(d, bound.requests)),
        brought(make<std::int32_t>(d, bound.requests)),
        padding(make<std::uint8_t>(d, bound.requests)),
        q_indptr(make<std::int32_t>(d, bound.requests + 1)),
        kv_lens(make<std::int32_t>(d, bound.requests)),
        table(make<PageId>(d, bound.requests * width)),
        positions(make<LocalPos>(d, bound.rows)),
        row_request(make<std::int32_t>(d, bound.rows)),
        row_lens(make<std::int32_t>(d, bound.rows)),
        out_slots(make<Slot>(d, bound.rows)),
        attend_lens(make<std::int32_t>(d, bound.rows)),
        identity(make<std::uint8_t>(d, sparse() ? bound.rows : 0)),
        index_lens(make<std::int32_t>(d, sparse() ? bound.rows : 0)),
        counts(make<StepCounts>(d, 1)),
        window_lens(make<std::int32_t>(d, windowed() ? bound.rows : 0)),
        window_slots(make<Slot>(d, windowed() ? bound.rows * window_width : 0)),
        compressed_lens(make<std::int32_t>(d, two() ? bound.rows : 0)),
        compressed_out_slots(make<Slot>(d, two() ? bound.rows : 0)),
        compressed_table(make<PageId>(d, bound.requests * entry_width)),
        workspace(make<std::int64_t>(d, scan_workspace(bound.requests))) {}

  bool windowed() const { return plan.problem.kind == ProblemKind::window_compressed; }
  bool two() const { return plan.problem.two_sources(); }
  bool sparse() const { return plan.problem.sparse(); }

  StepRowsInput in() const {
    StepRowsInput in;
    in.lists = {indptr.span(), pages.span()};
    in.pool = pool;
    in.cached = cached.span();
    in.rows = brought.span();
    in.padding = padding.span();
    in.top_k = plan.problem.top_k;
    in.window = windowed() ? plan.problem.window : 0;
    if (!two()) return in;
    in.ratio = plan.problem.compress_ratio;
    in.compressed_lists = {entry_list_indptr.span(), entry_pages.span()};
    in.compressed_pool = entry_pool;
    return in;
  }
  StepRowsOutput out() const {
    StepRowsOutput out;
    out.q_indptr = q_indptr.span();
    out.kv_lens = kv_lens.span();
    out.page_table = {table.span().data(), bound.requests, width};
    out.positions = positions.span();
    out.row_request = row_request.span();
    out.row_lens = row_lens.span();
    out.out_slots = out_slots.span();
    out.attend_lens = attend_lens.span();
    out.identity = identity.span();
    out.index_lens = index_lens.span();
    out.counts = counts.span().data();
    out.window_lens = window_lens.span();
    if (windowed()) out.window_slots = {window_slots.span().data(), bound.rows, window_width};
    out.compressed_lens = compressed_lens.span();
    out.compressed_out_slots = compressed_out_slots.span();
    if (two()) out.compressed_table = {compressed_table.span().data(), bound.requests, entry_width};
    return out;
  }

  /// The capture's capacity beyond the batch is filled with requests without rows and pages.
  void write(const std::vector<StepRequest>& batch) {
    std::vector<std::int64_t> starts = {0}, entry_starts = {0};
    std::vector<PageId> all, all_entries;
    std::vector<std::int32_t> host_cached, host_rows;
    std::vector<std::uint8_t> host_padding;
    for (const StepRequest& q : batch) {
      all.insert(all.end(), q.pages.begin(), q.pages.end());
      all_entries.insert(all_entries.end(), q.compressed_pages.begin(), q.compressed_pages.end());
      starts.push_back(std::ssize(all));
      entry_starts.push_back(std::ssize(all_entries));
      host_cached.push_back(q.cached);
      host_rows.push_back(q.rows);
      host_padding.push_back(q.padding ? 1 : 0);
    }
    const std::int64_t n = bound.requests;
    indptr.write(filled(starts, n + 1, starts.back()));
    entry_list_indptr.write(filled(entry_starts, n + 1, entry_starts.back()));
    pages.write(filled(all, n * kPagesEach, PageId(1)));
    entry_pages.write(filled(all_entries, n * kPagesEach, PageId(1)));
    cached.write(filled(host_cached, n, 0));
    brought.write(filled(host_rows, n, 0));
    padding.write(filled(host_padding, n, std::uint8_t{0}));
  }

  void check_rows(const StepView& v) const {
    const std::int64_t rows = bound.rows;
    const auto total = static_cast<std::int32_t>(v.rows);
    EXPECT_EQ(q_indptr.read(), filled(v.q_indptr, bound.requests + 1, total));
    EXPECT_EQ(kv_lens.read(), filled(v.kv_lens, bound.requests, 0));
    check_table(table.read(), v.page_table, width);
    EXPECT_EQ(positions.read(), filled(v.positions, rows, LocalPos()));
    EXPECT_EQ(row_request.read(), filled(v.row_request, rows, -1));
    EXPECT_EQ(row_lens.read(), filled(v.row_lens, rows, 0));
    EXPECT_EQ(out_slots.read(), filled(v.out_slots, rows, Slot()));
    const std::vector<std::int32_t> attended = keys_attended(v);
    EXPECT_EQ(attend_lens.read(), filled(std::span(attended), rows, 0));
    const StepCounts got = counts.read().front();
    EXPECT_EQ(got.rows, v.rows);
    EXPECT_EQ(got.max_rows, v.max_rows);
    EXPECT_EQ(got.max_context, v.max_context);
    EXPECT_EQ(got.selecting_rows, v.selecting_rows);
    if (sparse()) {
      std::vector<std::uint8_t> all_selected;
      for (const std::int32_t keys : v.index_lens) {
        all_selected.push_back(keys <= plan.problem.top_k ? 1 : 0);
      }
      EXPECT_EQ(identity.read(), filled(std::span(all_selected), rows, std::uint8_t{1}));
      EXPECT_EQ(index_lens.read(), filled(v.index_lens, rows, 0));
    }
    if (windowed()) {
      ASSERT_EQ(v.window_width, window_width);
      EXPECT_EQ(window_lens.read(), filled(v.window_lens, rows, 0));
      EXPECT_EQ(window_slots.read(), filled(v.window_slots, rows * window_width, Slot()));
    }
    if (!two()) return;
    EXPECT_EQ(compressed_lens.read(), filled(v.compressed_lens, rows, 0));
    EXPECT_EQ(compressed_out_slots.read(), filled(v.compressed_out_slots, rows, Slot()));
    check_table(compressed_table.read(), v.compressed_table, entry_width);
  }

  /// Keys that attention reads for each row: of both sources, after selection.
  std::vector<std::int32_t> keys_attended(const StepView& v) const {
    std::vector<std::int32_t> out;
    for (std::size_t t = 0; t < v.row_lens.size(); ++t) {
      std::int32_t keys = two() ? v.compressed_lens[t] : windowed() ? 0 : v.row_lens[t];
      if (sparse()) keys = std::min(keys, plan.problem.top_k);
      out.push_back(keys + (windowed() ? v.window_lens[t] : 0));
    }
    return out;
  }

 private:
  template <class T>
  static Array<T> make(Device& d, std::int64_t n) {
    return d.array(std::vector<T>(static_cast<std::size_t>(n)));
  }
  static std::int64_t columns(std::int64_t tokens, std::int64_t page_size) {
    return ((tokens + page_size - 1) / page_size + 3) / 4 * 4;
  }
  void check_table(const std::vector<PageId>& got, const PageTableView& wanted,
                   std::int64_t columns_each) const {
    ASSERT_EQ(wanted.requests == 0 ? columns_each : wanted.width, columns_each);
    const std::span<const PageId> entries(wanted.data,
                                          static_cast<std::size_t>(wanted.requests * wanted.width));
    EXPECT_EQ(got, filled(entries, bound.requests * columns_each, PageId()));
  }

  const Plan& plan;
  StepBound bound;
  std::int64_t window_width, width, entry_width;
  PoolShape pool, entry_pool;
  Array<std::int64_t> indptr, entry_list_indptr;
  Array<PageId> pages, entry_pages;
  Array<std::int32_t> cached, brought;
  Array<std::uint8_t> padding;
  Array<std::int32_t> q_indptr, kv_lens;
  Array<PageId> table;
  Array<LocalPos> positions;
  Array<std::int32_t> row_request, row_lens;
  Array<Slot> out_slots;
  Array<std::int32_t> attend_lens;
  Array<std::uint8_t> identity;
  Array<std::int32_t> index_lens;
  Array<StepCounts> counts;
  Array<std::int32_t> window_lens;
  Array<Slot> window_slots;
  Array<std::int32_t> compressed_lens;
  Array<Slot> compressed_out_slots;
  Array<PageId> compressed_table;

 public:
  Array<std::int64_t> workspace;
};

/// A batch that owns its page lists, which have a few pages more than the keys need.
struct RandomBatch {
  std::vector<std::vector<PageId>> lists;
  std::vector<StepRequest> requests;

  RandomBatch(std::mt19937& rng, const Plan& plan, const StepOptions& options, std::int64_t count,
              std::int64_t context) {
    const std::int32_t most_rows = context < 50 ? 2 : 6;
    lists.reserve(static_cast<std::size_t>(2 * count));
    const auto list = [&](std::int64_t entries, std::int64_t page_size, std::int64_t pool) {
      std::vector<PageId> own;
      for (std::int64_t i = (entries + page_size - 1) / page_size + below(rng, 3); i > 0; --i) {
        own.emplace_back(below(rng, pool));
      }
      lists.push_back(std::move(own));
      return std::span<const PageId>(lists.back());
    };
    for (std::int64_t r = 0; r < count; ++r) {
      StepRequest q;
      q.rows = below(rng, most_rows);
      q.cached = below(rng, below(rng, 2) == 0 ? context - most_rows : context / 5);
      q.padding = below(rng, 8) == 0;
      q.pages = list(q.cached + q.rows, 16, options.main_pages);
      if (plan.problem.two_sources()) {
        q.compressed_pages =
            list((q.cached + q.rows) / plan.problem.compress_ratio, 4, options.compressed_pages);
      }
      requests.push_back(q);
    }
  }
};

/// Lengths that the CPU rejects: their requests have no keys, and their rows no position.
template <class Device>
void check_hostile_lengths(Device& device) {
  using Ints = std::vector<std::int32_t>;
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto indptr = device.array(std::vector<std::int64_t>{0, 2, 4, 6});
  const auto pages = device.array(
      std::vector<PageId>{PageId(1), PageId(2), PageId(3), PageId(4), PageId(5), PageId(6)});
  const auto cached = device.array(Ints{kMost - 2, -5, 7});
  const auto brought = device.array(Ints{6, 3, 1});
  const auto filled_with_9 = [&] { return device.array(Ints(10, 9)); };
  auto positions = device.array(std::vector<LocalPos>(10, LocalPos(9)));
  auto slots = device.array(std::vector<Slot>(10, Slot(9)));
  auto table = device.array(std::vector<PageId>(6, PageId(9)));
  auto q_indptr = device.array(Ints(4, 9)), kv_lens = device.array(Ints(3, 9));
  auto row_request = filled_with_9(), row_lens = filled_with_9(), attend_lens = filled_with_9();
  auto workspace = device.array(std::vector<std::int64_t>(4));
  StepRowsInput in;
  in.lists = {indptr.span(), pages.span()};
  in.pool = {16, 9};
  in.cached = cached.span();
  in.rows = brought.span();
  StepRowsOutput out;
  out.q_indptr = q_indptr.span();
  out.kv_lens = kv_lens.span();
  out.page_table = {table.span().data(), 3, 2};
  out.positions = positions.span();
  out.row_request = row_request.span();
  out.row_lens = row_lens.span();
  out.out_slots = slots.span();
  out.attend_lens = attend_lens.span();
  expect_ok(device.step_rows(in, out, workspace.span()));
  EXPECT_EQ(kv_lens.read(), (Ints{0, 0, 8}));
  EXPECT_EQ(q_indptr.read(), (Ints{0, 6, 9, 10}));
  std::vector<LocalPos> wanted(10);
  wanted[9] = LocalPos(7);
  EXPECT_EQ(positions.read(), wanted);
  Ints lens(10);
  lens[9] = 8;
  EXPECT_EQ(row_lens.read(), lens);
  EXPECT_EQ(attend_lens.read(), lens);
  std::vector<Slot> written(10);
  written[9] = Slot(5 * 16 + 7);
  EXPECT_EQ(slots.read(), written);
  EXPECT_EQ(table.read(),
            (std::vector<PageId>{PageId(), PageId(), PageId(), PageId(), PageId(5), PageId()}));
}

template <class Device>
void check_steps(Device& device) {
  std::mt19937 rng(36);
  StepOptions options;
  options.main_pages = 5000;
  options.compressed_pages = 7000;
  options.fixed_strides = true;
  options.index_multiple = 16;
  struct Case {
    StepBound bound;  // rows, requests, context
    std::vector<std::int64_t> requests;
  };
  // Requests that fit in one tile, and more.
  const Case cases[] = {{{1500, 300, 400}, {0, 1, 300, 3, 150}},
                        {{9100, 9000, 30}, {9000, 0, 5000}}};
  for (const AttentionProblem& problem : problems_for_steps()) {
    const Plan plan = plan_for_steps(problem);
    for (const Case& c : cases) {
      auto step = Step::make(plan, options, c.bound);
      ASSERT_TRUE(step.ok()) << step.error().message();
      StepThere<Device> there(device, plan, options, c.bound);
      const auto in = there.in();
      const auto out = there.out();
      const auto replay = device.capture(
          [&](Device& d) -> Result<void> { return d.step_rows(in, out, there.workspace.span()); });
      for (std::int64_t requests : c.requests) {
        const RandomBatch batch(rng, plan, options, requests, c.bound.context);
        expect_ok(step->plan({Phase::extend, batch.requests}));
        there.write(batch.requests);
        expect_ok(replay());
        SCOPED_TRACE(fmt::format("{}, ratio {}, {} of {} requests", name(problem.kind),
                                 problem.compress_ratio, requests, c.bound.requests));
        there.check_rows(step->view());
      }
    }
  }
}

}  // namespace lathe::cuda
