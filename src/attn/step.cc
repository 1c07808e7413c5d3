#include "attn/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "attn/index_transform.h"

namespace lathe {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

Error bad(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

Result<void> within(const char* what, std::int64_t offered, std::int64_t bound) {
  if (offered <= bound) return {};
  return Error{ErrorCode::exhausted, what, fmt::format("at most {}", bound),
               fmt::format("{}", offered), "split the batch, or plan for a larger one"};
}

bool reads_compact(const Plan& plan) {
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if (r.unit == KeyUnit::ragged_row) return true;
    }
  }
  return false;
}

// First n entries of an array as the view of a batch.
template <class T>
std::span<T> front(std::vector<T>& array, std::int64_t n) {
  return std::span(array).first(static_cast<std::size_t>(n));
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// First position of a request that any of its rows' windows reaches.
std::int64_t window_begin(const StepRequest& q, std::int32_t window) {
  return std::max<std::int64_t>(0, std::int64_t{q.cached} - window + 1);
}

}  // namespace

StepBound step_bound(const Plan& plan) {
  StepBound bound{plan.max_rows, plan.max_requests, plan.context_length, 0};
  if (!reads_compact(plan)) return bound;
  std::int64_t row_bytes = 0;
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if (r.adapter) row_bytes = std::max(row_bytes, r.adapter->out_bytes);
    }
  }
  bound.gather_rows = plan.context_length;
  for (const Budget& b : plan.budgets) {
    if (b.name == "gather" && row_bytes > 0) {
      bound.gather_rows = std::max(bound.gather_rows, b.bytes / row_bytes);
    }
  }
  return bound;
}

template <class F>
void Step::Arrays::for_each(F f) {
  f(positions), f(row_request), f(row_lens), f(out_slots), f(q_indptr), f(kv_lens);
  f(page_table), f(compressed_table), f(index_lens), f(identity), f(window_slots);
  f(window_lens), f(compressed_lens), f(compressed_out_slots), f(gather_slots);
  f(gather_entry_slots), f(gather_indptr), f(entry_indptr), f(ragged_offset), f(window_base);
  f(window_start), f(attend_lens), f(work_items), f(work_row_items), f(work_worker_items);
}

Step::Step(const Plan& plan, const StepOptions& options, const StepBound& bound)
    : plan_(&plan), options_(options), bound_(bound) {
  main_ = {plan.main().page_size, options.main_pages};
  table_width_ = round_up(ceil_div(bound.context, main_.page_size), plan.table_multiple);
  if (plan.problem.two_sources()) {
    compressed_ = {plan.cache(CacheRole::compressed)->page_size, options.compressed_pages};
    compressed_width_ =
        round_up(ceil_div(bound.context / ratio(), compressed_.page_size), plan.table_multiple);
  }
  any_compact_ = reads_compact(plan);
}

Result<Step> Step::make(const Plan& plan, const StepOptions& options, const StepBound& bound) {
  for (const auto& [field, value] :
       {std::pair{"bound.rows", bound.rows}, std::pair{"bound.requests", bound.requests},
        std::pair{"bound.context", bound.context},
        std::pair{"bound.gather_rows", bound.gather_rows}}) {
    if (value < 0 || value > kMaxInt32) {
      return bad(field, fmt::format("0 to {}", kMaxInt32), fmt::format("{}", value));
    }
  }
  if (plan.caches.empty()) return bad("plan.caches", "a main cache", "none");
  if (options.index_multiple < 1 || options.index_multiple > kMaxPageSize) {
    return bad("index_multiple", fmt::format("1 to {}", kMaxPageSize),
               fmt::format("{}", options.index_multiple));
  }
  if (options.work.workers < 1 || options.work.block < 1 || options.work.fixed_split < 0) {
    return bad("work", "workers and block of 1 or more, fixed_split of 0 or more",
               fmt::format("{}, {}, {}", options.work.workers, options.work.block,
                           options.work.fixed_split));
  }
  if (plan.table_multiple < 1) {
    return bad("plan.table_multiple", "1 or more", fmt::format("{}", plan.table_multiple));
  }
  if (auto ok = check_pool_shape({plan.main().page_size, options.main_pages}); !ok) {
    return ok.error();
  }
  if (plan.problem.two_sources()) {
    const CachePlan* compressed = plan.cache(CacheRole::compressed);
    if (compressed == nullptr) return bad("plan.caches", "a compressed cache", "none");
    if (auto ok = check_pool_shape({compressed->page_size, options.compressed_pages}); !ok) {
      return ok.error();
    }
  }
  Step step(plan, options, bound);
  step.allocate();
  const Result<void> empty = step.plan({});
  if (!empty) return empty.error();
  return step;
}

