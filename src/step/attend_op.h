// Attention of one segment over the KV cache, with the kernel of the step's route.
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
  const StepView* step = nullptr;  // must have rows, and so a route
  ConstPoolView pool;              // the layer's pages
  TensorScales scales = {};        // the pool's scales, for per-tensor layouts

  RowsView q = {};  // as AttendArgs::q, in the route's q_dtype or f32
  // window_compressed with compressed entries: the layer's pages of entries.
  std::optional<ConstPoolView> compressed = std::nullopt;
  // Sparse problems, unless the route's kind is `ragged`: the selected keys or entries.
  std::span<const std::int32_t> slots = {};  // [rows, slots_width] slots of `pool`, or of
                                             // `compressed` for entries; -1: no key
  std::int64_t slots_width = 0;
  std::span<const float> sink = {};  // [heads], or empty
  Expansion expansion = {};          // kind `ragged`
  std::span<std::byte> gather_workspace =
      {};                    // routes with an adapter: bytes of the budget "gather", aligned
  MutableRowsView out = {};  // as AttendArgs::out, f32
};

/// The pages of a layer.
struct KeyPools {
  ConstPoolView main;
  std::optional<ConstPoolView> compressed = std::nullopt;  // as AttendOp::compressed
};

/// The kernel of a route. Errors: the kernel is in no registry, or has no function to run.
Result<const Kernel*> kernel_of(const Route& route);

/// Columns of AttendOp::slots. 0: the step's rows attend to all their keys.
std::int64_t slots_width(const AttentionProblem& problem, const StepView& step);

/// GPU, layers with compressed entries and no indexer: columns of a list of all entries of each
/// row, which goes in AttendOp::slots. Otherwise 0.
std::int64_t entries_width(const Plan& plan, const StepView& step);

/// The kernel's arguments for a route without an adapter: keys of op.pool by op.slots or by the
/// step's page table. On a GPU, keys of a window and compressed entries are both given by slots.
AttendArgs attend_args(const AttendOp& op, const Execution& execution);

/// Calls prepare() of the kernel of step.route and sets step.schedule to the result. Does nothing
/// if the route has an adapter. The step's arrays must be in the memory that the kernel reads;
/// `pools` may be the pools of any layer. Errors: the kernel's.
Result<void> make_schedule(const Plan& plan, const KeyPools& pools, const Execution& execution,
                           Schedule& schedule, StepView& step);

}  // namespace lathe
