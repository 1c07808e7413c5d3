// The indexer's choice of keys for the rows of one segment (DeepSeek sparse attention).
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"

namespace lathe {

/// Quantises the queries (index_fp8's policy, after the Hadamard rotation where op.hadamard) and
/// selects the k best of the keys that each row sees; rows with at most k keys get all of them. Or,
/// with op.choice_rows, takes over what other rows have chosen.
/// Errors: those of index_quantize_q() and index_top_k().
Result<void> select_keys(const OpsContext& ops, const SelectKeys& op);

}  // namespace lathe
