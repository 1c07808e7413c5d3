// Messages of a chat request as the text of a prompt.
#pragma once

#include <string>

#include "io/chat_template.h"
#include "server/openai/api_error.h"
#include "server/openai/api_request.h"

namespace lathe {

/// Renders the model's template over the request's messages. `defaults`: kwargs of the server, an
/// object, which the request's own go before. Errors: 400, of a message with its path
/// ("messages[1].content[0].type"), or template_error.
Result<std::string, ApiError> chat_prompt(const ApiRequest& request,
                                          const nlohmann::ordered_json& defaults,
                                          const ChatTemplateFile& chat);

}  // namespace lathe
