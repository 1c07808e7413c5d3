// SamplingParams: how a request's tokens are chosen and when its answer ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"

namespace lathe {

struct LogitBias {
  std::int32_t token = 0;
  float bias = 0;  // added to the logit
};

/// Neutral values leave the model's distribution as it is.
struct SamplingParams {
  float temperature = 1;    // 0: the likeliest token (greedy)
  std::int32_t top_k = -1;  // the k likeliest tokens; -1: all
  float top_p = 1;          // the fewest likeliest tokens whose probability reaches top_p
  float min_p = 0;          // tokens at least min_p times as likely as the likeliest
  // Without one the engine derives it from its own seed and the request's number.
  std::optional<std::uint64_t> seed;

  float repetition_penalty = 1;  // of tokens in prompt or answer: logit / r if positive, else * r
  float frequency_penalty = 0;   // taken off the logit for each time the answer has the token
  float presence_penalty = 0;    // taken off once if the answer has the token
  std::vector<LogitBias> logit_bias;

  std::vector<std::int32_t> stop_token_ids;  // end the answer, as the model's own do
  bool ignore_eos = false;                   // the model's own do not
  // Tokens of the answer, a stop token included. Unset: as many as context and cache can hold.
  std::optional<std::int32_t> max_tokens;
  std::int32_t min_tokens = 0;  // no stop token before the answer has this many

  // Log-probabilities of each token and of the n likeliest; unset: none.
  std::optional<std::int32_t> logprobs;
};

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
