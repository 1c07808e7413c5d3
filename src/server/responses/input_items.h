// Input items of /v1/responses as chat messages.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/openai/api_request.h"
#include "server/openai/chat_history.h"

namespace lathe::responses_api {

/// Adds the messages of `input`, text or a list of items, to `history`: messages, calls, their
/// outputs and reasoning. Tools of additional_tools are added to the request's, and unknown members
/// to what it ignores. Errors: 400 with the path of an item ("input[2].content[0].type").
std::optional<ApiError> read_input_items(const nlohmann::ordered_json& input,
                                         const std::string& path, ChatHistory& history,
                                         ApiRequest& request);

}  // namespace lathe::responses_api
