// Handlers of /tokenize and /detokenize: body to answer. Run on workers.
#pragma once

#include <atomic>
#include <string>

#include "server/openai/api_error.h"
#include "server/service/options.h"
#include "server/service/served_model.h"

namespace lathe {

/// {"prompt": text or texts} or {"messages"}, with "add_special_tokens" and "return_token_strs", to
/// {"count", "max_model_len", "tokens", "token_strs"?}. Errors: 400. `stop`: as of encode_chat().
Result<std::string, ApiError> tokenize(const std::string& body, const ServedModel& model,
                                       const ServerOptions& options, const std::atomic<bool>* stop);

/// {"tokens", "skip_special_tokens"?} to {"prompt", "text"}, both the same text. Errors: 400.
Result<std::string, ApiError> detokenize(const std::string& body, const ServedModel& model);

}  // namespace lathe
