// Bodies of the chat routes that are nearly right: whole conversations, tools and choices, changed
// in a few places that the bytes choose. What was changed is refused with words, or named as
// ignored by a path that the body has, or has a meaning; a member that no route knows is never
// taken without a word.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/service/protocol.h"
#include "server/service/render_chat.h"

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kUnknown = "zzz";

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool more() const { return at_ < size_; }
  std::size_t below(std::size_t n) { return more() ? data_[at_++] % n : 0; }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

// A conversation of each route, with all that the others have.
const Json& chat_body() {
  static const Json out = Json::parse(R"({"model": "default", "messages": [
    {"role": "system", "content": "s"},
    {"role": "developer", "content": [{"type": "text", "text": "d"}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "reasoning_content": "w", "tool_calls": [
      {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 1}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "r"},
    {"role": "user", "content": "u"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "about",
      "strict": true, "parameters": {"type": "object", "properties": {}}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": {}}},
    "stream": true, "stream_options": {"include_usage": true}, "reasoning_effort": "low"})");
  return out;
}

const Json& responses_body() {
  static const Json out = Json::parse(R"({"instructions": "i", "input": [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}],
      "content": [{"type": "reasoning_text", "text": "w"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {"type": "function_call_output", "call_id": "c", "output": "b"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": [
      {"type": "input_text", "text": "y"}]},
    {"type": "additional_tools", "tools": [{"type": "custom", "name": "h"}]},
    {"role": "user", "content": "u"}],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": false},
      {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark",
        "definition": "start: /a/"}},
      {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "k"}]}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "o", "schema": {}}},
    "reasoning": {"effort": "low"}, "include": [], "stream_options": {}})");
  return out;
}

const Json& messages_body() {
  static const Json out = Json::parse(R"({"max_tokens": 3,
    "system": [{"type": "text", "text": "s"}], "messages": [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "w", "signature": "x"},
      {"type": "text", "text": "t"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
      "content": [{"type": "text", "text": "b"}]}, {"type": "text", "text": "u"}]}],
    "tools": [{"name": "f", "description": "about", "input_schema": {"type": "object"},
      "strict": true}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "thinking": {"type": "enabled", "budget_tokens": 8}})");
  return out;
}

// Whether the members below a name are the client's own.
bool is_free(std::string_view name, const Json& value) {
  return name == "parameters" || name == "input_schema" || name == "schema" || name == "metadata" ||
         name == "chat_template_kwargs" || name == "cache_control" || name == "arguments" ||
         name == "annotations" || name == "logprobs" || name == "citations" || name == "caller" ||
         (name == "input" && value.is_object());
}

Json some_value(Bytes& bytes) {
  static const Json out = Json::parse(
      R"([null, true, false, 0, -1, 1e300, 18446744073709551616, "", "auto", "text", "function",
      "required", "user", "tool", "assistant", "system", "c", "f", [], {}, [null], [[]], ["a"],
      [{"type": "text", "text": "a"}], {"type": "text"}, {"type": "function", "name": "f"},
      {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
      "\ufffe<s>{{ x }}"])");
  return out[bytes.below(out.size())];
}

std::string some_name(Bytes& bytes) {
  constexpr const char* kNames[] = {
      "type",          "role",      "content",     "text",         "name",        "id",
      "tool_calls",    "tools",     "call_id",     "tool_call_id", "arguments",   "output",
      "strict",        "input",     "mode",        "refusal",      "tool_choice", "reasoning",
      "cache_control", "namespace", "annotations", "audio"};
  return kNames[bytes.below(std::size(kNames))];
}

