// The least seconds that a machine needs for the bytes and arithmetic of a model's step.
#pragma once

#include <cstdint>

#include "engine/runtime.h"

namespace lathe {

struct StepFloor {
  double bytes = 0;    // of weights and cache that are read
  double seconds = 0;  // 0: not known
};

/// A decode step of `batch` requests with `context` keys each. Assumes an even choice of experts.
StepFloor decode_floor(const Runtime& runtime, std::int64_t batch, std::int64_t context,
                       double bytes_per_second);

/// The prefill of `tokens` tokens after `depth` cached ones, for each of `batch` requests. Known on
/// a GPU alone, by its peak arithmetic.
StepFloor prefill_floor(const Runtime& runtime, std::int64_t batch, std::int64_t tokens,
                        std::int64_t depth);

}  // namespace lathe
