// Bodies of /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <string_view>

#include "server/openai/api_request.h"
#include "server/openai/fields.h"

namespace lathe::anthropic {

const FieldTable& fields();

/// As parse_request(), for /v1/messages: system, messages and tools become chat's. `counts`: for
/// count_tokens, which needs no max_tokens.
Result<ApiRequest, ApiError> parse_request(std::string_view body, const FieldLimits& limits,
                                           bool counts = false);

}  // namespace lathe::anthropic
