// Bodies of /v1/responses.
#pragma once

#include <string_view>

#include "server/openai/api_request.h"
#include "server/openai/fields.h"

namespace lathe::responses_api {

const FieldTable& fields();

/// As parse_request(), for /v1/responses: input, instructions and tools become chat's messages and
/// tools.
Result<ApiRequest, ApiError> parse_request(std::string_view body, const FieldLimits& limits);

}  // namespace lathe::responses_api
