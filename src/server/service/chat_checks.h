// What of a conversation a prompt leaves out.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "io/template/chat_template.h"
#include "server/openai/api_error.h"
#include "server/openai/api_request.h"

namespace lathe {

/// Names of what the request has and its prompt does not: variables and members of messages that
/// the template never reads, and contents of messages that it leaves out. A content that is not
/// found in `prompt` as it is, or is too short to tell, is replaced in a second prompt, so that
/// escaping is no loss. `variables` made `prompt`.
std::vector<std::string> find_unread(const ApiRequest& request,
                                     const nlohmann::ordered_json& variables,
                                     const ChatTemplate& chat, const std::string& prompt);

/// With --strict-fields: a member of a message, part, tool or call among what find_unread() names
/// that OpenAI's protocol does not have either. Errors: 400 with its path.
std::optional<ApiError> refuse_unread(const std::vector<std::string>& unread);

}  // namespace lathe
