// Step: the metadata of one forward step, built once and shared by all layers of a plan.
//
// Its arrays lie at fixed addresses, sized from a bound, and plan() refills them for each batch:
// what a batch sees depends on that batch alone, whatever the arrays held, and plan() allocates
// nothing. So a captured graph, or a device that mirrors the arrays, can keep the addresses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attn/phase.h"
#include "base/result.h"
#include "layout/pages/index_units.h"
#include "layout/pages/page_table.h"
#include "layout/pages/pool_shape.h"
#include "plan/plan.h"

namespace lathe {

/// One request of a batch: `rows` new tokens after `cached` ones. It ends with L = cached + rows
/// keys, and its row j stands at position cached + j.
struct StepRequest {
  std::span<const PageId> pages;  // of the main pool, position order; -1 before the window
  std::span<const PageId> compressed_pages;  // of the compressed pool; window_compressed only
  std::int32_t cached = 0;
  std::int32_t rows = 0;
  // The rows only fill up a captured batch: they have no position, see no key and write nothing.
  bool padding = false;
  // Groups with a state: the slot of its state after the cached tokens, and the slots that it moves
  // to, one for every StepOptions::state.page_size tokens. The last row's is present, others may be
  // -1.
  PageId state_before = {};
  std::span<const PageId> state_slots = {};
};

struct StepBatch {
  Phase phase = Phase::decode;
  std::span<const StepRequest> requests;
};

/// The largest batch that a step has room for.
struct StepBound {
  std::int64_t rows = 0;
  std::int64_t requests = 0;
  std::int64_t context = 0;      // keys of the longest request
  std::int64_t gather_rows = 0;  // rows of the compact buffer; 0 where no route reads one
};

/// The bound that a plan names; the compact buffer is what its budget "gather" holds.
StepBound step_bound(const Plan& plan);

struct StepOptions {
  std::int64_t main_pages = 0;        // pages of the pools, for checking
  std::int64_t compressed_pages = 0;  // two sources only
  PoolShape state = {};  // of the group's state, page_size tokens a slot; no pages: it has none
  std::int64_t index_multiple = 64;  // widths of index lists are multiples of this
  // Page tables as wide as padded_context() of the batch asks, for captured graphs, whatever its
  // other lengths are.
  bool fixed_strides = false;
};

/// Keys of the longest request, rounded up to a power of two of at least 1024: captured graphs size
/// their work by it, so that many batches share one.
std::int64_t padded_context(std::int64_t longest);

/// The arrays of the current batch. Those that a problem or route has no use for are empty.
struct StepView {
  Phase phase = Phase::decode;
  const Route* route = nullptr;    // of the plan; null for a batch without rows
  std::int64_t rows = 0;           // query rows
  std::int64_t requests = 0;       // padding included
  std::int64_t max_rows = 0;       // rows of the request that brings most
  std::int64_t max_context = 0;    // keys of the longest request
  std::int64_t total_context = 0;  // keys of all requests
  std::int64_t selecting_rows =
      0;                          // rows that need indexer logits; 0: the indexer writes keys only
  std::int64_t window_width = 0;  // columns of window_slots

  // What the route's kernel made of the lengths (make_schedule() in step/attend_op.h), or null.
  const Schedule* schedule = nullptr;

  std::span<const LocalPos> positions;        // [rows]; -1 for padding
  std::span<const std::int32_t> row_request;  // [rows]
  std::span<const std::int32_t> row_lens;     // [rows] keys seen causally: position + 1
  std::span<const Slot> out_slots;            // [rows] where the row's token is written, main pool
  std::span<const std::int32_t> q_indptr;     // [requests + 1]
  std::span<const std::int32_t> kv_lens;      // [requests]
  PageTableView page_table;                   // [requests, width] main pool

  // Sparse selection.
  std::span<const std::int32_t> index_lens;  // [rows] keys (V4: entries) that the indexer ranks

  // window_compressed.
  std::span<const Slot> window_slots;         // [rows, window_width] positions p-w+1 .. p, then -1
  std::span<const std::int32_t> window_lens;  // [rows] min(p + 1, window)
  std::span<const std::int32_t> compressed_lens;  // [rows] entries visible: (p + 1) / ratio
  std::span<const Slot> compressed_out_slots;  // [rows] of the entry that the row completes, or -1
  PageTableView compressed_table;              // [requests, width] compressed pool

