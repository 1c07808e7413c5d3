// Sampling: from rows of logits to tokens, in these steps:
//
//   1 penalties   repetition, then frequency, then presence
//   2 bias        logit_bias is added, tokens that are ruled out become -inf
//   3 temperature w_i = e^((x_i - max x) * (1 / temperature)); 0 picks the token with the largest x
//   4 min_p       keeps w_i >= min_p
//   5 top_k       keeps the k largest of those
//   6 top_p       keeps the fewest largest until their sum reaches top_p times the sum of all of 5
//   7 choice      the kept token with the smallest E_i / w_i, E_i = -ln u_i
//
// Among equals the lower id ranks first, in step 7 too. A token of weight 0 is never chosen.
//
// Step 7 samples exactly in proportion to the weights (a race of exponential clocks, the Gumbel
// trick), and two similar distributions sampled with the same noise mostly give the same token. u_i
// is uniform in (0, 1) and a function of (seed, position, token) (token_noise()). So the token
// depends only on the bits of the logits, the parameters, the history, the seed and the position.
//
// All arithmetic is f64, with the exponential and logarithm of kernels/sampling_math.h. Sums go
// over all weights by id, with 0 for tokens that do not count: in a block of 1024 ids, lane l of 32
// adds ids l, l + 32, ... in this order, then lane l adds lane l + 16, + 8, + 4, + 2, + 1, and the
// blocks are added in order. The sum for top_p counts the kept tokens only. As rounding is
// monotonic, it never falls when a token joins, so a binary search finds the fewest tokens that
// reach the share.
#pragma once

#include <optional>
#include <span>

#include "kernels/context.h"
#include "kernels/sampling.h"
#include "ops/sampling_params.h"

namespace lathe {

/// Samples out[i] from rows[i]; out[i] is nullopt if a logit is NaN or infinite. `rows`, what they
/// point to, and `out` must stay until Backend::wait(), after which `out` holds the tokens. The CPU
/// runs one row per thread. Once a call with as many rows of this vocabulary has run, only
/// log-probabilities of the most likely tokens allocate.
void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
            std::span<std::optional<SampledToken>> out);

}  // namespace lathe
