// What an answer may be: which marks in it count, and the constraint of its calls and reasoning.
#pragma once

#include <optional>
#include <string>

#include "server/openai/api_error.h"
#include "server/service/prepare.h"
#include "server/service/served_model.h"

namespace lathe {

/// Sets out.markup for the answer to a chat's `prompt`, and, of out.api.constraint, how reasoning
/// and calls come before or instead of the constrained text. Errors: 400 unsupported_field, tools
/// that the model has no form of calls for, or that no grammar can constrain.
std::optional<ApiError> set_markup(const ServedModel& model, const std::string& prompt,
                                   PreparedRequest& out);

}  // namespace lathe
