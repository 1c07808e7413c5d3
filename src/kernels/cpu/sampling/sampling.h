// Sampling on the CPU: penalties, filters, the choice of a token, log-probabilities.
#pragma once

#include <optional>
#include <span>

#include "base/execution.h"
#include "kernels/sampling.h"

namespace lathe {

/// Samples out[i] from rows[i]; nullopt if a logit is not finite. A row runs on one thread, with
/// temporaries in execution.scratch: 28 bytes per token of the vocabulary and thread. Bits depend
/// neither on threads nor on the SIMD target.
void cpu_sample(const Execution& execution, std::span<const SampleArgs> rows,
                std::span<std::optional<SampledToken>> out);

}  // namespace lathe
