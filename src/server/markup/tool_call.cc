#include "server/markup/tool_call.h"

#include <algorithm>

#include "server/markup/tool_arguments.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

ToolCalls read_deepseek_call(std::string_view body) {
  const auto first = take_until(body, "<｜tool▁sep｜>");
  if (!first) return std::nullopt;
  std::string_view name = trim(*first), json = trim(body);
  // Where JSON follows, a fence is an argument's.
  if (name == "function" && !json.starts_with('{')) {
    const auto second = take_until(json, "```json");
    if (!second) return std::nullopt;
    name = trim(*second);
    if (json.ends_with("```")) json.remove_suffix(3);
  }
  const auto arguments = read_members(trim(json));
  if (!arguments || !is_name_text(name)) return std::nullopt;
  return one_call({std::string(name), members_text(*arguments)});
}

// The id is functions.N:I, with I counted over the conversation; the prefix may be missing.
ToolCalls read_kimi_call(std::string_view body) {
  const auto head = take_until(body, "<|tool_call_argument_begin|>");
  if (!head) return std::nullopt;
  const std::string_view id = trim(*head);
  std::string_view name = id;
  if (name.starts_with("functions.")) name.remove_prefix(10);
  const std::size_t colon = name.rfind(':');
  const bool counted = colon != std::string_view::npos && colon + 1 < name.size() &&
                       name.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  if (counted) name = name.substr(0, colon);
  const auto arguments = trim(body).empty() ? JsonMembers() : read_members(trim(body));
  if (!arguments || !is_name_text(name)) return std::nullopt;
  return one_call({std::string(name), members_text(*arguments), std::string(counted ? id : "")});
}

ToolCalls read_mistral_calls(std::string_view body, const Json& tools) {
  const std::string_view text = trim(body);
  if (text.starts_with('[') || text.starts_with('{')) {
    return read_json_calls(text, tools, /*known=*/false);
  }
  const std::size_t json = text.find('{');
  if (json == std::string_view::npos) return std::nullopt;
  std::string_view head = text.substr(0, json);
  std::string id;
  if (const std::size_t args = head.find("[ARGS]"); args != std::string_view::npos) {
    head = head.substr(0, args);
  }
  std::string_view name = head;
  if (const auto before = take_until(head, "[CALL_ID]")) {
    name = *before;
    id = std::string(trim(head));
    if (!is_name_text(id)) return std::nullopt;
  }
  const auto arguments = read_members(text.substr(json));
  if (!arguments || !is_name_text(trim(name))) return std::nullopt;
  return one_call({std::string(trim(name)), members_text(*arguments), std::move(id)});
}

// Levels of lists and objects in JSON.
int levels_of(std::string_view json) {
  int level = 0, most = 0;
  for (std::size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (c == '{' || c == '[') most = std::max(most, ++level);
    if (c == '}' || c == ']') --level;
    if (c != '"') continue;
    while (++at < json.size() && json[at] != '"') at += json[at] == '\\' ? 1 : 0;
  }
  return most;
}

ToolCalls read_calls(CallBody body, std::string_view text, const Json& tools, bool closed) {
  const std::string_view inner = trim(text);
  switch (body) {
    case CallBody::json:
      return read_json_calls(inner, tools, /*known=*/false);
    case CallBody::tagged:
      if (inner.starts_with('{') || inner.starts_with('[')) {
        return read_json_calls(inner, tools, /*known=*/false);
      }
      if (inner.starts_with(kFunctionMark)) return read_function_calls(inner, tools, closed);
      return read_pairs_call(inner, tools, closed);
    case CallBody::function: {
      // Without the marks around it, only a function that the request has is a call.
      const std::string whole = std::string(kFunctionMark) + std::string(text) +
                                std::string(closed ? kEndFunctionMark : "");
      auto calls = read_function_calls(whole, tools, closed);
      if (calls && !is_tool(tools, calls->front().name)) return std::nullopt;
      return calls;
    }
    case CallBody::pairs:
      return read_pairs_call(inner, tools, closed);
    case CallBody::deepseek:
      return read_deepseek_call(text);
    case CallBody::dsml:
      return read_invoke_call(text, kDsmlParameter, kEndDsmlParameter, tools, closed);
    case CallBody::invoke:
      return read_invoke_call(text, kInvokeParameter, kEndInvokeParameter, tools, closed);
    case CallBody::mistral:
      return read_mistral_calls(text, tools);
    case CallBody::python_tag:
      if (inner.starts_with('{')) return read_json_calls(inner, tools, /*known=*/false);
      return read_python_calls(inner, tools, /*known=*/true);
    case CallBody::python:
      return read_python_calls(inner, tools, /*known=*/false);
    case CallBody::gemma:
      return read_gemma_call(inner, tools);
    case CallBody::kimi:
      return read_kimi_call(text);
  }
  return std::nullopt;
}

}  // namespace

bool is_name_text(std::string_view text) {
  return !text.empty() && text.find_first_of(" \t\r\n\"'<>{}[]") == std::string_view::npos;
}

ToolCalls sendable(ToolCalls calls) {
  const auto fits = [](const ToolCall& call) {
    return levels_of(call.arguments) <= kMostArgumentLevels && read_members(call.arguments);
  };
  return calls && std::ranges::all_of(*calls, fits) ? std::move(calls) : std::nullopt;
}

ToolCalls read_tool_calls(CallBody body, std::string_view text, const Json& tools, bool closed) {
  return sendable(read_calls(body, text, tools, closed));
}

}  // namespace lathe
