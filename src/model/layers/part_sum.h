// Where a part of a layer writes its output: with several ranks each has a partial result, and the
// sum over the ranks is the output.
#pragma once

#include "base/rows.h"
#include "kernels/context.h"
#include "ops/exchange.h"

namespace lathe {

/// Rows for a part's output on its way to `to`: `to` itself, or a rank's partial result. Call
/// sum_part() next, in the same scope of ops.tensors.
inline MutableRowsView part_rows(const OpsContext& ops, const MutableRowsView& to) {
  return ops.communicator == nullptr ? to : alloc_partial(ops, to.rows, to.cols);
}

/// to = the sum of the ranks' `part`, or to += with `add`. Nothing for a single rank, whose part is
/// in `to`.
inline void sum_part(const OpsContext& ops, const MutableRowsView& part, const MutableRowsView& to,
                     bool add) {
  if (ops.communicator != nullptr) sum_rows(ops, {constant(part), to, add});
}

}  // namespace lathe
