// Step: the metadata of one forward step, built once and shared by all layers of a plan.
//
// make() allocates the arrays for the largest batch; plan() fills them for each batch and allocates
// nothing. So their addresses never change, and a CUDA graph or a copy on a device may keep them.
// Results depend only on the current batch, never on what the arrays held before.
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
#include "step/prefix_groups.h"

namespace lathe {

/// One request of a batch: `rows` new tokens after `cached` ones. Row j is at position cached + j;
/// after the step the request has cached + rows keys.
struct StepRequest {
  std::span<const PageId> pages;  // of the main pool, in order of positions; may be -1 before the
                                  // window
  std::span<const PageId> compressed_pages;  // of the compressed pool; window_compressed only
  std::int32_t cached = 0;
  std::int32_t rows = 0;
  // The rows only fill a captured batch up: they have no position and no keys, and write nothing.
  bool padding = false;
  // Layer groups with a compressor state: the slot that has the state after the cached tokens, and
  // the slots to write it to, one for every StepOptions::state.page_size tokens. The slot of the
  // last row must be set; others may be -1.
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
  std::int64_t context = 0;      // most keys of a request
  std::int64_t gather_rows = 0;  // rows of the compact buffer; 0: no route reads one
};

/// The largest batch of a plan. The compact buffer has the size of the budget "gather".
StepBound step_bound(const Plan& plan);

struct StepOptions {
  std::int64_t main_pages = 0;        // pages of the main pool, to check page ids
  std::int64_t compressed_pages = 0;  // two sources only
  PoolShape state = {};  // slots of the group's state, one per page_size tokens; 0 pages: no state
  std::int64_t index_multiple = 64;  // widths of index lists are multiples of this
  // For CUDA graphs: page tables are as wide as padded_context() of the batch needs, so that their
  // stride depends on nothing else.
  bool fixed_strides = false;
};

/// `longest` rounded up to a power of two, at least 1024. Captured CUDA graphs are sized for this
/// many keys, so many batches share one graph.
std::int64_t padded_context(std::int64_t longest);

/// The arrays of the current batch. Arrays that the problem or the route does not use are empty.
struct StepView {
  Phase phase = Phase::decode;
  const Route* route = nullptr;     // in the plan; null if the batch has no rows
  std::int64_t rows = 0;            // query rows
  std::int64_t requests = 0;        // padding included
  std::int64_t max_rows = 0;        // most rows of a request
  std::int64_t max_context = 0;     // most keys of a request
  std::int64_t total_context = 0;   // keys of all requests
  std::int64_t selecting_rows = 0;  // rows that need the indexer's logits; 0: it only writes keys
  std::int64_t window_width = 0;    // columns of window_slots

  // Made by the route's kernel (make_schedule() in step/attend_op.h), or null.
  const Schedule* schedule = nullptr;

  std::span<const LocalPos> positions;        // [rows]; -1 for padding
  std::span<const std::int32_t> row_request;  // [rows]
  std::span<const std::int32_t> row_lens;     // [rows] causal number of keys: position + 1
  std::span<const Slot> out_slots;            // [rows] main pool: where the row's key is written
  std::span<const std::int32_t> q_indptr;     // [requests + 1]
  std::span<const std::int32_t> kv_lens;      // [requests]
  PageTableView page_table;                   // [requests, width] main pool

  // Keys that several requests share, in decode and verify steps of plans that look for them.
  SharedPrefixes prefixes;
  PrefixSavings prefix_savings;

  // Sparse selection.
  std::span<const std::int32_t> index_lens;  // [rows] keys (V4: entries) that the indexer ranks

  // window_compressed.
  std::span<const Slot> window_slots;         // [rows, window_width] positions p-w+1 .. p, then -1
  std::span<const std::int32_t> window_lens;  // [rows] min(p + 1, window)
  std::span<const std::int32_t> compressed_lens;  // [rows] visible entries: (p + 1) / ratio
  std::span<const Slot> compressed_out_slots;  // [rows] slot of the entry that the row completes;
                                               // -1. With an index_pool, of the index key
  PageTableView compressed_table;              // [requests, width] compressed pool

  // Layer groups with a compressor state. The state is written after the last row of a request and
  // after every row at the end of a slot's tokens; in phase verify also after each of the request's
  // last rows, as many as a slot has banks. It goes to the slot of that position, unless that is
  // -1. state_before may be the slot of the last row, so it is read before anything is written.
  std::span<const PageId> state_before;  // [requests] -1: no state yet, the request begins here
  PageTableView state_table;             // [requests, width] slot of position / state_tokens
  std::int32_t state_tokens = 0;         // 0: no state
};

/// Calls f(name, span) for every array of a step, in a fixed order. A device copies these.
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
  f("prefixes", v.prefixes.lists);
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

  /// Fills the arrays for a batch. Allocates nothing unless it fails. Zero requests and zero rows
  /// are legal. Errors name request and field: more rows, requests or context than the bound, or,
  /// for grouped queries, more keys than the compact buffer holds (code exhausted); pages that are
  /// outside the pool, or missing although keys are read or written there; a phase without routes;
  /// several rows of a request in decode; negative counts. After an error the view is empty.
  Result<void> plan(const StepBatch& batch);

  const StepView& view() const { return view_; }
  const StepBound& bound() const { return bound_; }
  /// Bytes of all arrays.
  std::int64_t bytes() const;
  /// Fills every array with garbage and empties the view. Tests use it to find reads of stale data.
  void poison();

 private:
  struct Arrays {
    std::vector<LocalPos> positions;
    std::vector<std::int32_t> row_request, row_lens;
    std::vector<Slot> out_slots;
    std::vector<std::int32_t> q_indptr, kv_lens;
    std::vector<std::int32_t> prefixes;
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
  void find_prefixes(const StepBatch& batch);
  void fill_selection(const StepBatch& batch);
  void fill_window(const StepBatch& batch);
  Result<void> check_gather(const StepBatch& batch) const;

  // Columns of a list of window keys. A window longer than the context is never full.
  std::int64_t window_width() const;
  // Columns of a page table for `context` tokens in pages of `page_tokens`.
  std::int64_t table_width(std::int64_t context, std::int64_t page_tokens) const;
  // First position that the request's rows read.
  std::int64_t first_read(const StepRequest& request) const;
  bool windowed() const { return plan_->problem.kind == ProblemKind::window_compressed; }
  std::int32_t ratio() const { return plan_->problem.compress_ratio; }

  const Plan* plan_;
  StepOptions options_;
  StepBound bound_;
  PoolShape main_;
  PoolShape compressed_;  // 0 pages if there is one source
  Arrays arrays_;
  std::vector<PageLists::List> lists_;
  PrefixGrouper prefixes_;
  std::vector<PrefixRequest> prefix_requests_;
  StepView view_;
};

}  // namespace lathe
