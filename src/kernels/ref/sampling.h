// Sampling on the reference device, step by step as the rule (ops/sampling.h) states it.
#pragma once

#include <optional>
#include <span>

#include "kernels/sampling.h"

namespace lathe {

/// out[i] of rows[i], nothing where a logit is not finite. O(vocab log vocab) a row.
void ref_sample(std::span<const SampleArgs> rows, std::span<std::optional<SampledToken>> out);

}  // namespace lathe
