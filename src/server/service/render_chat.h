// Renders a chat request's messages to the prompt's text.
#pragma once

#include <string>

#include "io/template/chat_template.h"
#include "server/openai/api_error.h"
#include "server/openai/api_request.h"

namespace lathe {

/// Renders the model's template over the request's messages. `defaults`: the server's template
/// kwargs, an object; the request's own take precedence. Errors: 400 with the path of a message
/// ("messages[1].content[0].type"), or template_error.
Result<std::string, ApiError> render_chat(const ApiRequest& request,
                                          const nlohmann::ordered_json& defaults,
                                          const ChatTemplateFile& chat);

}  // namespace lathe
