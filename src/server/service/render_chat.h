// Renders a chat request's messages to the prompt's text.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "io/template/chat_template.h"
#include "server/openai/api_error.h"
#include "server/openai/api_request.h"
#include "server/service/options.h"
#include "server/service/served_model.h"

namespace lathe {

/// Renders the model's template over the request's messages. `defaults`: the server's template
/// kwargs, an object; the request's own take precedence. Errors: 400 with the path of a message
/// ("messages[1].content[0].type"), or template_error. `ignored`, if given, gets the names of what
/// the prompt leaves out (find_unread()).
Result<std::string, ApiError> render_chat(const ApiRequest& request,
                                          const nlohmann::ordered_json& defaults,
                                          const ChatTemplateFile& chat,
                                          std::vector<std::string>* ignored = nullptr);

struct ChatPrompt {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::vector<std::string> ignored;  // names of what it leaves out
};

/// render_chat() by the model's template, and its tokens. With --no-special-tokens-in-content,
/// names of added tokens in the texts of messages other than the assistant's are ordinary text.
/// Errors: render_chat()'s; template_error for a model without a template; tokenizer_error, also
/// where `stop` was set meanwhile, which ends a long call.
Result<ChatPrompt, ApiError> encode_chat(const ApiRequest& request, const ServedModel& model,
                                         const ServerOptions& options, bool add_special_tokens,
                                         const std::atomic<bool>* stop);

}  // namespace lathe
