// Fills a step's arrays for a batch (step.cc checks the batch and owns the memory).
#include <algorithm>

#include "attn/index_transform.h"
#include "step/step.h"
#include "step/step_util.h"

namespace lathe {

using namespace step_internal;

namespace {

// Writes the slots of positions from `first` on, page by page: a window has few pages.
void write_slots(std::span<const PageId> pages, PoolShape pool, std::int64_t first,
                 std::span<Slot> out) {
  while (!out.empty()) {
    const std::int64_t offset = first % pool.page_size;
    const std::size_t count = std::min(out.size(), at(pool.page_size - offset));
    const Slot begin = slot_at(pages, pool, LocalPos(static_cast<std::int32_t>(first)));
    if (begin.is_hole()) {
      std::fill_n(out.begin(), count, begin);
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = Slot(begin.value + static_cast<std::int32_t>(i));
      }
    }
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

}  // namespace

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
  const std::int64_t context = std::min(padded_context(view_.max_context), bound_.context);
  const auto build = [&](PoolShape pool, std::int64_t tokens_per_entry, auto pages_of,
                         std::vector<PageId>& buffer) {
    const std::int64_t width =
        options_.fixed_strides ? table_width(context / tokens_per_entry, pool.page_size) : 0;
    for (std::int64_t r = 0; r < view_.requests; ++r) {
      // A request may have more pages than its keys need; the table has only those with keys.
      const std::int64_t keys = arrays_.kv_lens[at(r)] / tokens_per_entry;
      const PageLists::List pages = pages_of(batch.requests[at(r)]);
      lists_[at(r)] = pages.first(std::min(pages.size(), at(ceil_div(keys, pool.page_size))));
    }
    const TableOptions shape{.multiple = plan_->table_multiple, .width = width};
    // check() has already checked the pages.
    return fill_page_table(PageLists(std::span(lists_).first(at(view_.requests))), shape, buffer);
  };
  const auto table = build(
      main_, 1, [](const StepRequest& q) { return q.pages; }, arrays_.page_table);
  if (!table) return table.error();
  view_.page_table = *table;
  if (options_.state.pages > 0) {
    const auto slots = build(
        options_.state, 1,
        [](const StepRequest& q) { return q.rows > 0 ? q.state_slots : PageLists::List(); },
        arrays_.state_table);
    if (!slots) return slots.error();
    view_.state_table = *slots;
    view_.state_tokens = options_.state.page_size;
    for (std::int64_t r = 0; r < view_.requests; ++r) {
      const StepRequest& q = batch.requests[at(r)];
      arrays_.state_before[at(r)] =
          !q.padding && q.rows > 0 && q.cached > 0 ? q.state_before : PageId();
    }
    view_.state_before = front(arrays_.state_before, view_.requests);
  }
  if (!plan_->problem.two_sources()) return {};
  const auto entries = build(
      compressed_, ratio(), [](const StepRequest& q) { return q.compressed_pages; },
      arrays_.compressed_table);
  if (!entries) return entries.error();
  view_.compressed_table = *entries;
  return {};
}

// All rows of a request see its keys before the first row, unless a window ends before the last
// one.
void Step::find_prefixes(const StepBatch& batch) {
  const bool looks = view_.phase == Phase::decode || view_.phase == Phase::verify;
  if (!plan_->prefixes.on || !looks || view_.rows == 0) return;
  const std::int32_t window = plan_->problem.window;
  for (std::int64_t r = 0; r < view_.requests; ++r) {
    const StepRequest& q = batch.requests[at(r)];
    PrefixRequest& out = prefix_requests_[at(r)];
    out = {{}, arrays_.q_indptr[at(r)], q.rows};
    if (q.padding || q.rows == 0 || (window > 0 && q.cached + q.rows > window)) continue;
    out.pages = q.pages.first(at(q.cached / main_.page_size));
  }
  const auto lists =
      front(arrays_.prefixes, PrefixLists<std::int32_t>::size(view_.requests, view_.rows));
  view_.prefixes = prefixes_.find(std::span(prefix_requests_).first(at(view_.requests)),
                                  view_.row_request, lists);
  view_.prefix_savings = prefixes_.savings();
}

void Step::fill_window(const StepBatch& batch) {
  if (!windowed()) return;
  Arrays& a = arrays_;
  const AttentionProblem& p = plan_->problem;
  view_.window_width = window_width();
  for (std::int64_t t = 0; t < view_.rows; ++t) {
    const std::int32_t position = a.positions[at(t)].value;
    const std::int32_t len = std::min(position + 1, p.window);
    const StepRequest& q = batch.requests[at(a.row_request[at(t)])];
    Slot* slots = a.window_slots.data() + t * view_.window_width;
    write_slots(q.pages, main_, position + 1 - len, std::span(slots, at(len)));
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

void Step::fill_selection(const StepBatch& batch) {
  const AttentionProblem& p = plan_->problem;
  if (!p.sparse()) return;
  for (std::int64_t t = 0; t < view_.rows; ++t) {
    const std::int32_t keys = view_.row_lens[at(t)] / p.tokens_per_index_key();
    arrays_.index_lens[at(t)] = keys;
    view_.selecting_rows += keys > p.index_top_k() ? 1 : 0;
  }
  view_.index_lens = front(arrays_.index_lens, view_.rows);
  if (p.index_pool == 0) return;
  const PoolShape keys{main_.page_size / p.index_pool, main_.pages};
  for (std::int64_t t = 0; t < view_.rows; ++t) {
    const std::int32_t len = view_.row_lens[at(t)];
    const StepRequest& q = batch.requests[at(arrays_.row_request[at(t)])];
    arrays_.compressed_out_slots[at(t)] =
        len > 0 && len % p.index_pool == 0
            ? slot_at(q.pages, keys, LocalPos(len / p.index_pool - 1))
            : Slot();
  }
  view_.compressed_out_slots = front(arrays_.compressed_out_slots, view_.rows);
}

// Grouped queries gather whole requests at once. Latents are gathered tile by tile if the buffer is
// too small, so they cannot exceed it.
Result<void> Step::check_gather(const StepBatch& batch) const {
  if (view_.route == nullptr || view_.route->unit != KeyUnit::ragged_row) return {};
  if (plan_->problem.kind != ProblemKind::grouped_query) return {};
  std::int64_t keys = 0;
  for (std::int64_t r = 0; r < view_.requests; ++r) {
    const StepRequest& q = batch.requests[at(r)];
    if (q.rows > 0 && !q.padding) keys += view_.kv_lens[at(r)];
  }
  return within("gather rows", keys, bound_.gather_rows);
}

}  // namespace lathe
