// Checks of SamplingParams (kernels/sampling.h), and the stop tokens that follow from them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/sampling.h"

namespace lathe {

/// Errors, named as SGLang names the parameters (max_new_tokens, min_new_tokens, stop_token_ids,
/// ...): a value that is not finite or out of range, a token outside [0, vocab), min_tokens where
/// every token of the vocabulary is a stop token. `eos`: the model's own stop tokens.
Result<void> check_sampling_params(const SamplingParams& params, std::int32_t vocab,
                                   std::span<const std::int32_t> eos);

/// Tokens that end this request's answer, ascending and distinct: its own and, unless ignore_eos,
/// the model's.
std::vector<std::int32_t> stop_tokens(const SamplingParams& params,
                                      std::span<const std::int32_t> eos);

}  // namespace lathe
