// Errors of /v1/messages.
#pragma once

#include <string>
#include <string_view>

#include "server/openai/api_error.h"

namespace lathe::anthropic {

/// {"type": "error", "error": {"type", "message"}, "request_id"}
std::string error_body(const ApiError& error, std::string_view request_id);

}  // namespace lathe::anthropic
