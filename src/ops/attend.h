// Attention of one segment over the cache, along the route that the plan chose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "attn/plan.h"
#include "attn/registry.h"
#include "attn/step.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pool_view.h"
#include "ops/context.h"

namespace lathe {

struct AttendOp {
  const Plan* plan = nullptr;
  const Registry* registry = nullptr;
  const StepView* step = nullptr;  // of a batch with rows, so that it has a route
  ConstPoolView pool;              // the layer's pages

  RowsView q = {};  // as AttendArgs::q, in the route's q_dtype or f32
  // Sparse problems, except where the route's kind is `ragged`: the selected keys.
  std::span<const std::int32_t> slots = {};  // [rows, slots_width] slots of `pool`, -1 is no key
  std::int64_t slots_width = 0;
  Expansion expansion = {};  // kind `ragged`
  std::span<std::byte> gather_room =
      {};                    // routes with an adapter: the plan's budget "gather", aligned
  MutableRowsView out = {};  // as AttendArgs::out, f32
};

/// Runs the kernel that step->route names; where the route has an adapter, over compact bf16 rows
/// gathered into gather_room. Errors: the kernel's; a kernel that the registry does not hold or
/// that is only described; a room too small for a request.
Result<void> attend(const OpsContext& ops, const AttendOp& op);

}  // namespace lathe