void Step::allocate() {
  const AttentionProblem& p = plan_->problem;
  Arrays& a = arrays_;
  const auto rows = at(bound_.rows);
  const auto requests = at(bound_.requests);
  lists_.resize(requests);
  a.positions.resize(rows);
  a.row_request.resize(rows);
  a.row_lens.resize(rows);
  a.out_slots.resize(rows);
  a.q_indptr.resize(requests + 1);
  a.kv_lens.resize(requests);
  a.page_table.resize(requests * at(table_width_));
  if (p.sparse()) {
    a.index_lens.resize(rows);
    a.identity.resize(rows);
  }
  if (windowed()) {
    a.window_slots.resize(rows * at(round_up(p.window, options_.index_multiple)));
    a.window_lens.resize(rows);
  }
  if (p.two_sources()) {
    a.compressed_lens.resize(rows);
    a.compressed_out_slots.resize(rows);
    a.compressed_table.resize(requests * at(compressed_width_));
  }
  if (any_compact_) {
    a.gather_slots.resize(at(bound_.gather_rows));
    a.gather_indptr.resize(requests + 1);
    a.ragged_offset.resize(rows);
    if (p.two_sources()) {
      a.gather_entry_slots.resize(at(bound_.gather_rows));
      a.entry_indptr.resize(requests + 1);
    }
    if (windowed()) {
      a.window_base.resize(rows);
      a.window_start.resize(rows);
    }
  }
  a.attend_lens.resize(rows);
  std::int64_t longest = bound_.context;
  if (p.sparse()) longest = std::min<std::int64_t>(longest, p.top_k);
  if (windowed()) longest = std::min<std::int64_t>(bound_.context, p.window) + longest;
  a.work_items.resize(at(max_work_items(bound_.rows, longest, options_.work)));
  a.work_row_items.resize(rows + 1);
  a.work_worker_items.resize(at(options_.work.workers) + 1);
}

std::int64_t Step::bytes() const {
  std::int64_t sum = 0;
  const_cast<Arrays&>(arrays_).for_each(
      [&](const auto& v) { sum += std::ssize(v) * std::int64_t{sizeof(v[0])}; });
  return sum;
}

void Step::poison() {
  arrays_.for_each([](auto& v) {
    if (!v.empty()) std::memset(static_cast<void*>(v.data()), 0x5a, v.size() * sizeof(v[0]));
  });
  view_ = {};
}

Result<void> Step::plan(const StepBatch& batch) {
  view_ = {};
  Result<void> done = check(batch);
  if (done) {
    fill_rows(batch);
    done = fill_tables(batch);
  }
  if (done) {
    fill_window(batch);
    fill_selection();
    done = fill_gather(batch);
  }
  if (done) done = fill_work();
  if (!done) view_ = {};
  return done;
}

