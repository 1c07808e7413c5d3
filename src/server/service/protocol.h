// The protocols of the generating routes: each translates its bodies to an ApiRequest, and its
// answers and errors back.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/openai/answer.h"
#include "server/openai/api_request.h"
#include "server/openai/fields.h"

namespace lathe {

/// Errors: 400, as parse_request()'s.
Result<ApiRequest, ApiError> read_request(ApiRoute route, std::string_view body,
                                          const FieldLimits& limits);

/// `request` and `head` outlive the format.
std::unique_ptr<AnswerFormat> make_format(const ApiRequest& request, const AnswerHead& head);

/// What the ids of the route's answers begin with.
std::string_view id_prefix(ApiRoute route);

/// The tables of the routes' fields as text, a line per field.
std::string describe_all_fields();

}  // namespace lathe
