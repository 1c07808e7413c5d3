// Hyper-connections: the parts of a layer (attention, feed-forward) read a mix of several residual
// streams and write back to all of them (DeepSeek V4; arXiv 2512.24880). kernels/hyper.h says what
// is computed. Everything is f32 in a fixed order, so a row's bits depend on that row alone. A GPU
// has 4 streams only.
#pragma once

#include "kernels/context.h"
#include "kernels/hyper.h"

namespace lathe {

/// out and mix must not overlap x.
void hyper_mix(const OpsContext& ops, const HyperMix& op);
/// y must not overlap x.
void hyper_add(const OpsContext& ops, const HyperAdd& op);
/// out must not overlap x.
void hyper_head(const OpsContext& ops, const HyperHead& op);

}  // namespace lathe
