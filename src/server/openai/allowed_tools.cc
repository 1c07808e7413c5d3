#include "server/openai/allowed_tools.h"

#include <fmt/format.h>

#include "server/openai/field_readers.h"
#include "server/openai/object_reader.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

std::optional<ApiError> read_tool(const Json& tool, const std::string& path, bool nested,
                                  ApiRequest& request) {
  if (!tool.is_object()) return bad_field(path, "a tool", excerpt(tool));
  const Json type = tool.value("type", Json());
  if (!type.is_string()) {
    return bad_field(path + ".type", "\"function\"", type.is_null() ? "nothing" : excerpt(type));
  }
  if (type != "function" && (nested || type != "custom")) {
    request.idle.push_back(path);
    return std::nullopt;
  }
  if (!nested) {
    auto name = read_string(tool, "name", path);
    if (!name) return name.error();
    note_unknown(tool, {"type", "name"}, path, request.ignored);
    request.allowed_tools.emplace_back(std::move(*name), path);
    return std::nullopt;
  }
  const Json function = tool.value("function", Json());
  const std::string inside = path + ".function";
  if (!function.is_object()) {
    return bad_field(inside, "an object", function.is_null() ? "nothing" : excerpt(function));
  }
  auto name = read_string(function, "name", inside);
  if (!name) return name.error();
  note_unknown(tool, {"type", "function"}, path, request.ignored);
  note_unknown(function, {"name"}, inside, request.ignored);
  request.allowed_tools.emplace_back(std::move(*name), inside);
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> read_allowed_tools(const Json& choice, const std::string& path, bool nested,
                                           ApiRequest& request) {
  const Json mode = choice.value("mode", Json());
  if (mode != "auto" && mode != "required") {
    return not_offered(path + ".mode", R"("auto" or "required")", mode);
  }
  const std::string list = path + ".tools";
  const Json tools = choice.value("tools", Json());
  if (!tools.is_array() || tools.empty()) {
    return bad_field(list, "a list of tools, at least one",
                     tools.is_null() ? "nothing" : excerpt(tools));
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (auto wrong = read_tool(tools[i], fmt::format("{}[{}]", list, i), nested, request)) {
      return wrong;
    }
  }
  if (request.allowed_tools.empty()) {
    return not_offered(list, "a function among them", tools, "this server has no tools of its own");
  }
  request.tool_choice = mode;
  return std::nullopt;
}

}  // namespace lathe
