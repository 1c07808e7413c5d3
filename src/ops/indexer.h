// The lightning indexer: selects the keys that each row of a segment attends to (DeepSeek sparse
// attention).
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"

namespace lathe {

/// Quantises the queries by index_fp8's policy, after the Hadamard rotation if op.hadamard, unless
/// prepare_index() made op.codes. Selects the k best of the keys that each row sees. A row with at
/// most k keys gets all of them.
/// With op.choice_rows nothing is ranked: rows reuse earlier selections.
/// Errors: the errors of index_quantize_q() and index_top_k().
Result<void> select_keys(const OpsContext& ops, const SelectKeys& op);

}  // namespace lathe
