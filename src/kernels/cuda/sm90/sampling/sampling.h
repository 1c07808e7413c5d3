// Sampling by the rule of ops/sampling.h, with the CPU's bits: the inputs of a row, and its
// results.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/float_formats.h"
#include "kernels/sampling.h"

namespace lathe::cuda {

/// A token of the history, for the penalties.
struct SeenToken {
  std::int32_t token = 0;
  std::int32_t answered = 0;  // times it occurs in the answer
};

/// One row; lists are on the device.
struct SampleRow {
  const float* logits = nullptr;  // [vocab]; null: skip the row
  std::uint64_t seed = 0, position = 0;
  double temperature = 1, min_p = 0, top_p = 1;
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::int32_t top_k = -1;
  std::int32_t likeliest = -1;  // likeliest tokens to report with the sampled one; -1: no
                                // log-probabilities
  std::int32_t adjusts = 0;     // whether a logit changes before the temperature is applied
  std::int32_t seen_count = 0, bias_count = 0, ruled_out_count = 0;
  const SeenToken* seen = nullptr;  // each token once
  const LogitBias* bias = nullptr;
  const std::int32_t* ruled_out = nullptr;
  const std::uint32_t* allowed = nullptr;  // [(vocab + 31) / 32] bits; null: all tokens
  // With likeliest >= 0: tokens to report as well.
  const std::int32_t* asked = nullptr;
  std::int32_t asked_count = 0;
  // Index of the row's likeliest tokens in SampleResults::top_tokens and top_logprobs. The
  // log-probabilities of `asked` follow; their top_tokens are not written.
  std::int64_t top = 0;
  std::int32_t place = -1;  // SampleArgs::place
};

/// Where the host reads the results: pinned memory that the device writes.
struct SampleResults {
  std::int32_t* tokens = nullptr;      // [rows] -1: a logit is NaN or infinite
  double* logprobs = nullptr;          // [rows]
  std::int32_t* top_tokens = nullptr;  // likeliest first
  double* top_logprobs = nullptr;
};

struct SampleParams {
  const SampleRow* rows = nullptr;         // [count]
  const SampleResults* results = nullptr;  // on the device, because it differs from step to step
  std::int64_t count = 0;
  std::int64_t vocab = 0;
  std::int32_t workers = 0;        // rows at a time
  std::int32_t blocks = 1;         // thread blocks of a row, a cluster: 1, 2, 4 or 8
  double* values = nullptr;        // [workers, padded_vocab()] temporary
  std::int32_t* tokens = nullptr;  // [count] a copy of SampleResults::tokens for the next step
};

LATHE_HD inline constexpr std::int64_t padded_vocab(std::int64_t vocab) {
  return (vocab + kSumBlock - 1) / kSumBlock * kSumBlock;
}

/// p.blocks with which `workers` rows fill an H100's 132 SMs without waiting for clusters.
std::int32_t blocks_of_row(std::int32_t workers, std::int64_t vocab);
cudaError_t launch_sample(const SampleParams& p, cudaStream_t stream);

/// A sampled token on its way to other ranks: a record of Communicator::share_records().
struct DrawRecord {
  std::int32_t token = -1;
  std::int32_t unused[3] = {};
};

struct PlaceDrawsParams {
  const SampleRow* rows = nullptr;       // [count]
  const std::int32_t* tokens = nullptr;  // [count] SampleParams::tokens
  DrawRecord* records = nullptr;         // by SampleRow::place
  std::int64_t count = 0;
};

/// Copies each row's token to its record.
cudaError_t launch_place_draws(const PlaceDrawsParams& p, cudaStream_t stream);

struct TakeDrawnParams {
  std::int32_t* tokens = nullptr;       // [count] each token_of_draw() is replaced by that token
  const std::int32_t* drawn = nullptr;  // SampleParams::tokens, or tokens of DrawRecords
  std::int64_t count = 0;
  std::int64_t step = 1;  // from one drawn token to the next
};

cudaError_t launch_take_drawn(const TakeDrawnParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