Result<void> Step::check(const StepBatch& batch) {
  const std::int64_t requests = std::ssize(batch.requests);
  if (auto ok = within("requests", requests, bound_.requests); !ok) return ok;
  std::int64_t rows = 0;
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const StepRequest& q = batch.requests[at(r)];
    if (q.cached < 0 || q.rows < 0) {
      return bad(fmt::format("requests[{}]", r), "0 or more cached tokens and rows",
                 fmt::format("{} and {}", q.cached, q.rows));
    }
    if (batch.phase == Phase::decode && q.rows > 1) {
      return bad(fmt::format("requests[{}].rows", r), "at most 1 in decode",
                 fmt::format("{}", q.rows), "several rows of a request are verify or extend");
    }
    rows += q.rows;
    if (q.padding) continue;
    const std::int64_t keys = std::int64_t{q.cached} + q.rows;
    if (keys > bound_.context) {
      return within(fmt::format("requests[{}] context", r).c_str(), keys, bound_.context);
    }
    longest = std::max(longest, keys);
    if (auto ok = check_pages(q, r); !ok) return ok;
  }
  if (auto ok = within("rows", rows, bound_.rows); !ok) return ok;
  view_.phase = batch.phase;
  view_.rows = rows;
  view_.requests = requests;
  view_.max_context = longest;
  if (rows == 0) return {};
  view_.route = plan_->route(batch.phase, rows, longest);
  if (view_.route == nullptr) {
    return Error{ErrorCode::unsupported, "phase",
                 fmt::format("a batch that a route of {} covers", name(batch.phase)),
                 fmt::format("{} rows, longest context {}", rows, longest), "lathe plan --explain"};
  }
  return {};
}

Result<void> Step::check_pages(const StepRequest& q, std::int64_t r) const {
  const std::int64_t keys = std::int64_t{q.cached} + q.rows;
  // Positions that some row reads or writes: with a window, the pages before it may be gone. A
  // request without rows reads nothing here, but its keys still count for the tables.
  const std::int64_t first = windowed() ? window_begin(q, plan_->problem.window) : 0;
  const auto check_list = [&](const char* field, std::span<const PageId> pages, PoolShape pool,
                              std::int64_t begin, std::int64_t end) -> Result<void> {
    if (ceil_div(end, pool.page_size) > std::ssize(pages)) {
      return bad(fmt::format("requests[{}].{}", r, field),
                 fmt::format("{} pages for {} entries", ceil_div(end, pool.page_size), end),
                 fmt::format("{}", pages.size()));
    }
    for (std::int64_t i = begin / pool.page_size; i * pool.page_size < end; ++i) {
      if (!pool.holds(pages[at(i)])) {
        return bad(fmt::format("requests[{}].{}[{}]", r, field, i),
                   fmt::format("a page of {}", pool.pages), fmt::format("{}", pages[at(i)].value));
      }
    }
    return {};
  };
  if (auto ok = check_list("pages", q.pages, main_, first, keys); !ok) return ok;
  if (!plan_->problem.two_sources()) return {};
  return check_list("compressed_pages", q.compressed_pages, compressed_, 0, keys / ratio());
}

void Step::fill_rows(const StepBatch& batch) {
  Arrays& a = arrays_;
  std::int64_t t = 0;
  for (std::int64_t r = 0; r < view_.requests; ++r) {
    const StepRequest& q = batch.requests[at(r)];
    a.q_indptr[at(r)] = static_cast<std::int32_t>(t);
    a.kv_lens[at(r)] = q.padding ? 0 : q.cached + q.rows;
    view_.max_rows = std::max<std::int64_t>(view_.max_rows, q.rows);
    for (std::int32_t j = 0; j < q.rows; ++j, ++t) {
      const LocalPos p(q.padding ? -1 : q.cached + j);
      a.positions[at(t)] = p;
      a.row_request[at(t)] = static_cast<std::int32_t>(r);
      a.row_lens[at(t)] = p.value + 1;
      a.out_slots[at(t)] = slot_at(q.pages, main_, p);
    }
  }
  a.q_indptr[at(view_.requests)] = static_cast<std::int32_t>(t);
  view_.positions = front(a.positions, t);
  view_.row_request = front(a.row_request, t);
  view_.row_lens = front(a.row_lens, t);
  view_.out_slots = front(a.out_slots, t);
  view_.q_indptr = front(a.q_indptr, view_.requests + 1);
  view_.kv_lens = front(a.kv_lens, view_.requests);
}

