// The samplers' arguments. ops/sampling.h defines what they compute.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lathe {

struct LogitBias {
  std::int32_t token = 0;
  float bias = 0;  // added to the logit
};

/// How a request's tokens are sampled and when its answer ends. The default values leave the
/// model's distribution as it is. Samplers read the fields up to logit_bias, and logprobs.
struct SamplingParams {
  float temperature = 1;    // 0: the most likely token (greedy)
  std::int32_t top_k = -1;  // the k most likely tokens; -1: all
  float top_p = 1;          // the fewest most likely tokens with a total probability >= top_p
  float min_p = 0;          // tokens at least min_p times as likely as the most likely one
  // Unset: the engine derives one from its own seed and the request's number.
  std::optional<std::uint64_t> seed;

  float repetition_penalty = 1;  // of tokens in prompt or answer: logit / r if positive, else * r
  float frequency_penalty = 0;   // subtracted from the logit for each time the answer has the token
  float presence_penalty = 0;    // subtracted once if the answer has the token
  std::vector<LogitBias> logit_bias;

  std::vector<std::int32_t> stop_token_ids;  // end the answer, in addition to the model's own
  bool ignore_eos = false;                   // the model's own stop tokens do not end it
  // Most tokens of the answer, a stop token included. Unset: what context and cache can hold.
  std::optional<std::int32_t> max_tokens;
  std::int32_t min_tokens = 0;  // no stop token before the answer has this many tokens

  // n: report the log-probability of each sampled token and of the n most likely. Unset: none.
  std::optional<std::int32_t> logprobs;
  std::vector<std::int32_t> logprob_ids;  // with logprobs: report these tokens too
};

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;  // natural log, in the model's distribution before any parameter is applied
};

struct SampledToken {
  std::int32_t token = 0;
  std::optional<double> logprob;         // set if params.logprobs is
  std::vector<TokenLogprob> top;         // [params.logprobs] most likely first
  std::vector<TokenLogprob> asked = {};  // [params.logprob_ids] in their order
};

/// One row to sample from.
struct SampleArgs {
  std::span<const float> logits;           // [vocab]
  const SamplingParams* params = nullptr;  // checked
  std::span<const std::int32_t> prompt;    // read by the penalties, as is `answer`
  std::span<const std::int32_t> answer;
  std::span<const std::int32_t> ruled_out;  // not all of the vocabulary
  std::uint64_t seed = 0;
  // [(vocab + 31) / 32] A bit per token: only tokens with a set bit may be sampled. Empty: all may.
  std::span<const std::uint32_t> allowed = {};
  // Tokens after `answer` that a step in flight is still sampling. If there are any, the penalties
  // must be neutral.
  std::int32_t unknown = 0;
  // With several ranks: the number of the row among the rows of all ranks, by which take_drawn()
  // finds its token. It belongs to rank place % ranks.
  std::int64_t place = -1;

  std::uint64_t position() const { return answer.size() + static_cast<std::uint64_t>(unknown); }
};

/// token_of_draw(i): a placeholder for the token that a step in flight samples from row i of its
/// last Backend::sample().
inline constexpr std::int32_t kFirstDraw = -2;
constexpr std::int32_t token_of_draw(std::int64_t i) {
  return static_cast<std::int32_t>(kFirstDraw - i);
}

/// The order of the filters' sums: blocks of token ids, and lanes within a block (ops/sampling.h).
inline constexpr std::int64_t kSumBlock = 1024;
inline constexpr std::int64_t kSumLanes = 32;

/// Whether sampling depends on which tokens came before.
inline bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.frequency_penalty != 0 || p.presence_penalty != 0;
}

/// Whether the parameters change any logit before the temperature does.
inline bool adjusts_logits(const SampleArgs& args) {
  const SamplingParams& p = *args.params;
  return has_penalties(p) || !p.logit_bias.empty() || !args.ruled_out.empty() ||
         !args.allowed.empty();
}

}  // namespace lathe
