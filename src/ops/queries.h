// The way of queries from their projection to an attention kernel.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"

namespace lathe {

/// Norms each head of op.x where op.norms, rotates its first table.dim() elements (apply_rope,
/// forward) and rounds it once, to op.out. op.x is scratch: it may hold any step of that way
/// afterwards. Errors are those of rotate_rows().
Result<void> prepare_queries(const OpsContext& ops, const QueryRows& op);

}  // namespace lathe
