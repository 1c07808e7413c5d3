// Makes the parameters of qkv.h and latent_rows.h from operators' arguments. Nothing where one pass
// does not suit the arguments, or where they contradict each other, which the operators for each
// part report.
#pragma once

#include <optional>

#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/rowwise/latent_rows.h"
#include "kernels/cuda/sm90/rowwise/qkv.h"
#include "kernels/operators.h"

namespace lathe::cuda {

std::optional<QkvParams> qkv_params(const QkvRows& op, const PoolView& pool,
                                    const RopeTableView& table, ValueWords* counts);

/// nope: bf16 [T, heads * qk_nope], where the columns that do not rotate go if op.absorbs; else
/// they go to op.q_out.
std::optional<LatentRowsParams> latent_rows_params(const LatentRows& op, const PoolView& pool,
                                                   const RopeTableView& table, ValueWords* counts,
                                                   const MutableRowsView& nope);

}  // namespace lathe::cuda
