// Sampling on the reference device: the steps of ops/sampling.h one by one, over a sorted list.
#pragma once

#include <optional>
#include <span>

#include "kernels/sampling.h"

namespace lathe {

/// Samples out[i] from rows[i]; nullopt if a logit is not finite. O(vocab log vocab) per row.
void ref_sample(std::span<const SampleArgs> rows, std::span<std::optional<SampledToken>> out);

}  // namespace lathe
