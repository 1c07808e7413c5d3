// Calls in a notation of literals that is not JSON: Python's, and Gemma's.
#include <algorithm>

#include "io/text/name_byte.h"
#include "server/markup/python_literal.h"
#include "server/markup/tool_arguments.h"
#include "server/markup/tool_call.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostLiteralLevels = 64;

// A text that is read from its front.
struct LiteralReader {
  std::string_view rest;

  bool skip(std::string_view word) {
    rest.remove_prefix(std::min(rest.find_first_not_of(kJsonSpace), rest.size()));
    if (!rest.starts_with(word)) return false;
    rest.remove_prefix(word.size());
    return true;
  }
  std::string_view name() {
    skip("");
    std::size_t n = 0;
    while (n < rest.size() && is_name_byte(rest[n])) ++n;
    const std::string_view out = rest.substr(0, n);
    rest.remove_prefix(n);
    return out;
  }
  bool done() {
    skip("");
    return rest.empty();
  }
};

std::optional<std::string> python_value(LiteralReader& in, int level);

// Values up to the closing bracket, as a JSON list. A value alone in parentheses is no list.
std::optional<std::string> python_list(LiteralReader& in, std::string_view close, int level) {
  std::string out = "[";
  bool comma = close != ")";
  while (!in.skip(close)) {
    if (out.size() > 1) {
      if (!in.skip(",")) return std::nullopt;
      comma = true;
      if (in.skip(close)) break;
      out += ',';
    }
    const auto value = python_value(in, level + 1);
    if (!value) return std::nullopt;
    out += *value;
  }
  if (!comma && out.size() > 1) return out.substr(1);
  return out + "]";
}

std::optional<std::string> python_dict(LiteralReader& in, int level) {
  JsonMembers members;
  bool first = true;
  while (!in.skip("}")) {
    if (!std::exchange(first, false)) {
      if (!in.skip(",")) return std::nullopt;
      if (in.skip("}")) break;
    }
    const auto key = python_value(in, level + 1);
    const auto name = key ? string_of(*key) : std::nullopt;
    if (!name || !in.skip(":")) return std::nullopt;
    auto value = python_value(in, level + 1);
    if (!value) return std::nullopt;
    set_member(members, *name, std::move(*value));
  }
  return members_text(members);
}

std::optional<std::string> python_value(LiteralReader& in, int level) {
  if (level > kMostLiteralLevels) return std::nullopt;
  if (in.skip("[")) return python_list(in, "]", level);
  if (in.skip("(")) return python_list(in, ")", level);
  if (in.skip("{")) return python_dict(in, level);
  if (in.done()) return std::nullopt;
  if (begins_python_string(in.rest)) return python_string(in.rest);
  const std::size_t end = std::min(in.rest.find_first_of(",)]}: \t\r\n"), in.rest.size());
  const auto value = python_word(in.rest.substr(0, end));
  in.rest.remove_prefix(end);
  return value;
}

// N(K=V, ...)
std::optional<ToolCall> python_call(LiteralReader& in) {
  const std::string_view name = in.name();
  if (name.empty() || !in.skip("(")) return std::nullopt;
  JsonMembers arguments;
  while (!in.skip(")")) {
    if (!arguments.empty()) {
      if (!in.skip(",")) return std::nullopt;
      if (in.skip(")")) break;
    }
    const std::string_view key = in.name();
    if (key.empty() || !in.skip("=")) return std::nullopt;
    auto value = python_value(in, 0);
    if (!value) return std::nullopt;
    set_member(arguments, key, std::move(*value));
  }
  return ToolCall{std::string(name), members_text(arguments)};
}

// Gemma's strings are between two equal marks.
std::optional<std::string_view> gemma_string(LiteralReader& in) {
  for (const std::string_view mark : {"<|\"|>", "<escape>"}) {
    if (in.skip(mark)) return take_until(in.rest, mark);
  }
  return std::nullopt;
}

