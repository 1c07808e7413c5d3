// Calls that are JSON, and the formats that put JSON after a name.
#include <algorithm>
#include <array>

#include "server/markup/call_end.h"
#include "server/markup/tool_arguments.h"
#include "server/markup/tool_call.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostWrappers = 4;

// The arguments of a call: an object, or one in a string. nullopt: neither.
std::optional<std::string> arguments_text(std::string json) {
  if (auto text = string_of(json)) json = std::move(*text);
  if (trim(json).empty() || trim(json) == "null") return "{}";
  const auto members = read_members(json);
  return members ? std::optional(members_text(*members)) : std::nullopt;
}

// {"name", "arguments"}, with "parameters" for the second name, or "function" for the first; or
// such an object as the "function" of another one.
std::optional<ToolCall> read_json_call(std::string_view text, int wrappers = 0) {
  const auto json = read_members(text);
  if (!json) return std::nullopt;
  const std::string* name = find_member(*json, "name");
  if (name == nullptr) name = find_member(*json, "function");
  if (name == nullptr) return std::nullopt;
  if (name->starts_with('{')) {
    return wrappers < kMostWrappers ? read_json_call(*name, wrappers + 1) : std::nullopt;
  }
  const auto called = string_of(*name);
  if (!called || trim(*called).empty()) return std::nullopt;
  const std::string* given = find_member(*json, "arguments");
  if (given == nullptr) given = find_member(*json, "parameters");
  auto arguments = arguments_text(given != nullptr ? *given : "{}");
  if (!arguments) return std::nullopt;
  const std::string* id = find_member(*json, "id");
  return ToolCall{*called, std::move(*arguments),
                  id != nullptr ? string_of(*id).value_or("") : std::string()};
}

// Whether a JSON object is nothing but a call of a function that the request has.
bool is_known_call(std::string_view text, const ToolCall& call, const Json& tools) {
  constexpr std::array<std::string_view, 6> kMembers = {"name",       "function", "arguments",
                                                        "parameters", "type",     "id"};
  if (!is_tool(tools, call.name)) return false;
  const auto members = read_members(text);
  const bool plain = std::ranges::all_of(*members, [&](const auto& member) {
    return std::ranges::find(kMembers, member.first) != kMembers.end();
  });
  const std::string* inner = find_member(*members, "function");
  const bool wrapped = inner != nullptr && inner->starts_with('{');
  return plain && (wrapped || find_member(*members, "arguments") != nullptr ||
                   find_member(*members, "parameters") != nullptr);
}

}  // namespace

ToolCalls one_call(ToolCall call) {
  std::vector<ToolCall> out;
  out.push_back(std::move(call));
  return out;
}

ToolCalls read_json_calls(std::string_view text, const Json& tools, bool known) {
  std::vector<ToolCall> out;
  text = trim(text);
  if (text.starts_with('[') && text.ends_with(']')) text = trim(text.substr(1, text.size() - 2));
  // Objects one after another, or with commas or semicolons between them.
  while (text.starts_with('{')) {
    CallScan scan;
    const auto end = find_value_end(text, scan, /*python=*/false);
    if (!end) return std::nullopt;
    const std::string_view object = text.substr(0, *end);
    auto call = read_json_call(object);
    if (!call || (known && !is_known_call(object, *call, tools))) return std::nullopt;
    out.push_back(std::move(*call));
    text = trim(text.substr(*end));
    if (text.size() > 1 && (text[0] == ',' || text[0] == ';')) text = trim(text.substr(1));
  }
  if (text == ";") text = "";
  if (!text.empty() || out.empty()) return std::nullopt;
  return out;
}

}  // namespace lathe
