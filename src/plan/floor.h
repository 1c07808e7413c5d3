// Bytes that attention must read and flops that it must compute in all layers of a plan, with any
// kernel. Divided by the machine's peaks they are a lower bound of a step's time.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace lathe {

/// Bytes of the cache that a decode row reads if its request has `context` keys, its own included.
double decode_cache_bytes(const Plan& plan, std::int64_t context);

/// Floating-point operations; a multiply-add counts as two.
struct AttentionFlops {
  double attention = 0;  // QK and PV, over the keys that a row attends to
  double index = 0;      // the indexer's scores, in fp8
};

/// Flops for `rows` rows of a request after `cached` keys. A latent problem counts with the widths
/// of expanded keys and values if the phase's route expands them. The expansion itself is not
/// included: it counts as a GEMM with weights.
AttentionFlops attention_flops(const Plan& plan, Phase phase, std::int64_t rows,
                               std::int64_t cached);

}  // namespace lathe
