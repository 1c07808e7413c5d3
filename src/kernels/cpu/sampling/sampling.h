// Sampling on the CPU.
#pragma once

#include <optional>
#include <span>

#include "base/execution.h"
#include "kernels/sampling.h"

namespace lathe {

/// out[i] of rows[i], nothing where a logit is not finite. A row runs on one thread and takes its
/// temporaries from execution.scratch, 28 bytes per token of the vocabulary and thread. Bits depend
/// neither on threads nor on the SIMD target.
void cpu_sample(const Execution& execution, std::span<const SampleArgs> rows,
                std::span<std::optional<SampledToken>> out);

}  // namespace lathe
