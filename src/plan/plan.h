// Plan: a prefill kernel, a cache layout and a decode kernel that are proved to fit together, and
// everything that follows from them: pools, routes, buffers.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attn/capability.h"
#include "attn/machine.h"
#include "attn/phase.h"
#include "attn/problem.h"
#include "attn/shared_prefixes.h"
#include "layout/layout.h"

namespace lathe {

/// main: the keys of the request (V4: its sliding window); compressed: V4's compressed entries;
/// index: the indexer's keys.
#define LATHE_CACHE_ROLES(X) X(main) X(compressed) X(index)
LATHE_ENUM(CacheRole, LATHE_CACHE_ROLES)

/// A pool that the plan needs in each layer.
struct CachePlan {
  CacheRole role = CacheRole::main;
  CacheLayout layout{LayoutKind::mla_bf16};
  std::int32_t page_size = 64;        // entries per page
  std::int32_t tokens_per_entry = 1;  // of a compressed entry or an index key

  std::int64_t page_bytes() const { return layout.page_stride(page_size); }
  bool operator==(const CachePlan&) const = default;
};

/// A conversion that runs before the kernel.
struct AdapterUse {
  std::string name;
  std::int64_t in_bytes = 0;   // of a stored row
  std::int64_t out_bytes = 0;  // of a row that the kernel reads
  bool whole_pool = false;
  bool exact = true;

  bool operator==(const AdapterUse&) const = default;
};

/// The kernel of a route. The registry must outlive the plan. Null in a plan that was read from
/// JSON. Always equal, because routes compare the kernel's name.
struct BoundKernel {
  const Kernel* kernel = nullptr;

  bool operator==(const BoundKernel&) const { return true; }
};

/// A kernel for batches of a phase with rows and longest context within the bounds.
struct Route {
  std::string kernel;
  BoundKernel bound;
  KernelKind kind = KernelKind::inplace;
  std::int64_t min_rows = 0;     // rows of each request
  std::int64_t max_rows = 0;     // rows of the batch; 0 = no bound
  std::int64_t max_context = 0;  // keys of the longest request; 0 = no bound
  KeyUnit unit = KeyUnit::slot;
  Arithmetic arithmetic = Arithmetic::bf16;
  DType q_dtype = DType::bf16;  // type of q after RoPE, as the kernel reads it
  std::optional<AdapterUse> adapter;
  std::int32_t table_tokens = 1;
  bool split_kv = false;
  std::int64_t split_bytes = 0;  // as in the Capability
  std::int64_t worker_rows = 0;
  std::int64_t expanded_bytes = 0;
  double seconds = 0;  // estimated for the nominal step (cost.h)

  bool operator==(const Route&) const = default;
};

struct PhasePlan {
  Phase phase = Phase::extend;
  std::string requested = "auto";
  std::vector<Route> routes;  // in order of preference; the last one covers every batch. Empty: no
                              // kernel for this phase

  bool operator==(const PhasePlan&) const = default;
};

/// The large buffers of a plan, with their names in text and JSON.
// clang-format off
#define LATHE_BUDGET_KINDS(X)             \
  X(indexer_logits, "indexer logits")     \
  X(top_k_rows, "top-k rows")             \
  X(gather, "gather")                     \
  X(split_partials, "split partials")     \
  X(worker_rows, "worker rows")           \
  X(expanded_keys, "expanded keys")       \
  X(compressor_state, "compressor state") \
  X(delta_states, "delta states")         \
  X(step, "step")                         \
  X(activations, "activations")           \
  X(hidden_rows, "hidden rows")           \
  X(schedules, "schedules")               \
  X(expert_rows, "expert rows")           \
  X(widened_weights, "widened weights")   \
  X(logits, "logits")                     \
  X(dealt_logits, "dealt logits")         \
  X(exchange, "exchange")                 \
  X(sampler, "sampler")                   \
  X(rope_tables, "rope tables")           \
  X(norm_codes, "norm codes")             \
  X(graphs, "graphs")                     \
  X(reserve, "reserve")
// clang-format on
LATHE_ENUM_WITH_TEXT(BudgetKind, LATHE_BUDGET_KINDS)

/// A buffer. If it has a limit, work is tiled to fit it.
struct Budget {
  BudgetKind kind = BudgetKind::step;
  std::int64_t bytes = 0;
  std::int64_t tile_rows = 0;  // query rows per tile; 0 = all rows at once

  bool operator==(const Budget&) const = default;
};

struct Plan {
  AttentionProblem problem;
  Device device = Device::cpu;
  std::vector<CachePlan> caches;  // main first
  std::array<PhasePlan, enum_count<Phase>> phases;
  std::int32_t table_multiple = 1;  // page tables are padded to a multiple of this many pages
  std::int64_t max_rows = 0;        // most query rows of a step
  std::int64_t max_requests = 0;    // most requests of a step
  std::int32_t draft_tokens = 0;    // most drafts of a request in a verify step; 0 = no drafts
  std::int64_t context_length = 0;  // tokens
  PrefixSharing prefixes;           // of decode and verify steps
  std::int32_t layers = 1;
  std::int32_t index_layers = 1;  // layers with an index cache; the others reuse a selection
  std::vector<Budget> budgets;
  std::vector<std::string> notes;  // how each `auto` was resolved

  const CachePlan& main() const { return caches.front(); }
  const CachePlan* cache(CacheRole role) const {
    for (const CachePlan& c : caches) {
      if (c.role == role) return &c;
    }
    return nullptr;
  }
  /// nullptr if the plan has no such buffer.
  const Budget* budget(BudgetKind kind) const {
    for (const Budget& b : budgets) {
      if (b.kind == kind) return &b;
    }
    return nullptr;
  }
  const PhasePlan& phase(Phase p) const { return phases[static_cast<std::size_t>(p)]; }
  PhasePlan& phase(Phase p) { return phases[static_cast<std::size_t>(p)]; }

  /// The route for a batch of `rows` query rows in which each request has at least `request_rows`
  /// rows and at most `context` keys. nullptr if the phase has no kernel or the batch exceeds the
  /// plan.
  const Route* route(Phase p, std::int64_t rows, std::int64_t context,
                     std::int64_t request_rows) const {
    for (const Route& r : phase(p).routes) {
      if ((r.max_rows == 0 || rows <= r.max_rows) && request_rows >= r.min_rows &&
          (r.max_context == 0 || context <= r.max_context)) {
        return &r;
      }
    }
    return nullptr;
  }
  /// The route for a batch of one request.
  const Route* route(Phase p, std::int64_t rows, std::int64_t context) const {
    return route(p, rows, context, rows);
  }
  /// Number of layers with a pool of that role.
  std::int32_t layers_of(CacheRole role) const {
    return role == CacheRole::index ? index_layers : layers;
  }
  /// Bytes per token in all layers and pools, page padding included. A fraction if an entry covers
  /// several tokens.
  double bytes_per_token() const {
    double sum = 0;
    for (const CachePlan& c : caches) {
      // V4's window keeps only the last tokens, whatever the context.
      if (c.role == CacheRole::main && problem.kind == ProblemKind::window_compressed) continue;
      sum += layers_of(c.role) * static_cast<double>(c.page_bytes()) /
             (double{1} * c.page_size * c.tokens_per_entry);
    }
    return sum;
  }

  bool operator==(const Plan&) const = default;
};

}  // namespace lathe
