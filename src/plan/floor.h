// What attention reads and computes in all layers of a plan, whatever the kernel: with the
// machine's peaks a floor under a step's time.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace lathe {

/// Bytes of the cache that a decode row reads whose request has `context` keys, its own included.
double decode_cache_bytes(const Plan& plan, std::int64_t context);

/// Floating-point operations, two a multiply-add.
struct AttentionFlops {
  double attention = 0;  // scores and sums of values, of the keys that a row attends to
  double index = 0;      // of the indexer, whose keys are fp8
};

/// Of `rows` rows of a request behind `cached` keys. Keys and values of a latent problem count as
/// expanded where the phase's route expands them; expanding them counts as a product with weights.
AttentionFlops attention_flops(const Plan& plan, Phase phase, std::int64_t rows,
                               std::int64_t cached);

}  // namespace lathe