// Changes one place.
void change(Json& body, Bytes& bytes) {
  Json* at = &body;
  bool free = false;
  for (int level = 0; level < 6; ++level) {
    const bool deeper = at->is_structured() && !at->empty() && bytes.below(4) != 0;
    if (!deeper) break;
    auto inner = at->begin();
    std::advance(inner, static_cast<std::ptrdiff_t>(bytes.below(at->size())));
    if (at->is_object()) free = free || is_free(inner.key(), *inner);
    at = &*inner;
  }
  switch (bytes.below(5)) {
    case 0:
      *at = some_value(bytes);
      return;
    case 1:
      if (at->is_object() && !free) (*at)[std::string(kUnknown)] = "y";
      return;
    case 2:
      if (at->is_object()) (*at)[some_name(bytes)] = some_value(bytes);
      return;
    case 3:
      if (at->is_object()) at->erase(some_name(bytes));
      if (at->is_array() && !at->empty()) at->erase(bytes.below(at->size()));
      return;
    default:
      if (at->is_array() && !at->empty()) at->push_back(Json((*at)[bytes.below(at->size())]));
  }
}

// Whether the body has the place that a path names: a.b[2].c.
bool has_path(const Json& body, std::string_view path) {
  const Json* at = &body;
  while (!path.empty()) {
    if (path[0] == '[') {
      const std::size_t end = path.find(']');
      const std::size_t i = std::stoul(std::string(path.substr(1, end - 1)));
      if (!at->is_array() || i >= at->size()) return false;
      at = &(*at)[i];
      path.remove_prefix(end + 1);
    } else {
      if (path[0] == '.') path.remove_prefix(1);
      const std::string name(path.substr(0, path.find_first_of(".[")));
      if (!at->is_object() || !at->contains(name)) return false;
      at = &(*at)[name];
      path.remove_prefix(name.size());
    }
  }
  return true;
}

// Whether all unknown members below a path are named, or something that they are in.
bool all_named(const Json& value, const std::string& path, const std::vector<std::string>& names) {
  if (std::ranges::find(names, path) != names.end()) return true;
  for (const auto& [name, inner] : value.items()) {
    const std::string here = value.is_array() ? path + "[" + name + "]"
                             : path.empty()   ? name
                                              : path + "." + name;
    const bool unknown = value.is_object() && name == kUnknown && !inner.is_null();
    if (unknown && std::ranges::find(names, here) == names.end()) return false;
    if (!unknown && inner.is_structured() && !all_named(inner, here, names)) return false;
  }
  return true;
}

const lathe::ChatTemplateFile& tools_template() {
  static const lathe::ChatTemplateFile kChat{
      *lathe::ChatTemplate::parse(
          "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.reasoning_content }}"
          "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.name }}"
          "{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }}\n{% endfor %}"
          "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"),
      "<s>", "</s>"};
  return kChat;
}

}  // namespace

// The first byte is the route.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  Bytes bytes(data + 1, size - 1);
  constexpr lathe::ApiRoute kRoutes[] = {lathe::ApiRoute::chat, lathe::ApiRoute::responses,
                                         lathe::ApiRoute::messages};
  const lathe::ApiRoute route = kRoutes[data[0] % 3];
  Json body = route == lathe::ApiRoute::chat        ? chat_body()
              : route == lathe::ApiRoute::responses ? responses_body()
                                                    : messages_body();
  for (int i = 0; i < 8 && bytes.more(); ++i) change(body, bytes);
  auto request = lathe::read_request(route, body.dump(), {});
  if (!request) {
    LATHE_CHECK(request.error().status == 400 && !request.error().message.empty(),
                "an error without words");
    return 0;
  }
  std::vector<std::string> names;
  auto prompt = lathe::render_chat(*request, Json::object(), tools_template(), &names);
  LATHE_CHECK(prompt.ok() || prompt.error().status == 400, "the server's mistake");
  if (!prompt) return 0;
  std::vector<std::string> ignored = request->ignored;
  ignored.insert(ignored.end(), request->idle.begin(), request->idle.end());
  for (const std::string& name : names) ignored.push_back(request->sources.of(name));
  for (const std::string& name : ignored) {
    LATHE_CHECK(has_path(body, name), "an ignored name that the body has not: " + name);
  }
  // The header has no more than eight names of a prompt.
  if (names.size() >= 8) return 0;
  LATHE_CHECK(all_named(body, "", ignored), "an unknown member without a word: " + body.dump());
  return 0;
}
