// Tool choices of type allowed_tools, of /v1/chat/completions and /v1/responses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/openai/api_error.h"
#include "server/openai/api_request.h"

namespace lathe {

/// Reads {"mode": "auto" or "required", "tools": [...]} at `path`, and sets tool_choice and
/// allowed_tools. `nested`: a tool's name is in its member "function", as in chat. Tools that the
/// server lacks are named as ignored. Errors: 400 with the path; none is left.
std::optional<ApiError> read_allowed_tools(const nlohmann::ordered_json& choice,
                                           const std::string& path, bool nested,
                                           ApiRequest& request);

}  // namespace lathe