// The key and the colon after it. Only a quoted key may be empty.
std::optional<std::string> gemma_key(LiteralReader& in) {
  std::optional<std::string> key;
  if (const auto text = gemma_string(in)) {
    key = *text;
  } else if (in.rest.starts_with('"')) {
    const auto quoted = python_string(in.rest);
    key = quoted ? string_of(*quoted) : std::nullopt;
  } else {
    const auto bare = take_until(in.rest, ":");
    return bare && !trim(*bare).empty() ? std::optional<std::string>(trim(*bare)) : std::nullopt;
  }
  return key && in.skip(":") ? key : std::nullopt;
}

std::optional<std::string> gemma_value(LiteralReader& in, const Json& tools, std::string_view tool,
                                       std::string_view argument, int level);

std::optional<JsonMembers> gemma_members(LiteralReader& in, const Json& tools,
                                         std::string_view tool, int level) {
  JsonMembers members;
  while (!in.skip("}")) {
    if (!members.empty()) {
      if (!in.skip(",")) return std::nullopt;
      if (in.skip("}")) break;
    }
    const auto key = gemma_key(in);
    if (!key || (key->empty() && !tool.empty())) return std::nullopt;
    auto value = gemma_value(in, tools, tool, *key, level);
    if (!value) return std::nullopt;
    set_member(members, *key, std::move(*value));
  }
  return members;
}

// `tool` is empty below the arguments, where the schema is not looked at.
std::optional<std::string> gemma_value(LiteralReader& in, const Json& tools, std::string_view tool,
                                       std::string_view argument, int level) {
  if (level > kMostLiteralLevels) return std::nullopt;
  if (const auto text = gemma_string(in)) return json_text(std::string(*text));
  if (in.skip("{")) {
    const auto members = gemma_members(in, tools, "", level + 1);
    return members ? std::optional(members_text(*members)) : std::nullopt;
  }
  if (in.skip("[")) {
    std::string out = "[";
    while (!in.skip("]")) {
      if (out.size() > 1) {
        if (!in.skip(",")) return std::nullopt;
        if (in.skip("]")) break;
        out += ',';
      }
      const auto value = gemma_value(in, tools, "", "", level + 1);
      if (!value) return std::nullopt;
      out += *value;
    }
    return out + "]";
  }
  if (in.done()) return std::nullopt;
  if (in.rest[0] == '"') return python_string(in.rest);
  const std::size_t end = std::min(in.rest.find_first_of(",}]"), in.rest.size());
  const std::string_view word = trim(in.rest.substr(0, end));
  in.rest.remove_prefix(end);
  if (word.empty()) return std::nullopt;
  return loose_value(tools, tool, argument, word);
}

}  // namespace

ToolCalls read_python_calls(std::string_view text, const Json& tools, bool known) {
  LiteralReader in{text};
  const bool list = in.skip("[");
  std::vector<ToolCall> out;
  while (!in.done() && !(list && in.rest.starts_with(']'))) {
    if (!out.empty() && !in.skip(",") && !in.skip(";") && list) return std::nullopt;
    auto call = python_call(in);
    if (!call) return std::nullopt;
    // Llama calls its built-in tools by a method.
    if (call->name.ends_with(".call") && !is_tool(tools, call->name)) {
      call->name.resize(call->name.size() - 5);
    }
    if (known && !is_tool(tools, call->name)) return std::nullopt;
    out.push_back(std::move(*call));
  }
  if ((list && !in.skip("]")) || !in.done() || out.empty()) return std::nullopt;
  return out;
}

ToolCalls read_gemma_call(std::string_view text, const Json& tools) {
  LiteralReader in{text};
  in.skip("call:");
  const auto name = take_until(in.rest, "{");
  if (!name || !is_name_text(trim(*name))) return std::nullopt;
  const auto arguments = gemma_members(in, tools, trim(*name), 0);
  if (!arguments || !in.done()) return std::nullopt;
  return one_call({std::string(trim(*name)), members_text(*arguments)});
}

}  // namespace lathe
