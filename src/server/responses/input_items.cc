#include "server/responses/input_items.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/json_digits.h"
#include "base/json_limit.h"
#include "server/openai/field_readers.h"
#include "server/openai/object_reader.h"
#include "server/responses/reasoning_text.h"
#include "server/responses/tools.h"

namespace lathe::responses_api {
namespace {

using Json = nlohmann::ordered_json;
using Wrong = std::optional<ApiError>;

struct Place {
  const std::string& path;
  ChatHistory& history;
  ApiRequest& request;
  std::unordered_set<std::string>& custom_calls;  // ids; other calls are of functions
  std::vector<std::string>& ignored = request.ignored;
};

// Text, or a list of text parts. `each` gets the text of every part; `parts`: types that belong
// there, for errors.
template <class Each>
Wrong read_texts(const Json& object, const char* name, std::string_view parts, const Place& at,
                 const Each& each) {
  const std::string path = at.path + "." + name;
  const Json content = object.value(name, Json());
  if (content.is_string()) {
    each(content.get_ref<const std::string&>());
    return std::nullopt;
  }
  if (!content.is_array()) {
    return bad_field(path, "text, or a list of parts",
                     content.is_null() ? "nothing" : excerpt(content));
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string here = fmt::format("{}[{}]", path, i);
    if (!part.is_object()) return bad_field(here, "a part", excerpt(part));
    const Json type = part.value("type", Json());
    const bool refusal = type == "refusal";
    if (!refusal && type != "input_text" && type != "output_text" && type != "text" &&
        type != "reasoning_text" && type != "summary_text") {
      return not_offered(here + ".type", std::string(parts), type, "this server reads text alone");
    }
    auto text = read_string(part, refusal ? "refusal" : "text", here);
    if (!text) return text.error();
    note_unknown(part, {"type", "text", "refusal"}, here, at.ignored);
    each(*text);
  }
  return std::nullopt;
}

constexpr std::string_view kInputPart = R"("input_text")";
constexpr std::string_view kMessagePart = R"("input_text" or "output_text")";

Wrong read_message(const Json& item, const Place& at) {
  auto role = read_string(item, "role", at.path);
  if (!role) return role.error();
  note_unknown(item, {"type", "id", "role", "content", "status", "phase"}, at.path, at.ignored);
  if (*role == "assistant") {
    const std::string inside = at.path + ".content";
    at.history.add_answer("", inside);
    return read_texts(item, "content", kMessagePart, at,
                      [&](const std::string& text) { at.history.add_answer(text, inside); });
  }
  if (*role == "developer") role = std::string("system");
  if (*role != "user" && *role != "system") {
    return bad_field(at.path + ".role", "user, assistant, system or developer", excerpt(*role));
  }
  std::string all;
  bool first = true;
  auto wrong = read_texts(item, "content", kMessagePart, at, [&](const std::string& text) {
    if (!std::exchange(first, false)) all += '\n';
    all += text;
  });
  if (wrong) return wrong;
  at.history.add(*role, std::move(all), at.path + ".content");
  return std::nullopt;
}

struct Called {
  std::string id, function;  // the call, and its function with its namespace
};
Result<Called, ApiError> read_called(const Json& item, const Place& at) {
  auto id = read_name(item, "call_id", at.path);
  if (!id) return id.error();
  const auto name = read_name(item, "name", at.path);
  if (!name) return name.error();
  const auto space = read_optional_string(item, "namespace", at.path);
  if (!space) return space.error();
  return Called{std::move(*id), function_name(*space, *name)};
}

Wrong add_call(const Called& call, Json arguments, const Place& at, std::string_view member) {
  if (at.history.add_call(call.id, call.function, std::move(arguments), at.path, member)) {
    at.custom_calls.erase(call.id);
    if (member == "input") at.custom_calls.insert(call.id);
    return std::nullopt;
  }
  return bad_field(at.path + ".call_id", "another id than the turn's other calls'",
                   excerpt(call.id));
}

Wrong read_call(const Json& item, const Place& at) {
  const auto call = read_called(item, at);
  if (!call) return call.error();
  auto arguments = read_optional_string(item, "arguments", at.path);
  if (!arguments) return arguments.error();
  note_unknown(item, {"type", "id", "call_id", "namespace", "name", "arguments", "status"}, at.path,
               at.ignored);
  const bool none = arguments->find_first_not_of(" \t\r\n") == std::string::npos;
  const Json value = none ? Json() : read_json_digits(*arguments);
  if (!value.is_object() && !value.is_null()) {
    if (const auto limit = find_json_limit(*arguments, at.path + ".arguments")) {
      return bad_field(*limit);
    }
    return bad_field(at.path + ".arguments", "a JSON object in a string", excerpt(*arguments));
  }
  return add_call(*call, std::move(*arguments), at, "arguments");
}

Wrong read_custom_call(const Json& item, const Place& at) {
  const auto call = read_called(item, at);
  if (!call) return call.error();
  auto input = read_string(item, "input", at.path);
  if (!input) return input.error();
  note_unknown(item, {"type", "id", "call_id", "namespace", "name", "input", "status"}, at.path,
               at.ignored);
  return add_call(*call, {{"input", std::move(*input)}}, at, "input");
}

Wrong read_output(const Json& item, const Place& at) {
  auto id = read_string(item, "call_id", at.path);
  if (!id) return id.error();
  note_unknown(item, {"type", "id", "call_id", "name", "output", "status"}, at.path, at.ignored);
  std::string all;
  bool first = true;
  auto wrong = read_texts(item, "output", kInputPart, at, [&](const std::string& text) {
    if (!std::exchange(first, false)) all += '\n';
    all += text;
  });
  if (wrong) return wrong;
  const std::string call = at.custom_calls.contains(*id) ? "custom_tool_call" : "function_call";
  if (const Json type = item["type"]; at.history.has_call(*id) && type != call + "_output") {
    return bad_field(at.path + ".type",
                     fmt::format("\"{}_output\", as {} is a {}", call, excerpt(*id), call),
                     excerpt(type));
  }
  if (at.history.add_result(*id, std::move(all), at.path, "output")) return std::nullopt;
  if (at.history.has_call(*id)) {
    return bad_field(at.path + ".call_id", "one output of each call",
                     "a second one of " + excerpt(*id));
  }
  return bad_field(at.path + ".call_id", "the call_id of a call before it", excerpt(*id));
}

// The reasoning's own text, or else its summary, or what this server encoded of it.
Wrong read_reasoning_item(const Json& item, const Place& at) {
  note_unknown(item, {"type", "id", "summary", "content", "encrypted_content", "status"}, at.path,
               at.ignored);
  bool any = false;
  constexpr std::pair<const char*, std::string_view> kParts[] = {{"content", R"("reasoning_text")"},
                                                                 {"summary", R"("summary_text")"}};
  for (const auto& [name, part] : kParts) {
    const Json texts = item.value(name, Json());
    if (texts.is_null() || texts.empty()) continue;
    const bool read = !any;
    const std::string inside = at.path + "." + name;
    auto wrong = read_texts(item, name, part, at, [&](const std::string& text) {
      any = true;
      if (read) at.history.add_reasoning(text, inside);
    });
    if (wrong) return wrong;
  }
  const Json encoded = item.value("encrypted_content", Json());
  if (any || encoded.is_null()) return std::nullopt;
  const auto text =
      encoded.is_string() ? decode_reasoning(encoded.get_ref<const std::string&>()) : std::nullopt;
  if (text) at.history.add_reasoning(*text, at.path + ".encrypted_content");
  if (!text) at.request.idle.push_back(at.path + ".encrypted_content");
  return std::nullopt;
}

Wrong read_item(const Json& item, const Place& at) {
  if (!item.is_object()) return bad_field(at.path, "an item", excerpt(item));
  const Json type = item.value("type", Json());
  if (type == "message" || (type.is_null() && item.contains("role"))) return read_message(item, at);
  if (type == "function_call") return read_call(item, at);
  if (type == "custom_tool_call") return read_custom_call(item, at);
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    return read_output(item, at);
  }
  if (type == "reasoning") return read_reasoning_item(item, at);
  if (type == "additional_tools") {
    note_unknown(item, {"type", "id", "role", "tools", "status"}, at.path, at.ignored);
    return read_tools(item.value("tools", Json()), at.path + ".tools", at.request);
  }
  return not_offered(
      at.path + ".type", "a message, a call of a function or custom tool, its output, or reasoning",
      type, type == "item_reference" ? "this server keeps no responses: send the item" : "");
}

}  // namespace

Wrong read_input_items(const Json& input, const std::string& path, ChatHistory& history,
                       ApiRequest& request) {
  if (input.is_string()) {
    history.add("user", input.get<std::string>(), path);
    return std::nullopt;
  }
  if (!input.is_array() || input.empty()) {
    return bad_field(path, "text, or a list of items, at least one", excerpt(input));
  }
  std::unordered_set<std::string> custom_calls;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::string here = fmt::format("{}[{}]", path, i);
    if (auto wrong = read_item(input[i], {here, history, request, custom_calls})) return wrong;
  }
  if (history.empty()) {
    return bad_field(path, "an item besides reasoning without text, such as a message",
                     excerpt(input));
  }
  return std::nullopt;
}

}  // namespace lathe::responses_api
