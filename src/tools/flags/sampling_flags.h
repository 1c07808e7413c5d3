// The flags that become SamplingParams and stop strings.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/config/config.h"
#include "ops/sampling_params.h"
#include "tools/flags/flags.h"

namespace lathe {

struct SamplingFlags {
  // Where a flag is not given, the checkpoint's generation_config.json applies, then greedy.
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int32_t> top_k;
  SamplingParams params;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  std::vector<std::string> stop;
};

void add_sampling_flags(Command command, SamplingFlags& flags);

/// Errors that no model's vocabulary changes, for before its weights load: a number that
/// check_sampling_params() rejects.
Result<void> check_sampling_flags(const SamplingFlags& flags);

/// Errors: a --logit-bias that is not ID=BIAS, values that check_sampling_params() rejects, an
/// empty --stop.
Result<SamplingParams> sampling_params(const SamplingFlags& flags, const ModelConfig& config);

}  // namespace lathe
