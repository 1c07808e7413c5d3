// What is wrong in a conversation's order, and what of it a prompt leaves out.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/template/chat_template.h"
#include "server/openai/api_error.h"
#include "server/openai/api_request.h"

namespace lathe {

/// Checks that a result of a tool follows the assistant's message with its call, with no messages
/// but other results between them, as OpenAI does. A result without an id, and calls without ids,
/// are accepted. Error: 400 with the path of the id.
std::optional<ApiError> check_results(const nlohmann::ordered_json& messages);

/// Names of what the request has and its prompt does not: variables and members of messages that
/// the template never reads, and contents of messages that it leaves out. A content that is not
/// found in `prompt` as it is, or is too short to tell, is replaced in a second prompt, so that
/// escaping is no loss. `variables` made `prompt`.
std::vector<std::string> find_unread(const ApiRequest& request,
                                     const nlohmann::ordered_json& variables,
                                     const ChatTemplate& chat, const std::string& prompt);

}  // namespace lathe
