// Tools of /v1/responses as functions of chat: those of namespaces, and those that take a text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/openai/api_request.h"

namespace lathe::responses_api {

/// Adds the tools of a list at `path` to the request's: functions; custom tools, as functions with
/// the argument "input"; and those of namespaces, by function_name(). Others, which OpenAI runs
/// itself, are left out as leave_out_tool() says. Errors: 400 with the path of a tool.
std::optional<ApiError> read_tools(const nlohmann::ordered_json& tools, const std::string& path,
                                   ApiRequest& request);

/// The name of the function that stands for a tool of a namespace; without one, the tool's own.
std::string function_name(std::string_view space, std::string_view name);

/// The input of a custom tool, from the arguments of a call of its function: what the model wrote,
/// if they have no "input".
std::string custom_input(const std::string& arguments);

}  // namespace lathe::responses_api
