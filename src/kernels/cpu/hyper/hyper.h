// Hyper-connections on the CPU. Arguments as in ops/hyper.h.
#pragma once

#include "base/execution.h"
#include "kernels/hyper.h"

namespace lathe {

void cpu_hyper_mix(const Execution& execution, const HyperMix& op);
void cpu_hyper_add(const Execution& execution, const HyperAdd& op);
void cpu_hyper_head(const Execution& execution, const HyperHead& op);

}  // namespace lathe
