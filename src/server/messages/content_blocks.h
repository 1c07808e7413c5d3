// Messages of /v1/messages as chat messages.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/openai/api_error.h"
#include "server/openai/api_request.h"
#include "server/openai/chat_history.h"

namespace lathe::anthropic {

/// The text of `system`, and of other texts: a string, or a list of text blocks, joined by
/// newlines. Unknown members are added to `ignored`. Errors: 400 with the path of a block.
Result<std::string, ApiError> read_block_texts(const nlohmann::ordered_json& value,
                                               const std::string& path,
                                               std::vector<std::string>& ignored);

/// Adds the messages to `history`: content of text, tool_use, tool_result and thinking blocks. The
/// request gets the names of what has no effect.
/// Errors: 400 with the path of a block ("messages[2].content[0].type").
std::optional<ApiError> read_content_blocks(const nlohmann::ordered_json& messages,
                                            const std::string& path, ChatHistory& history,
                                            ApiRequest& request);

}  // namespace lathe::anthropic
