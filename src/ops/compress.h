// Compressed entries of a step's rows (DeepSeek V4). kernels/compress.h says what is computed.
#pragma once

#include "base/result.h"
#include "kernels/compress.h"
#include "kernels/context.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Writes the entries that the step's rows complete, and the states that it asks for
/// (StepView::state_before). A request's entries and states have the same bits however its rows are
/// cut into steps. Errors: the errors of encode_rows().
Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool);

}  // namespace lathe
