// The least seconds that a machine needs for what a step of a model reads and computes.
#pragma once

#include <cstdint>

#include "engine/runtime.h"

namespace lathe {

struct StepFloor {
  double bytes = 0;    // of weights and cache that are read
  double seconds = 0;  // 0: not known
};

/// A decode step of `batch` requests with `context` keys each, whose rows choose experts evenly.
StepFloor decode_floor(const Runtime& runtime, std::int64_t batch, std::int64_t context,
                       double bytes_per_second);

/// The prefill of `tokens` tokens behind `depth`, of each of `batch` requests. Known on a GPU, by
/// the peaks of its arithmetic.
StepFloor prefill_floor(const Runtime& runtime, std::int64_t batch, std::int64_t tokens,
                        std::int64_t depth);

}  // namespace lathe
