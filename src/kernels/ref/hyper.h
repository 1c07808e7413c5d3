// Hyper-connections in double precision. Arguments as in ops/hyper.h.
#pragma once

#include "kernels/hyper.h"

namespace lathe {

void ref_hyper_mix(const HyperMix& op);
void ref_hyper_add(const HyperAdd& op);
void ref_hyper_head(const HyperHead& op);

}  // namespace lathe
