// Makes the parameters of qkv.h from an operator's arguments.
#pragma once

#include <optional>

#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/rowwise/qkv.h"
#include "kernels/operators.h"

namespace lathe::cuda {

/// Nothing where one pass does not suit the arguments, or where they contradict each other, which
/// the operators for each part report.
std::optional<QkvParams> qkv_params(const QkvRows& op, const PoolView& pool,
                                    const RopeTableView& table, ValueWords* counts);

}  // namespace lathe::cuda
