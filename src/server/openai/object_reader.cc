#include "server/openai/object_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/openai/field_readers.h"

namespace lathe {

namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Result<std::string, ApiError> read_string(const Json& object, const char* name,
                                          const std::string& path) {
  const auto at = object.find(name);
  const std::string here = path + "." + name;
  if (at == object.end()) return bad_field(here, "a string", "nothing");
  if (!at->is_string()) return bad_field(here, "a string", excerpt(*at));
  return at->get<std::string>();
}

Result<std::string, ApiError> read_name(const Json& object, const char* name,
                                        const std::string& path) {
  auto text = read_string(object, name, path);
  if (!text || text->find_first_not_of(" \t\r\n") != std::string::npos) return text;
  return bad_field(path + "." + name, "a string that is not empty", excerpt(Json(*text)));
}

Result<std::string, ApiError> read_optional_string(const Json& object, const char* name,
                                                   const std::string& path) {
  const auto at = object.find(name);
  if (at == object.end() || at->is_null()) return std::string();
  return read_string(object, name, path);
}

void note_unknown(const Json& object, std::initializer_list<std::string_view> known,
                  const std::string& path, std::vector<std::string>& ignored) {
  for (const auto& [name, value] : object.items()) {
    // Texts that nobody reads: an object in their place is no such text.
    const bool text = name == "id" || name == "status" || name == "phase" || name == "signature";
    // Of answers that come back: an empty one says nothing.
    const bool list = name == "annotations" || name == "citations" || name == "logprobs";
    if (value.is_null() || (list && value.is_array() && value.empty())) continue;
    const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
    if (is_known && !(text && value.is_structured())) continue;
    ignored.push_back(path + "." + name);
  }
}

std::optional<ApiError> check_format_words(const Json& format, const std::string& path) {
  for (const char* name : {"name", "description"}) {
    const auto text = read_optional_string(format, name, path);
    if (!text) return text.error();
  }
  const auto strict = format.find("strict");
  if (strict == format.end() || strict->is_null() || strict->is_boolean()) return std::nullopt;
  return bad_field(path + ".strict", "true or false", excerpt(*strict));
}

std::optional<ApiError> add_function(const Json& tool, const char* schema, const std::string& path,
                                     ApiRequest& request) {
  auto name = read_string(tool, "name", path);
  if (!name) return name.error();
  const Json strict = tool.value("strict", Json());
  if (!strict.is_null() && !strict.is_boolean()) {
    return bad_field(path + ".strict", "true or false", excerpt(strict));
  }
  Json function{{"name", *name}};
  for (const auto& [from, to] : {std::pair{"description", "description"},
                                 std::pair{schema, "parameters"}, std::pair{"strict", "strict"}}) {
    const auto value = tool.find(from);
    if (value != tool.end() && !value->is_null()) function[to] = *value;
  }
  if (request.tools.is_null()) request.tools = Json::array();
  const std::string chat = fmt::format("tools[{}]", request.tools.size());
  request.sources.add(chat, path);
  request.sources.add_copy(chat + ".function", path);
  request.sources.add_copy(chat + ".function.parameters", path + "." + schema);
  request.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  return std::nullopt;
}

std::optional<ApiError> leave_out_tool(const Json& tools, const Json& type, const std::string& path,
                                       std::initializer_list<std::string_view> own,
                                       std::string_view wanted, ApiRequest& request) {
  const bool alone = std::ranges::all_of(tools, [&](const Json& tool) {
    const Json other = tool.is_object() ? tool.value("type", Json()) : Json();
    return other.is_string() &&
           std::ranges::find(own, other.get_ref<const std::string&>()) == own.end();
  });
  if (!type.is_string() || alone) {
    return not_offered(path + ".type", wanted, type, "this server has no tools of its own");
  }
  request.idle.push_back(path);
  return std::nullopt;
}

ApiError not_offered(const std::string& path, std::string_view wanted, const Json& got,
                     std::string_view hint) {
  return {400, "unsupported_field",
          fmt::format("{}: wanted {}, got {}{}{}", path, wanted,
                      got.is_null() ? "nothing" : excerpt(got), hint.empty() ? "" : "; ", hint),
          path};
}

}  // namespace lathe
