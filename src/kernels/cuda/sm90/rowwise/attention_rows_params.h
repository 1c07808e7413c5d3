// Converts operators' arguments to the parameters of qkv.h, latent_rows.h, whole_rows.h and
// indexer_rows.h. Returns nothing if the single pass does not support the arguments, or if they
// contradict each other, which the separate operators report.
#pragma once

#include <optional>

#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/rowwise/indexer_rows.h"
#include "kernels/cuda/sm90/rowwise/latent_rows.h"
#include "kernels/cuda/sm90/rowwise/qkv.h"
#include "kernels/cuda/sm90/rowwise/whole_rows.h"
#include "kernels/operators.h"

namespace lathe::cuda {

std::optional<QkvParams> qkv_params(const QkvRows& op, const PoolView& pool,
                                    const RopeTableView& table, ValueWords* counts);

/// nope: bf16 [T, heads * qk_nope], output for the columns that do not rotate if op.absorbs;
/// otherwise they go to op.q_out.
std::optional<LatentRowsParams> latent_rows_params(const LatentRows& op, const PoolView& pool,
                                                   const RopeTableView& table, ValueWords* counts,
                                                   const MutableRowsView& nope);

/// The caller sets queries.pages.data, to at least op.q.rows * queries.pages.stride bytes.
std::optional<IndexerRowsParams> indexer_rows_params(const IndexerRows& op, const PoolView& pool,
                                                     const RopeTableView& table);
std::optional<WholeRowsParams> whole_rows_params(const LatentRows& op, const PoolView& pool,
                                                 const RopeTableView& table);

}  // namespace lathe::cuda