  // Groups with a state, which is written after the last row of a request and after every row that
  // ends a slot's tokens, and in phase verify after each of a request's last rows, as many as a
  // slot has banks; to the slot of that position, unless it is -1. state_before is read first: it
  // may be the last row's slot.
  std::span<const PageId> state_before;  // [requests] -1: a request's first row, with no state yet
  PageTableView state_table;             // [requests, width] slots by position / state_tokens
  std::int32_t state_tokens = 0;         // 0: no state
};

/// Calls f(name, span) for every array of a step, in a fixed order: what a device copies.
template <class F>
void for_each_array(const StepView& v, F f) {
  const auto table = [](const PageTableView& t) {
    return std::span<const PageId>(t.data, static_cast<std::size_t>(t.requests * t.width));
  };
  f("positions", v.positions);
  f("row_request", v.row_request);
  f("row_lens", v.row_lens);
  f("out_slots", v.out_slots);
  f("q_indptr", v.q_indptr);
  f("kv_lens", v.kv_lens);
  f("page_table", table(v.page_table));
  f("index_lens", v.index_lens);
  f("window_slots", v.window_slots);
  f("window_lens", v.window_lens);
  f("compressed_lens", v.compressed_lens);
  f("compressed_out_slots", v.compressed_out_slots);
  f("compressed_table", table(v.compressed_table));
  f("state_before", v.state_before);
  f("state_table", table(v.state_table));
}

class Step {
 public:
  /// Allocates all arrays. The plan must outlive the step. Errors: a plan or bound with negative
  /// numbers, pools without pages, options out of range.
  static Result<Step> make(const Plan& plan, const StepOptions& options, const StepBound& bound);
  static Result<Step> make(const Plan& plan, const StepOptions& options) {
    return make(plan, options, step_bound(plan));
  }

  /// Fills the arrays for a batch; allocates nothing unless it fails. Zero requests and zero rows
  /// are legal. Errors, naming request and field: more rows, requests, context or keys than the
  /// bound or, for grouped queries, than the compact buffer (code exhausted);
  /// pages that are missing where keys are read or written, or outside the pool; a phase without
  /// routes; several rows of a request in decode; negative counts. After an error the view is that
  /// of an empty batch.
  Result<void> plan(const StepBatch& batch);

  const StepView& view() const { return view_; }
  const StepBound& bound() const { return bound_; }
  /// Bytes of all arrays.
  std::int64_t bytes() const;
  /// Fills every array with garbage and empties the view: for tests that no stale contents are
  /// used.
  void poison();

 private:
  struct Arrays {
    std::vector<LocalPos> positions;
    std::vector<std::int32_t> row_request, row_lens;
    std::vector<Slot> out_slots;
    std::vector<std::int32_t> q_indptr, kv_lens;
    std::vector<PageId> page_table, compressed_table, state_table, state_before;
    std::vector<std::int32_t> index_lens;
    std::vector<Slot> window_slots;
    std::vector<std::int32_t> window_lens, compressed_lens;
    std::vector<Slot> compressed_out_slots;

    template <class F>
    void for_each(F f);
  };

  Step(const Plan& plan, const StepOptions& options, const StepBound& bound);
  void allocate();
  Result<void> check(const StepBatch& batch);
  Result<void> check_pages(const StepRequest& request, std::int64_t r) const;
  void fill_rows(const StepBatch& batch);
  Result<void> fill_tables(const StepBatch& batch);
  void fill_selection();
  void fill_window(const StepBatch& batch);
  Result<void> check_gather(const StepBatch& batch) const;

  // Columns of a table of a request's pages, each of so many tokens.
  std::int64_t table_width(std::int64_t context, std::int64_t page_tokens) const;
  // First position that the rows of a request read.
  std::int64_t first_read(const StepRequest& request) const;
  bool windowed() const { return plan_->problem.kind == ProblemKind::window_compressed; }
  std::int32_t ratio() const { return plan_->problem.compress_ratio; }

  const Plan* plan_;
  StepOptions options_;
  StepBound bound_;
  PoolShape main_;
  PoolShape compressed_;  // pages 0 where there is one source
  Arrays arrays_;
  std::vector<PageLists::List> lists_;
  StepView view_;
};

}  // namespace lathe
