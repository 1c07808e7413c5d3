// Helpers that read the objects inside a request's fields.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/openai/api_error.h"
#include "server/openai/api_request.h"

namespace lathe {

/// A member that must be a string.
Result<std::string, ApiError> read_string(const nlohmann::ordered_json& object, const char* name,
                                          const std::string& path);
/// A member that must be a string with more than white space in it.
Result<std::string, ApiError> read_name(const nlohmann::ordered_json& object, const char* name,
                                        const std::string& path);
/// As read_string(), or "" if it is null or absent.
Result<std::string, ApiError> read_optional_string(const nlohmann::ordered_json& object,
                                                   const char* name, const std::string& path);

/// Adds the paths of members that are not among `known` to `ignored`. Null members are absent.
void note_unknown(const nlohmann::ordered_json& object,
                  std::initializer_list<std::string_view> known, const std::string& path,
                  std::vector<std::string>& ignored);

/// Checks what a schema of an answer has besides: "name" and "description" are text, "strict" is a
/// bool. Null members are absent.
std::optional<ApiError> check_format_words(const nlohmann::ordered_json& format,
                                           const std::string& path);

/// Adds a function with the members "name", "description", "strict" and `schema` of `tool`, an
/// object at `path`, to the request's tools in chat's form. Null members are absent.
std::optional<ApiError> add_function(const nlohmann::ordered_json& tool, const char* schema,
                                     const std::string& path, ApiRequest& request);

/// A tool of `type` that OpenAI or Anthropic has, and this server has not. An agent offers several:
/// the others are enough, so it is in the request's `idle`. `own`: the types of the route's other
/// tools. Errors: `tools` has none of these.
std::optional<ApiError> leave_out_tool(const nlohmann::ordered_json& tools,
                                       const nlohmann::ordered_json& type, const std::string& path,
                                       std::initializer_list<std::string_view> own,
                                       std::string_view wanted, ApiRequest& request);

/// 400 unsupported_field: `path` says something that this server does not have.
ApiError not_offered(const std::string& path, std::string_view wanted,
                     const nlohmann::ordered_json& got, std::string_view hint = "");

}  // namespace lathe
