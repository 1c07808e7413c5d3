// Sampling by the rule of ops/sampling.h, the same bits as on the CPU: what a row is drawn from,
// and what comes back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/sampling.h"

namespace lathe::cuda {

/// A token of the history that a penalty looks at.
struct SeenToken {
  std::int32_t token = 0;
  std::int32_t answered = 0;  // times that the answer has it
};

/// One row; lists lie on the device.
struct SampleRow {
  const float* logits = nullptr;  // [vocab]; null: nothing is drawn
  std::uint64_t seed = 0, position = 0;
  double temperature = 1, min_p = 0, top_p = 1;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::int32_t top_k = -1;
  std::int32_t likeliest = -1;  // that are wanted besides the token's own log-probability; -1: none
  std::int32_t adjusts = 0;     // whether a logit changes before the temperature
  std::int32_t seen_count = 0, bias_count = 0, ruled_out_count = 0;
  const SeenToken* seen = nullptr;  // each token once
  const LogitBias* bias = nullptr;
  const std::int32_t* ruled_out = nullptr;
  const std::uint32_t* allowed = nullptr;  // [(vocab + 31) / 32] bits; null: all tokens
  // With likeliest >= 0: tokens whose log-probabilities are wanted as well.
  const std::int32_t* asked = nullptr;
  std::int32_t asked_count = 0;
  // Place of the row's likeliest in SampleResults::top_tokens and top_logprobs; those asked for
  // follow them, without tokens.
  std::int64_t top = 0;
};

/// Where the host finds what was drawn: in pinned memory, which the device writes to.
struct SampleResults {
  std::int32_t* tokens = nullptr;      // [rows] -1: a logit is NaN or infinite
  double* logprobs = nullptr;          // [rows]
  std::int32_t* top_tokens = nullptr;  // likeliest first
  double* top_logprobs = nullptr;
};

struct SampleParams {
  const SampleRow* rows = nullptr;         // [count]
  const SampleResults* results = nullptr;  // on the device, as it differs from step to step
  std::int64_t count = 0;
  std::int64_t vocab = 0;
  std::int32_t workers = 0;        // blocks
  double* values = nullptr;        // [workers, padded_vocab()] temporary
  std::int32_t* tokens = nullptr;  // [count] as SampleResults, for the next step
};

LATHE_HD inline constexpr std::int64_t padded_vocab(std::int64_t vocab) {
  return (vocab + kSumBlock - 1) / kSumBlock * kSumBlock;
}

cudaError_t launch_sample(const SampleParams& p, cudaStream_t stream);

struct TakeDrawnParams {
  std::int32_t* tokens = nullptr;       // [count] each token_of_draw() becomes that token
  const std::int32_t* drawn = nullptr;  // SampleParams::tokens
  std::int64_t count = 0;
};

cudaError_t launch_take_drawn(const TakeDrawnParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
