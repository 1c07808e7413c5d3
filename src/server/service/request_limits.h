// Limits on a request: what of it may ever wait, be kept and fit the context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "server/service/prepare.h"

namespace lathe {

/// Where prompt i is in the request: "messages", "prompt[2]", "input_ids". is_text: it is not a
/// list of tokens.
std::string prompt_path(const ApiRequest& api, std::size_t i, bool is_text);
/// Name of the most tokens of an answer.
std::string_view length_name(const ApiRequest& api);

/// How many of the likeliest tokens each position lists.
std::int32_t tokens_listed(const ApiRequest& api);

/// Rejects lists that are too long to be kept for each of the answers.
std::optional<ApiError> fit_lists(const ApiRequest& api);

/// Rejects requests with more answers than may ever wait.
std::optional<ApiError> fit_queue(const ServerOptions& options, const ApiRequest& api);

/// Sets the most tokens of each answer, and from where prompts are scored. Rejects prompts and
/// answers beyond the capacity, and answers with too many log-probabilities. Precondition: prompts
/// are tokenised.
std::optional<ApiError> fit_lengths(const ServedModel& model, const ServerOptions& options,
                                    PreparedRequest& out);

}  // namespace lathe
