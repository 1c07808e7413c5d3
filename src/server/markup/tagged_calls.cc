// Calls with a tag for each argument.
#include <algorithm>

#include "server/markup/tool_arguments.h"
#include "server/markup/tool_call.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// The next tag that begins a line, or npos.
std::size_t find_line_tag(std::string_view text, std::string_view tag) {
  for (std::size_t at = text.find(tag); at != std::string_view::npos; at = text.find(tag, at + 1)) {
    const std::size_t before = text.find_last_not_of(" \t", at == 0 ? 0 : at - 1);
    if (at == 0 || before == std::string_view::npos || text[before] == '\n') return at;
  }
  return std::string_view::npos;
}

// Where a parameter's value ends, and its end tag. That is an end tag with another tag behind it:
// others belong to the value. A value without one ends at the next tag.
std::pair<std::size_t, std::size_t> value_end(std::string_view text) {
  const std::size_t next =
      std::min(find_line_tag(text, kTagParameter), find_line_tag(text, kFunctionMark));
  for (std::size_t at = text.find(kEndTagParameter); at < next;
       at = text.find(kEndTagParameter, at + 1)) {
    const std::string_view rest = trim(text.substr(at + kEndTagParameter.size()));
    if (rest.empty() || rest.starts_with(kTagParameter) || rest.starts_with(kEndFunctionMark) ||
        rest.starts_with(kFunctionMark)) {
      return {at, at + kEndTagParameter.size()};
    }
  }
  const std::size_t end = std::min({next, text.find(kEndFunctionMark), text.size()});
  return {end, end};
}

// A parameter's value as JSON. If the string attribute is missing, or says "false" for text that is
// not JSON, the schema decides.
std::optional<std::string> invoke_value(const Json& tools, std::string_view tool,
                                        std::string_view key, std::string_view mark,
                                        std::string_view text) {
  if (mark == "string=\"true\"") return json_text(std::string(text));
  if (!mark.empty() && mark != "string=\"false\"") return std::nullopt;
  if (!mark.empty()) {
    if (auto json = compact_json(text)) return json;
  }
  return loose_value(tools, tool, key, text);
}

// Unwraps {"arguments": ...} and {"input": ...}, unless the tool has an argument of that name: an
// object, one in a string, or the value of a tool's only argument.
JsonMembers without_wrapper(JsonMembers arguments, const Json& tools, std::string_view tool) {
  if (arguments.size() != 1) return arguments;
  const auto& [name, value] = arguments.front();
  if (name != "arguments" && name != "input") return arguments;
  const Json* properties = properties_of(tools, tool);
  if (properties != nullptr && properties->contains(name)) return arguments;
  if (auto inner = read_members(value)) return *inner;
  const auto text = string_of(value);
  if (auto inner = text ? read_members(*text) : std::nullopt) return *inner;
  if (properties == nullptr || properties->size() != 1) return arguments;
  return {{properties->begin().key(), value}};
}

}  // namespace

ToolCalls read_function_calls(std::string_view body, const Json& tools, bool closed) {
  std::vector<ToolCall> out;
  const bool ends =
      trim(body).ends_with(kEndFunctionMark) || trim(body).ends_with(kEndTagParameter);
  if (!closed && !ends) return std::nullopt;
  while (!trim(body).empty()) {
    const auto gap = take_until(body, kFunctionMark);
    const auto name = gap ? take_until(body, ">") : std::nullopt;
    if (!name || !is_name_text(trim(*name)) || !trim(*gap).empty()) return std::nullopt;
    JsonMembers arguments;
    for (;;) {
      body = trim(body);
      if (!body.starts_with(kTagParameter)) break;
      body.remove_prefix(kTagParameter.size());
      const auto key = take_until(body, ">");
      if (!key || trim(*key).empty()) return std::nullopt;
      const auto [end, next] = value_end(body);
      std::string_view value = body.substr(0, end);
      body.remove_prefix(next);
      // The template puts the value on lines of its own.
      if (value.starts_with('\n')) value.remove_prefix(1);
      if (value.ends_with('\n')) value.remove_suffix(1);
      set_member(arguments, trim(*key), loose_value(tools, trim(*name), trim(*key), value));
    }
    if (body.starts_with(kEndFunctionMark)) body.remove_prefix(kEndFunctionMark.size());
    out.push_back({std::string(trim(*name)), members_text(arguments)});
  }
  return out;
}

ToolCalls read_pairs_call(std::string_view body, const Json& tools, bool closed) {
  constexpr std::string_view kKey = "<arg_key>";
  if (!closed && !trim(body).ends_with(kEndPairValue)) return std::nullopt;
  const std::size_t first = body.find(kKey);
  const std::string name(trim(body.substr(0, first)));
  // The format allows any word as a name, so require a tool's.
  if (!is_tool(tools, name)) return std::nullopt;
  body.remove_prefix(std::min(first, body.size()));
  JsonMembers arguments;
  while (!trim(body).empty()) {
    const auto before = take_until(body, kKey);
    const auto key = before ? take_until(body, "</arg_key>") : std::nullopt;
    const auto gap = key ? take_until(body, kPairValue) : std::nullopt;
    if (!gap || trim(*key).empty() || !trim(*before).empty() || !trim(*gap).empty()) {
      return std::nullopt;
    }
    // A value without an end mark ends at the next key.
    const std::size_t shut = body.find(kEndPairValue);
    const std::size_t end = std::min({shut, find_line_tag(body, kKey), body.size()});
    const std::string_view value = body.substr(0, end);
    body.remove_prefix(end == shut ? end + kEndPairValue.size() : end);
    set_member(arguments, trim(*key), loose_value(tools, name, trim(*key), value));
  }
  return one_call({name, members_text(arguments)});
}

// Accepts parameters alone, or one JSON object.
ToolCalls read_invoke_call(std::string_view body, std::string_view parameter, std::string_view end,
                           const Json& tools, bool closed) {
  const auto name = take_until(body, "\"");
  const auto rest = name ? take_until(body, ">") : std::nullopt;
  if (!rest || !is_name_text(trim(*name)) || !trim(*rest).empty()) return std::nullopt;
  if (!closed && !trim(body).ends_with(end) && !trim(body).ends_with("}")) return std::nullopt;
  JsonMembers arguments;
  if (auto whole = read_members(trim(body))) {
    arguments = std::move(*whole);
    body = "";
  }
  while (const auto gap = take_until(body, parameter)) {
    const auto front = take_until(body, "name=\"");
    const auto key = front ? take_until(body, "\"") : std::nullopt;
    const auto mark = key ? take_until(body, ">") : std::nullopt;
    const auto text = mark ? take_until(body, end) : std::nullopt;
    if (!text || trim(*key).empty() || !trim(*gap).empty() || !trim(*front).empty()) {
      return std::nullopt;
    }
    auto value = invoke_value(tools, *name, *key, trim(*mark), *text);
    if (!value) return std::nullopt;
    set_member(arguments, *key, std::move(*value));
  }
  if (!trim(body).empty()) return std::nullopt;
  arguments = without_wrapper(std::move(arguments), tools, *name);
  return one_call({std::string(*name), members_text(arguments)});
}

}  // namespace lathe
