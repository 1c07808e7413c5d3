#include "io/template/chat_messages.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/json_digits.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

Error bad_member(std::string path, std::string wanted, std::string got) {
  return {ErrorCode::invalid_argument, std::move(path), std::move(wanted), std::move(got), ""};
}

// A large value by its size.
std::string excerpt_of(const Json& value) {
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {}", value.size());
  if (value.is_object() && value.size() > 8) return fmt::format("an object of {}", value.size());
  return json_excerpt(value);
}

constexpr std::string_view kRoles = "system, developer, user, assistant or tool";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// Joins text parts, one per line.
Result<void> read_content(Json& content, const std::string& path) {
  if (content.is_string() || content.is_null()) return {};
  if (!content.is_array()) return bad_member(path, "text, or a list of parts", excerpt_of(content));
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string here = fmt::format("{}[{}]", path, i);
    if (!part.is_object()) return bad_member(here, "a part", excerpt_of(part));
    const auto type = part.find("type");
    if (type == part.end() || *type != "text") {
      return bad_member(here + ".type", "\"text\"",
                        type == part.end() ? "nothing" : excerpt_of(*type));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) {
      return bad_member(here + ".text", "a string",
                        value == part.end() ? "nothing" : excerpt_of(*value));
    }
    if (i > 0) text += '\n';
    text += value->get_ref<const std::string&>();
  }
  content = std::move(text);
  return {};
}

// Parses arguments: clients send them as JSON in a string, templates expect values.
Result<void> read_tool_calls(Json& calls, const std::string& path) {
  if (calls.is_null()) return {};
  if (!calls.is_array()) return bad_member(path, "a list of calls", excerpt_of(calls));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string here = fmt::format("{}[{}].function", path, i);
    if (!calls[i].is_object() || !calls[i].contains("function") ||
        !calls[i]["function"].is_object()) {
      return bad_member(here, "an object with name and arguments", excerpt_of(calls[i]));
    }
    Json& function = calls[i]["function"];
    if (!function.contains("name") || !function["name"].is_string()) {
      return bad_member(here + ".name", "a string", "none");
    }
    Json& arguments = function["arguments"];
    const bool none = arguments.is_null() ||
                      (arguments.is_string() && is_blank(arguments.get_ref<const std::string&>()));
    if (none) arguments = Json::object();
    if (!arguments.is_string()) continue;
    // As answers are read: the last of equal names wins, and numbers keep their digits.
    Json object = read_json_digits(arguments.get_ref<const std::string&>());
    if (!object.is_object()) {
      return bad_member(here + ".arguments", "a JSON object in a string", excerpt_of(arguments));
    }
    arguments = std::move(object);
  }
  return {};
}

Result<void> read_chat_message(Json& message, const std::string& path) {
  if (!message.is_object()) return bad_member(path, "a message", excerpt_of(message));
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) {
    return bad_member(path + ".role", std::string(kRoles),
                      role == message.end() ? "nothing" : excerpt_of(*role));
  }
  const auto& name = role->get_ref<const std::string&>();
  if (name != "system" && name != "developer" && name != "user" && name != "assistant" &&
      name != "tool") {
    return bad_member(path + ".role", std::string(kRoles), excerpt_of(*role));
  }
  const bool assistant = name == "assistant";
  if (name == "developer") *role = "system";
  if (!message.contains("content")) message["content"] = nullptr;
  if (auto ok = read_content(message["content"], path + ".content"); !ok) return ok;
  if (message["content"].is_null() && !assistant) {
    return bad_member(path + ".content", "text", "nothing");
  }
  if (!assistant) {
    message.erase("tool_calls");  // only an assistant calls
    return {};
  }
  if (message.contains("tool_calls")) {
    if (auto ok = read_tool_calls(message["tool_calls"], path + ".tool_calls"); !ok) return ok;
  }
  // Some templates read one name, some the other.
  for (const auto& [from, to] :
       {std::pair{"reasoning", "reasoning_content"}, std::pair{"reasoning_content", "reasoning"}}) {
    if (message.contains(from) && !message.contains(to)) message[to] = message[from];
  }
  return {};
}

std::string_view chat_role(const Json& message) {
  return message["role"].get_ref<const std::string&>();
}

// Ids of an assistant's calls.
struct Calls {
  std::set<std::string> ids;
  bool any = false;
  bool unnamed = false;  // one has no id
};

Result<Calls> calls_in(const Json& message, const std::string& path) {
  Calls out;
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return out;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const Json id = (*calls)[i].value("id", Json());
    if (!id.is_null() && !id.is_string()) {
      return bad_member(fmt::format("{}.tool_calls[{}].id", path, i), "a string", excerpt_of(id));
    }
    out.any = true;
    if (id.is_null()) {
      out.unnamed = true;
    } else {
      out.ids.insert(id.get<std::string>());
    }
  }
  return out;
}

}  // namespace

Result<void> read_messages(Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return bad_member("messages", "a list of messages, at least one", excerpt_of(messages));
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (auto ok = read_chat_message(messages[i], fmt::format("messages[{}]", i)); !ok) return ok;
  }
  return {};
}

Result<void> check_results(const Json& messages) {
  Calls calls;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (chat_role(messages[i]) == "assistant") {
      auto own = calls_in(messages[i], path);
      if (!own) return own.error();
      calls = std::move(*own);
      continue;
    }
    if (chat_role(messages[i]) != "tool") {
      calls = {};
      continue;
    }
    const Json id = messages[i].value("tool_call_id", Json());
    if (id.is_null()) continue;
    if (!id.is_string()) return bad_member(path + ".tool_call_id", "a string", excerpt_of(id));
    const bool known = calls.any && (calls.unnamed || calls.ids.contains(id.get<std::string>()));
    if (known) continue;
    return bad_member(path + ".tool_call_id",
                      "the id of a call in the assistant's message before it", excerpt_of(id));
  }
  return {};
}

}  // namespace lathe
