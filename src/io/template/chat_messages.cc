#include "io/template/chat_messages.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/json_digits.h"
#include "base/json_limit.h"

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
  if (!calls.is_array()) return bad_member(path, "a list of calls", excerpt_of(calls));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string call = fmt::format("{}[{}]", path, i), here = call + ".function";
    if (!calls[i].is_object()) return bad_member(call, "a call", excerpt_of(calls[i]));
    if (!calls[i].contains("function") || !calls[i]["function"].is_object()) {
      return bad_member(here, "an object with name and arguments",
                        excerpt_of(calls[i].value("function", Json())));
    }
    const Json type = calls[i].value("type", Json());
    if (!type.is_null() && type != "function") {
      return bad_member(call + ".type", "\"function\"", excerpt_of(type));
    }
    Json& function = calls[i]["function"];
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string() ||
        is_blank(name->get_ref<const std::string&>())) {
      return bad_member(here + ".name", "a function's name",
                        name == function.end() ? "nothing" : excerpt_of(*name));
    }
    Json& arguments = function["arguments"];
    const bool none = arguments.is_null() ||
                      (arguments.is_string() && is_blank(arguments.get_ref<const std::string&>()));
    if (none) arguments = Json::object();
    if (arguments.is_object()) continue;
    if (!arguments.is_string()) {
      return bad_member(here + ".arguments", "a JSON object, or one in a string",
                        excerpt_of(arguments));
    }
    // As answers are read: the last of equal names wins, and numbers keep their digits.
    Json object = read_json_digits(arguments.get_ref<const std::string&>());
    if (object.is_null()) object = Json::object();
    if (!object.is_object()) {
      const auto limit =
          find_json_limit(arguments.get_ref<const std::string&>(), here + ".arguments");
      if (limit) return *limit;
      return bad_member(here + ".arguments", "a JSON object in a string", excerpt_of(arguments));
    }
    arguments = std::move(object);
  }
  return {};
}

// Gives reasoning both of its names: some templates read one, some the other.
Result<void> read_reasoning(Json& message, const std::string& path) {
  const auto says = [](const Json& value) { return !value.is_null() && value != ""; };
  const Json one = message.value("reasoning", Json());
  const Json other = message.value("reasoning_content", Json());
  if (one.is_null() && other.is_null()) {  // templates look at whether the name is there
    message.erase("reasoning");
    message.erase("reasoning_content");
    return {};
  }
  for (const auto& [name, value] :
       {std::pair{"reasoning", &one}, std::pair{"reasoning_content", &other}}) {
    if (value->is_null() || value->is_string()) continue;
    return bad_member(fmt::format("{}.{}", path, name), "text", excerpt_of(*value));
  }
  if (says(one) && says(other) && one != other) {
    return bad_member(path + ".reasoning_content", "the text of reasoning, or none",
                      excerpt_of(other));
  }
  message["reasoning"] = message["reasoning_content"] = says(one) || other.is_null() ? one : other;
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
  // Answers without calls come back with null or [].
  const Json calls = message.value("tool_calls", Json());
  if (calls.is_null() || calls == Json::array()) {
    message.erase("tool_calls");
  } else {
    if (auto ok = read_tool_calls(message["tool_calls"], path + ".tool_calls"); !ok) return ok;
  }
  return read_reasoning(message, path);
}

std::string_view chat_role(const Json& message) {
  return message["role"].get_ref<const std::string&>();
}

// Ids of an assistant's calls.
struct Calls {
  std::set<std::string> ids, answered;
  bool any = false;
  bool unnamed = false;  // one has no id
};

// The id that `object` has as `name`; empty: none.
Result<std::string> id_in(const Json& object, const char* name, const std::string& path) {
  const Json id = object.value(name, Json());
  if (id.is_null()) return std::string();
  if (!id.is_string()) return bad_member(path, "a string", excerpt_of(id));
  return id.get<std::string>();
}

Result<Calls> calls_in(const Json& message, const std::string& path) {
  Calls out;
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return out;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const std::string here = fmt::format("{}.tool_calls[{}].id", path, i);
    const auto id = id_in((*calls)[i], "id", here);
    if (!id) return id.error();
    out.any = true;
    if (id->empty()) {
      out.unnamed = true;
    } else if (!out.ids.insert(*id).second) {
      return bad_member(here, "another id than the message's other calls'",
                        json_excerpt(Json(*id)));
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
    const std::string here = path + ".tool_call_id";
    const auto id = id_in(messages[i], "tool_call_id", here);
    if (!id) return id.error();
    if (id->empty()) continue;
    if (!calls.any || (!calls.unnamed && !calls.ids.contains(*id))) {
      return bad_member(here, "the id of a call in the assistant's message before it",
                        json_excerpt(Json(*id)));
    }
    if (!calls.answered.insert(*id).second) {
      return bad_member(here, "one result of each call",
                        "a second one of " + json_excerpt(Json(*id)));
    }
  }
  return {};
}

}  // namespace lathe
