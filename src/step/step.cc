#include "step/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/integers.h"
#include "step/step_util.h"

namespace lathe {

using namespace step_internal;

namespace {

Error bad(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

bool reads_compact(const Plan& plan) {
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if (r.unit == KeyUnit::ragged_row) return true;
    }
  }
  return false;
}

}  // namespace

std::int64_t padded_context(std::int64_t longest) {
  std::int64_t context = 1024;
  while (context < longest) context *= 2;
  return context;
}

StepBound step_bound(const Plan& plan) {
  StepBound bound{plan.max_rows, plan.max_requests, plan.context_length, 0};
  if (!reads_compact(plan)) return bound;
  std::int64_t row_bytes = 0;
  for (const PhasePlan& phase : plan.phases) {
    for (const Route& r : phase.routes) {
      if (r.adapter) row_bytes = std::max(row_bytes, r.adapter->out_bytes);
    }
  }
  const Budget* gather = plan.budget(BudgetKind::gather);
  if (gather != nullptr && row_bytes > 0) bound.gather_rows = gather->bytes / row_bytes;
  return bound;
}

template <class F>
void Step::Arrays::for_each(F f) {
  f(positions), f(row_request), f(row_lens), f(out_slots), f(q_indptr), f(kv_lens);
  f(page_table), f(prefixes), f(compressed_table), f(state_table), f(state_before), f(index_lens);
  f(window_slots), f(window_lens), f(compressed_lens), f(compressed_out_slots);
}

Step::Step(const Plan& plan, const StepOptions& options, const StepBound& bound)
    : plan_(&plan), options_(options), bound_(bound) {
  main_ = {plan.main().page_size, options.main_pages};
  if (plan.problem.two_sources()) {
    compressed_ = {plan.cache(CacheRole::compressed)->page_size, options.compressed_pages};
  }
}

std::int64_t Step::window_width() const {
  const std::int64_t window = plan_->problem.window;
  // A window that is longer than the context is never full. A GPU's step kernel wants all columns.
  const std::int64_t keys = options_.fixed_strides ? window : std::min(window, bound_.context);
  return round_up(keys, options_.index_multiple);
}

std::int64_t Step::table_width(std::int64_t context, std::int64_t page_tokens) const {
  return round_up(ceil_div(context, page_tokens), plan_->table_multiple);
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
  if (options.state.pages != 0) {
    if (auto ok = check_pool_shape(options.state); !ok) return ok.error();
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
  a.page_table.resize(requests * at(table_width(bound_.context, main_.page_size)));
  if (plan_->prefixes.on) {
    a.prefixes.resize(at(PrefixLists<std::int32_t>::size(bound_.requests, bound_.rows)));
    prefix_requests_.resize(requests);
    prefixes_ = PrefixGrouper(plan_->prefixes, main_.page_size, bound_.requests);
  }
  if (p.sparse()) a.index_lens.resize(rows);
  if (p.index_pool > 0) a.compressed_out_slots.resize(rows);
  if (windowed()) {
    a.window_slots.resize(rows * at(window_width()));
    a.window_lens.resize(rows);
  }
  if (p.two_sources()) {
    a.compressed_lens.resize(rows);
    a.compressed_out_slots.resize(rows);
    a.compressed_table.resize(requests *
                              at(table_width(bound_.context / ratio(), compressed_.page_size)));
  }
  if (options_.state.pages > 0) {
    a.state_table.resize(requests * at(table_width(bound_.context, options_.state.page_size)));
    a.state_before.resize(requests);
  }
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
    find_prefixes(batch);
    fill_window(batch);
    fill_selection(batch);
    done = check_gather(batch);
  }
  if (!done) view_ = {};
  return done;
}

Result<void> Step::check(const StepBatch& batch) {
  const std::int64_t requests = std::ssize(batch.requests);
  if (auto ok = within("requests", requests, bound_.requests); !ok) return ok;
  std::int64_t rows = 0;
  std::int64_t longest = 0, total = 0, least = bound_.rows;
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
    if (q.rows > 0) least = std::min<std::int64_t>(least, q.rows);
    if (q.padding) continue;
    const std::int64_t keys = std::int64_t{q.cached} + q.rows;
    if (keys > bound_.context) {
      return within(fmt::format("requests[{}] context", r), keys, bound_.context);
    }
    longest = std::max(longest, keys);
    total += keys;
    if (auto ok = check_pages(q, r); !ok) return ok;
  }
  if (auto ok = within("rows", rows, bound_.rows); !ok) return ok;
  view_.phase = batch.phase;
  view_.rows = rows;
  view_.requests = requests;
  view_.max_context = longest;
  view_.total_context = total;
  if (rows == 0) return {};
  view_.route = plan_->route(batch.phase, rows, longest, least);
  if (view_.route == nullptr) {
    return Error{ErrorCode::unsupported, "phase",
                 fmt::format("a batch that a route of {} covers", name(batch.phase)),
                 fmt::format("{} rows, longest context {}", rows, longest), "lathe plan --explain"};
  }
  return {};
}

std::int64_t Step::first_read(const StepRequest& q) const {
  return plan_->problem.first_key(q.cached);  // later rows see no earlier key
}

Result<void> Step::check_pages(const StepRequest& q, std::int64_t r) const {
  const std::int64_t keys = std::int64_t{q.cached} + q.rows;
  // First position that a row reads or writes. Pages before it (before the window) may be freed. A
  // request without rows reads nothing, but its pages are in the table and are checked.
  const std::int64_t first = first_read(q);
  const auto check_list = [&](const char* field, std::span<const PageId> pages, PoolShape pool,
                              std::int64_t begin, std::int64_t end) -> Result<void> {
    const std::int64_t last = ceil_div(end, pool.page_size);
    if (last > std::ssize(pages)) {
      return bad(fmt::format("requests[{}].{}", r, field),
                 fmt::format("{} pages for {} entries", last, end),
                 fmt::format("{}", pages.size()));
    }
    // Pages before `begin` may be freed (-1), but are in the table, so others must be in the pool.
    const std::size_t kept = at(std::min(begin / pool.page_size, last));
    const auto all = pages.first(at(last));
    std::size_t stray = first_stray(all.first(kept), pool, true);
    if (stray == kept) stray += first_stray(all.subspan(kept), pool, false);
    if (stray == all.size()) return {};
    return bad(fmt::format("requests[{}].{}[{}]", r, field, stray),
               fmt::format("{}a page of {}", stray < kept ? "-1 or " : "", pool.pages),
               fmt::format("{}", all[stray].value));
  };
  if (auto ok = check_list("pages", q.pages, main_, first, keys); !ok) return ok;
  if (options_.state.pages > 0 && q.rows > 0) {
    if (auto ok = check_list("state_slots", q.state_slots, options_.state, keys - 1, keys); !ok) {
      return ok;
    }
    if (q.cached > 0 && !options_.state.holds(q.state_before)) {
      return bad(fmt::format("requests[{}].state_before", r),
                 fmt::format("a slot of {}", options_.state.pages),
                 fmt::format("{}", q.state_before.value));
    }
  }
  if (!plan_->problem.two_sources()) return {};
  return check_list("compressed_pages", q.compressed_pages, compressed_, 0, keys / ratio());
}

}  // namespace lathe
