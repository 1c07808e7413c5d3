#include "server/responses/tools.h"

#include <fmt/format.h>

#include "base/json.h"
#include "server/openai/field_readers.h"
#include "server/openai/object_reader.h"

namespace lathe::responses_api {
namespace {

using Json = nlohmann::ordered_json;
using Wrong = std::optional<ApiError>;

constexpr std::string_view kWanted = R"("function", "custom" or "namespace")";

void add_other(OtherTool tool, ApiRequest& request) {
  request.other_tools[function_name(tool.space, tool.name)] = std::move(tool);
}

// {"type": "function", "name", "description", "parameters", "strict"}
Wrong read_function(const Json& tool, const std::string& space, const std::string& path,
                    ApiRequest& request) {
  note_unknown(tool, {"type", "name", "description", "parameters", "strict"}, path,
               request.ignored);
  if (space.empty()) return add_function(tool, "parameters", path, request);
  auto name = read_string(tool, "name", path);
  if (!name) return name.error();
  Json renamed = tool;
  renamed["name"] = function_name(space, *name);
  add_other({.space = space, .name = std::move(*name)}, request);
  return add_function(renamed, "parameters", path, request);
}

// {"type": "custom", "name", "description", "format"}: the model is told of a grammar, which its
// input need not follow.
Wrong read_custom(const Json& tool, const std::string& space, const std::string& path,
                  ApiRequest& request) {
  note_unknown(tool, {"type", "name", "description", "format"}, path, request.ignored);
  auto name = read_string(tool, "name", path);
  if (!name) return name.error();
  std::string about = "The tool's input, a text.";
  const Json format = tool.value("format", Json());
  if (format.is_object() && format.value("type", Json()) == "grammar") {
    auto syntax = read_string(format, "syntax", path + ".format");
    if (!syntax) return syntax.error();
    auto definition = read_string(format, "definition", path + ".format");
    if (!definition) return definition.error();
    about = fmt::format("The tool's input, a text of this {} grammar:\n{}", *syntax, *definition);
    request.idle.push_back(path + ".format");
  }
  Json function{{"name", function_name(space, *name)}};
  if (tool.contains("description")) function["description"] = tool["description"];
  function["parameters"] = {
      {"type", "object"},
      {"properties", {{"input", {{"type", "string"}, {"description", std::move(about)}}}}},
      {"required", {"input"}},
      {"additionalProperties", false}};
  add_other({.space = space, .name = std::move(*name), .custom = true}, request);
  if (auto wrong = add_function(function, "parameters", path, request)) return wrong;
  request.sources.add(fmt::format("tools[{}].function.parameters", request.tools.size() - 1), path);
  return std::nullopt;
}

Wrong read_list(const Json& tools, const std::string& space, const std::string& path,
                ApiRequest& request);

Wrong read_tool(const Json& tools, const Json& tool, const std::string& space,
                const std::string& path, ApiRequest& request) {
  if (!tool.is_object()) return bad_field(path, "a tool", excerpt(tool));
  const Json type = tool.value("type", Json());
  if (type == "function") return read_function(tool, space, path, request);
  if (type == "custom") return read_custom(tool, space, path, request);
  if (type != "namespace" || !space.empty()) {
    if (!space.empty()) {
      return leave_out_tool(tools, type, path, {"function", "custom"}, R"("function" or "custom")",
                            request);
    }
    return leave_out_tool(tools, type, path, {"function", "custom", "namespace"}, kWanted, request);
  }
  auto name = read_string(tool, "name", path);
  if (!name) return name.error();
  if (name->empty()) return bad_field(path + ".name", "a name", "\"\"");
  note_unknown(tool, {"type", "name", "description", "tools"}, path, request.ignored);
  return read_list(tool.value("tools", Json()), *name, path + ".tools", request);
}

Wrong read_list(const Json& tools, const std::string& space, const std::string& path,
                ApiRequest& request) {
  if (!tools.is_array()) {
    return bad_field(path, "a list of tools", tools.is_null() ? "nothing" : excerpt(tools));
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (auto wrong = read_tool(tools, tools[i], space, fmt::format("{}[{}]", path, i), request)) {
      return wrong;
    }
  }
  return std::nullopt;
}

}  // namespace

Wrong read_tools(const Json& tools, const std::string& path, ApiRequest& request) {
  return read_list(tools, "", path, request);
}

std::string function_name(std::string_view space, std::string_view name) {
  const bool joined = space.empty() || space.ends_with("__") || space.ends_with('.');
  return std::string(space) + (joined ? "" : "__") + std::string(name);
}

std::string custom_input(const std::string& arguments) {
  const Json json = read_json<Json>(arguments);
  const auto input = json.is_object() ? json.find("input") : json.end();
  if (!json.is_object() || input == json.end() || !input->is_string()) return arguments;
  return input->get<std::string>();
}

}  // namespace lathe::responses_api
