// Delta-rule layers (gated delta net, Kimi delta attention). kernels/delta_rule.h says what is
// computed.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/delta_rule.h"

namespace lathe {

/// Computes the step's rows of a delta-rule layer and writes the states that the step asks for
/// (StepView::state_before). Rows with position -1 only pad the batch: their outputs are undefined.
/// Errors: a device without kernels for these widths (unsupported, names the width), a failed
/// launch.
Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op);

}  // namespace lathe
