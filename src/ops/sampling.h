// Sampling: from rows of logits to tokens.
//
//   1 penalties   repetition, then frequency, then presence
//   2 bias        logit_bias is added, tokens that are ruled out become -inf
//   3 temperature w_i = e^((x_i - max x) * (1 / temperature)); 0 takes the token with the largest x
//   4 min_p       keeps w_i >= min_p
//   5 top_k       keeps the k largest of those
//   6 top_p       keeps the fewest largest whose sum reaches top_p times the sum of what is left
//   7 draw        the kept token with the smallest E_i / w_i, E_i = -ln u_i
//
// Among equals the lower id ranks first, in a draw too. A token of weight 0 takes no part.
//
// The draw is an exact one from the weights (a race of exponential clocks, the Gumbel trick), and
// two similar distributions drawn from with the same noise mostly give the same token. u_i is
// uniform in (0, 1) and a function of (seed, position, token) (token_noise()); so a token depends
// on the bits of the logits, the parameters, the history, seed and position, and on nothing else.
//
// All of it is f64. Exponential and logarithm are those of kernels/sampling_math.h. A sum goes over
// the weights by id, 0 where a token is not counted: in a block of 1024 ids lane l of 32 adds ids
// l, l + 32, ... in this order, then lane l adds lane l + 16, + 8, + 4, + 2, + 1, and blocks are
// added in order. The sum for top_p counts the kept tokens alone; as rounding is monotonic, it
// never falls when a token joins, so a search finds the fewest tokens that reach the share.
#pragma once

#include <optional>
#include <span>

#include "kernels/context.h"
#include "kernels/sampling.h"
#include "ops/sampling_params.h"

namespace lathe {

/// out[i] is drawn from rows[i]: nothing where a logit is NaN or infinite. Both stay as they are
/// until the backend has been waited for, which is when `out` holds the tokens. On the CPU rows run
/// on all threads, each on one; after a call with as many rows as long, only log-probabilities of
/// the most likely tokens allocate.
void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
            std::span<std::optional<SampledToken>> out);

}  // namespace lathe
