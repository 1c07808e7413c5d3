// Exchanges between ranks: sums of partial results, and rows of logits. Preconditions:
// ops.communicator is not null, and all ranks make the same calls with the same shapes
// (kernels/communicator.h).
#pragma once

#include "kernels/communicator.h"
#include "kernels/context.h"

namespace lathe {

/// Rows for a rank's partial result, which the next exchange sums: of the dtype
/// Backend::activations(), or f32 where the sum must be exact.
MutableRowsView alloc_partial(const OpsContext& ops, std::int64_t rows, std::int64_t cols);
MutableRowsView alloc_partial(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                              DType dtype);

/// op.out = sum over ranks of op.partial, or += with op.add, summed in f32 in the order of ranks.
/// All ranks get the same bits. [T, n]
void sum_rows(const OpsContext& ops, const SumRows& op);

/// sum_rows() added to op.x, then op.h = rms_norm() of op.x. [T, n]. With op.owned a rank may have
/// only its own rows of op.x.
void sum_norm(const OpsContext& ops, const SumNorm& op);

/// From a rank's columns of all rows to all columns of its rows: rank, rank + size, ... The bits of
/// every element stay as they are.
void trade_columns(const OpsContext& ops, const TradeColumns& op);

}  // namespace lathe
