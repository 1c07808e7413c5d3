// Attention of one segment over the cache, along the route that the plan chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "attn/attend.h"
#include "layout/codec/codec.h"
#include "plan/plan.h"
#include "step/schedule.h"
#include "step/step.h"

namespace lathe {

struct AttendOp {
  const Plan* plan = nullptr;
  const StepView* step = nullptr;  // of a batch with rows, so that it has a route
  ConstPoolView pool;              // the layer's pages
  TensorScales scales = {};        // of the pool, for per-tensor layouts

  RowsView q = {};  // as AttendArgs::q, in the route's q_dtype or f32
  // window_compressed with compressed entries: the layer's pages of them.
  std::optional<ConstPoolView> compressed = std::nullopt;
  // Sparse problems, except where the route's kind is `ragged`: the selected keys, or entries.
  std::span<const std::int32_t> slots = {};  // [rows, slots_width] slots of `pool`, or of
                                             // `compressed`; -1 is no key
  std::int64_t slots_width = 0;
  std::span<const float> sink = {};  // [heads], or empty
  Expansion expansion = {};          // kind `ragged`
  std::span<std::byte> gather_workspace =
      {};                    // routes with an adapter: the plan's budget "gather", aligned
  MutableRowsView out = {};  // as AttendArgs::out, f32
};

/// The pages of a layer.
struct KeyPools {
  ConstPoolView main;
  std::optional<ConstPoolView> compressed = std::nullopt;  // as AttendOp::compressed
};

/// The kernel of a route. Errors: a kernel that no registry holds, or one that is only described.
Result<const Kernel*> kernel_of(const Route& route);

/// Columns of AttendOp::slots; 0: the step's rows attend to all their keys.
std::int64_t slots_width(const AttentionProblem& problem, const StepView& step);

/// Columns of the list of all entries that a step's rows see, which a GPU's kernels read as
/// AttendOp::slots where no indexer chooses among them; else 0.
std::int64_t entries_width(const Plan& plan, const StepView& step);

/// The kernel's arguments without an adapter: keys of op.pool by slots or by the step's page table;
/// on a GPU those of a window, and entries beside them, by slots.
AttendArgs attend_args(const AttendOp& op, const Execution& execution);

/// Calls prepare() of step.route's kernel, unless an adapter runs before it, and gives the schedule
/// that it makes to the step's calls. The step's arrays lie where the kernel reads them; `pools`
/// are those of any of the layers. Errors: the kernel's.
Result<void> make_schedule(const Plan& plan, const KeyPools& pools, const Execution& execution,
                           Schedule& schedule, StepView& step);

}  // namespace lathe
