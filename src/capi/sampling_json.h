// A request's parameters as a JSON object.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/sampling.h"
#include "model/config/config.h"

namespace lathe::capi {

struct RequestParams {
  SamplingParams sampling;
  std::vector<std::string> stop;
  std::string cache_salt;  // empty: none
  std::int32_t priority = 0;
};

/// `text` may be null; missing keys have the model's defaults. Errors: an unknown key (lists the
/// known ones), a value of another type. Engine::submit() checks ranges.
Result<RequestParams> read_params(const char* text, const GenerationDefaults& defaults);

}  // namespace lathe::capi
