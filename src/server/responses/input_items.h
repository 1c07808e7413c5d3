// Input items of /v1/responses as chat messages.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/openai/api_error.h"
#include "server/openai/chat_history.h"

namespace lathe::responses_api {

/// Adds the messages of `input`, text or a list of items, to `history`: messages, function_call,
/// function_call_output and reasoning. Unknown members are added to `ignored`. Errors: 400 with the
/// path of an item ("input[2].content[0].type").
std::optional<ApiError> read_input_items(const nlohmann::ordered_json& input,
                                         const std::string& path, ChatHistory& history,
                                         std::vector<std::string>& ignored);

}  // namespace lathe::responses_api