Result<void> Step::fill_tables(const StepBatch& batch) {
  const auto build = [&](PoolShape pool, std::int64_t tokens_per_entry, std::int64_t fixed_width,
                         auto pages_of, std::vector<PageId>& buffer) {
    for (std::int64_t r = 0; r < view_.requests; ++r) {
      // A request may own pages beyond its keys; the table holds those that keys lie on.
      const std::int64_t keys = arrays_.kv_lens[at(r)] / tokens_per_entry;
      lists_[at(r)] = pages_of(batch.requests[at(r)]).first(at(ceil_div(keys, pool.page_size)));
    }
    const TableOptions shape{.multiple = plan_->table_multiple,
                             .width = options_.fixed_strides ? fixed_width : 0};
    return rebuild_page_table(PageLists(std::span(lists_).first(at(view_.requests))), pool, shape,
                              buffer);
  };
  const auto table = build(
      main_, 1, table_width_, [](const StepRequest& q) { return q.pages; }, arrays_.page_table);
  if (!table) return table.error();
  view_.page_table = *table;
  if (!plan_->problem.two_sources()) return {};
  const auto entries = build(
      compressed_, ratio(), compressed_width_,
      [](const StepRequest& q) { return q.compressed_pages; }, arrays_.compressed_table);
  if (!entries) return entries.error();
  view_.compressed_table = *entries;
  return {};
}

void Step::fill_window(const StepBatch& batch) {
  if (!windowed()) return;
  Arrays& a = arrays_;
  const AttentionProblem& p = plan_->problem;
  view_.window_width = round_up(p.window, options_.index_multiple);
  for (std::int64_t t = 0; t < view_.rows; ++t) {
    const std::int32_t position = a.positions[at(t)].value;
    const std::int32_t len = std::min(position + 1, p.window);
    const StepRequest& q = batch.requests[at(a.row_request[at(t)])];
    Slot* slots = a.window_slots.data() + t * view_.window_width;
    for (std::int32_t i = 0; i < len; ++i) {
      slots[i] = slot_at(q.pages, main_, LocalPos(position + 1 - len + i));
    }
    std::fill(slots + len, slots + view_.window_width, Slot());
    a.window_lens[at(t)] = len;
    if (!p.two_sources()) continue;
    const std::int32_t entries = (position + 1) / p.compress_ratio;
    const bool completes = position >= 0 && (position + 1) % p.compress_ratio == 0;
    a.compressed_lens[at(t)] = entries;
    a.compressed_out_slots[at(t)] =
        completes ? slot_at(q.compressed_pages, compressed_, LocalPos(entries - 1)) : Slot();
  }
  view_.window_slots = front(a.window_slots, view_.rows * view_.window_width);
  view_.window_lens = front(a.window_lens, view_.rows);
  if (!p.two_sources()) return;
  view_.compressed_lens = front(a.compressed_lens, view_.rows);
  view_.compressed_out_slots = front(a.compressed_out_slots, view_.rows);
}

void Step::fill_selection() {
  const AttentionProblem& p = plan_->problem;
  if (!p.sparse()) return;
  const auto lens = p.two_sources() ? view_.compressed_lens : view_.row_lens;
  for (std::int64_t t = 0; t < view_.rows; ++t) {
    const bool all = lens[at(t)] <= p.top_k;
    arrays_.index_lens[at(t)] = lens[at(t)];
    arrays_.identity[at(t)] = all ? 1 : 0;
    view_.selecting_rows += all ? 0 : 1;
  }
  view_.index_lens = front(arrays_.index_lens, view_.rows);
  view_.identity = front(arrays_.identity, view_.rows);
}

