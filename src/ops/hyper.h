// Hyper-connections: what a layer's parts read of a state of several streams, and how they write to
// it (DeepSeek V4; arXiv 2512.24880). kernels/hyper.h says what is computed. All of it is f32 in a
// fixed order, and a row's bits depend on that row alone. On a host only.
#pragma once

#include "kernels/context.h"
#include "kernels/hyper.h"

namespace lathe {

/// out and mix are apart from x.
void hyper_mix(const OpsContext& ops, const HyperMix& op);
/// y is apart from x.
void hyper_add(const OpsContext& ops, const HyperAdd& op);
/// out is apart from x.
void hyper_head(const OpsContext& ops, const HyperHead& op);

}  // namespace lathe
