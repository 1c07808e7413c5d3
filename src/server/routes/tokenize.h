// Handlers of /tokenize, /detokenize and /v1/messages/count_tokens: body to answer. Run on workers.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

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

struct CountedTokens {
  std::int64_t count = 0;
  std::vector<std::string> ignored;  // names of unknown fields
};

/// The prompt's tokens of a body of /v1/messages. Errors: 400; an unknown model.
/// `stop`: as of encode_chat().
Result<CountedTokens, ApiError> count_tokens(const std::string& body, const ServedModel& model,
                                             const ServerOptions& options,
                                             const std::atomic<bool>* stop);

}  // namespace lathe
