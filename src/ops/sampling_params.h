// Checks of SamplingParams (kernels/sampling.h), and the stop tokens that follow from them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/sampling.h"

namespace lathe {

/// Errors: a value that is not finite or is out of range, a token outside [0, vocab), min_tokens
/// when every token of the vocabulary is a stop token. They name the parameters as SGLang does
/// (max_new_tokens, min_new_tokens, stop_token_ids, ...). `eos`: the model's own stop tokens.
Result<void> check_sampling_params(const SamplingParams& params, std::int32_t vocab,
                                   std::span<const std::int32_t> eos);

/// Tokens that end this request's answer, ascending and distinct: its own and, unless ignore_eos,
/// the model's.
std::vector<std::int32_t> stop_tokens(const SamplingParams& params,
                                      std::span<const std::int32_t> eos);

}  // namespace lathe
