// Readers of the fields that constrain an answer's text.
#pragma once

#include "server/openai/field_readers.h"

namespace lathe {

/// Sets the request's constraint. Errors: another field set a different one.
std::optional<ApiError> set_constraint(grammar::Source source, ApiRequest& out);

Reader response_format();
Reader json_schema();
Reader regex();
Reader grammar_rules();
Reader choice();
Reader structured_outputs();

}  // namespace lathe