Result<void> Step::fill_gather(const StepBatch& batch) {
  if (view_.route == nullptr || view_.route->unit != KeyUnit::ragged_row) return {};
  Arrays& a = arrays_;
  const AttentionProblem& p = plan_->problem;
  // First the offsets, which say whether the batch fits.
  std::int64_t keys = 0;
  std::int64_t entries = 0;
  for (std::int64_t r = 0; r < view_.requests; ++r) {
    const StepRequest& q = batch.requests[at(r)];
    const std::int64_t first = windowed() ? window_begin(q, p.window) : 0;
    // Rows of a request are all that look at its keys.
    const std::int64_t len = q.rows == 0 || q.padding ? 0 : a.kv_lens[at(r)];
    a.gather_indptr[at(r)] = keys;
    keys += len > 0 ? len - first : 0;
    if (!p.two_sources()) continue;
    a.entry_indptr[at(r)] = entries;
    entries += len / ratio();
  }
  if (auto ok = within("gather rows", keys + entries, bound_.gather_rows); !ok) return ok;
  a.gather_indptr[at(view_.requests)] = keys;
  if (p.two_sources()) a.entry_indptr[at(view_.requests)] = entries;
  for (std::int64_t r = 0; r < view_.requests; ++r) {
    const StepRequest& q = batch.requests[at(r)];
    const std::int64_t first = windowed() ? window_begin(q, p.window) : 0;
    const std::int64_t begin = a.gather_indptr[at(r)];
    for (std::int64_t i = begin; i < a.gather_indptr[at(r + 1)]; ++i) {
      a.gather_slots[at(i)] =
          slot_at(q.pages, main_, LocalPos(static_cast<std::int32_t>(first + i - begin)));
    }
    const std::int64_t entry = p.two_sources() ? a.entry_indptr[at(r)] : 0;
    for (std::int64_t i = entry; p.two_sources() && i < a.entry_indptr[at(r + 1)]; ++i) {
      a.gather_entry_slots[at(i)] =
          slot_at(q.compressed_pages, compressed_, LocalPos(static_cast<std::int32_t>(i - entry)));
    }
    for (std::int64_t t = a.q_indptr[at(r)]; t < a.q_indptr[at(r + 1)]; ++t) {
      a.ragged_offset[at(t)] = static_cast<std::int32_t>(windowed() ? entry : begin);
      if (!windowed()) continue;
      a.window_base[at(t)] = static_cast<std::int32_t>(entries + begin);
      a.window_start[at(t)] = static_cast<std::int32_t>(first);
    }
  }
  view_.compact_rows = keys + entries;
  view_.gather_slots = front(a.gather_slots, keys);
  view_.gather_indptr = front(a.gather_indptr, view_.requests + 1);
  view_.ragged_offset = front(a.ragged_offset, view_.rows);
  if (p.two_sources()) {
    view_.gather_entry_slots = front(a.gather_entry_slots, entries);
    view_.entry_indptr = front(a.entry_indptr, view_.requests + 1);
  }
  if (windowed()) {
    view_.window_base = front(a.window_base, view_.rows);
    view_.window_start = front(a.window_start, view_.rows);
  }
  return {};
}

Result<void> Step::fill_work() {
  Arrays& a = arrays_;
  const AttentionProblem& p = plan_->problem;
  for (std::int64_t t = 0; t < view_.rows; ++t) {
    std::int32_t chosen = windowed() ? 0 : a.row_lens[at(t)];
    if (p.two_sources()) chosen = a.compressed_lens[at(t)];
    if (p.sparse()) chosen = std::min(chosen, p.top_k);
    a.attend_lens[at(t)] = chosen + (windowed() ? a.window_lens[at(t)] : 0);
  }
  view_.attend_lens = front(a.attend_lens, view_.rows);
  const auto work = plan_work({view_.attend_lens, {}}, options_.work,
                              {a.work_items, a.work_row_items, a.work_worker_items});
  if (!work) return work.error();
  view_.work = *work;
  return {};
}

}  // namespace lathe
