// Handlers of /tokenize, /detokenize and /v1/messages/count_tokens: body to answer. Run on workers.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "server/openai/api_error.h"
#include "server/service/options.h"
#include "server/service/served_model.h"

namespace lathe {

/// A route's answer.
struct RouteAnswer {
  std::string body;                  // JSON
  std::vector<std::string> ignored;  // names of fields without effect, for X-Lathe-Ignored
};

/// {"prompt": text or texts} or the body of a chat, with "add_special_tokens" and
/// "return_token_strs", to {"count", "max_model_len", "tokens", "token_strs"?}. Errors: 400; an
/// unknown model. `stop`: as of encode_chat().
Result<RouteAnswer, ApiError> tokenize(const std::string& body, const ServedModel& model,
                                       const ServerOptions& options, const std::atomic<bool>* stop);

/// {"tokens", "skip_special_tokens"?} to {"prompt", "text"}, both the same text. Errors: 400; an
/// unknown model.
Result<RouteAnswer, ApiError> detokenize(const std::string& body, const ServedModel& model,
                                         const ServerOptions& options);

/// The prompt's tokens of a body of /v1/messages, to {"input_tokens"}. Errors: what /v1/messages
/// refuses, but that a prompt of any length is counted. `stop`: as of encode_chat().
Result<RouteAnswer, ApiError> count_tokens(const std::string& body, const ServedModel& model,
                                           const ServerOptions& options,
                                           const std::atomic<bool>* stop);

}  // namespace lathe
