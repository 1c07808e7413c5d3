#include "io/template/harmony_chat.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/json.h"
#include "base/json_digits.h"
#include "io/template/jinja_failure.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void reject(std::string field, std::string wanted, std::string got,
                         std::string hint = "") {
  throw JinjaFailure{{ErrorCode::invalid_argument, std::move(field), std::move(wanted),
                      std::move(got), std::move(hint)}};
}

const Json* value_of(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string string_of(const Json& object, const char* key, const std::string& path,
                      std::string otherwise = "") {
  const Json* value = value_of(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) reject(path + key, "a string", json_excerpt(*value));
  return value->get<std::string>();
}

// A text, or text parts one after another.
std::string content_text(const Json& message, const std::string& path) {
  const Json* content = value_of(message, "content");
  if (content == nullptr || !content->is_array()) return string_of(message, "content", path);
  std::string out;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string here = fmt::format("{}content[{}].", path, i);
    if (!part.is_object() || part.value("type", Json()) != "text") {
      reject(here + "type", "\"text\"", json_excerpt(part));
    }
    out += string_of(part, "text", here);
  }
  return out;
}

// On one line without spaces, as answers' arguments are; numbers keep their digits.
std::string compact_text(const Json& value) {
  if (const auto digits = digits_of(value)) return *digits;
  if (!value.is_structured()) return json_text(value);
  std::string out;
  for (const auto& [key, inner] : value.items()) {
    if (!out.empty()) out += ',';
    if (value.is_object()) out += json_text(key) + ":";
    out += compact_text(inner);
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

class HarmonyRendering {
 public:
  HarmonyRendering(const Json& variables, const std::tm& now) : variables_(variables) {
    if (const Json* builtin = value_of(variables, "builtin_tools");
        builtin != nullptr && !builtin->empty()) {
      reject("builtin_tools", "none, as the server runs no browser and no python",
             json_excerpt(*builtin), "a function in tools");
    }
    const Json* messages = value_of(variables, "messages");
    if (messages == nullptr || !messages->is_array() || messages->empty()) {
      reject("messages", "at least one message", "none");
    }
    if (const Json* tools = value_of(variables, "tools")) tools_ = *tools;
    if (!tools_.is_array()) tools_ = Json::array();
    write("system", "", system_text(now));
    std::size_t i = 0;
    const std::string role = string_of((*messages)[0], "role", "messages[0].");
    std::optional<std::string> instructions;
    if (role == "system" || role == "developer") {
      instructions = content_text((*messages)[i++], "messages[0].");
    }
    if (instructions || !tools_.empty()) write("developer", "", developer_text(instructions, true));
    find_dropped(*messages);
    for (; i < messages->size(); ++i) add((*messages)[i], i, fmt::format("messages[{}].", i));
    const Json* opens = value_of(variables, "add_generation_prompt");
    if (opens == nullptr || *opens != false) out_ += "<|start|>assistant";
  }

  std::string text() { return std::move(out_); }

 private:
  void write(const std::string& author, const std::string& header, const std::string& text,
             const char* end = "<|end|>") {
    out_ += "<|start|>" + author + header + "<|message|>" + text + end;
  }

  std::string system_text(const std::tm& now) {
    const std::string effort = string_of(variables_, "reasoning_effort", "", "medium");
    if (effort != "low" && effort != "medium" && effort != "high") {
      reject("reasoning_effort", "low, medium or high", effort);
    }
    const std::string date =
        fmt::format("{:04}-{:02}-{:02}", now.tm_year + 1900, now.tm_mon + 1, now.tm_mday);
    std::string out = string_of(variables_, "model_identity", "",
                                "You are ChatGPT, a large language model trained by OpenAI.");
    out += "\nKnowledge cutoff: " + string_of(variables_, "knowledge_cutoff", "", "2024-06");
    out += "\nCurrent date: " + string_of(variables_, "conversation_start_date", "", date);
    out += "\n\nReasoning: " + effort;
    out +=
        "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
        "message.";
    if (!tools_.empty()) {
      out += "\nCalls to these tools must go to the commentary channel: 'functions'.";
    }
    return out;
  }

  std::string developer_text(const std::optional<std::string>& instructions, bool with_tools) {
    std::string out;
    if (instructions) out = "# Instructions\n\n" + *instructions;
    if (!with_tools || tools_.empty()) return out;
    return out + (out.empty() ? "" : "\n\n") + harmony_tools(tools_);
  }

  static bool is_final(const Json& message) {
    return message.value("role", Json()) == "assistant" && !has_calls(message);
  }
  static bool has_calls(const Json& message) {
    const Json* calls = value_of(message, "tool_calls");
    return calls != nullptr && !calls->empty();
  }

  // If the last answer is final, reasoning before the first final one is left out.
  void find_dropped(const Json& messages) {
    std::size_t first = messages.size();
    bool last_is_final = false;
    for (std::size_t i = messages.size(); i-- > 0;) {
      if (!messages[i].is_object()) reject(fmt::format("messages[{}]", i), "a message", "");
      if (messages[i].value("role", Json()) != "assistant") continue;
      if (first == messages.size() && !seen_answer_) last_is_final = is_final(messages[i]);
      seen_answer_ = true;
      if (is_final(messages[i])) first = i;
    }
    if (last_is_final) dropped_ = first;
  }

  void add(const Json& message, std::size_t i, const std::string& path) {
    const std::string role = string_of(message, "role", path);
    const std::string text = content_text(message, path);
    if (role == "user") return write("user", "", text);
    if (role == "system" || role == "developer") {
      return write("developer", "", developer_text(text, false));
    }
    if (role == "assistant") return add_answer(message, i, path, text);
    if (role == "tool") return add_result(message, path, text);
    reject(path + "role", "system, developer, user, assistant or tool", role);
  }

  void add_answer(const Json& message, std::size_t i, const std::string& path,
                  const std::string& text) {
    std::string reasoning = string_of(message, "reasoning_content", path);
    if (reasoning.empty()) reasoning = string_of(message, "reasoning", path);
    if (reasoning.empty()) reasoning = string_of(message, "thinking", path);
    const bool dropped = dropped_ && i <= *dropped_;
    if (!reasoning.empty() && !dropped) write("assistant", "<|channel|>analysis", reasoning);
    if (!has_calls(message)) return write("assistant", "<|channel|>final", text);
    if (!text.empty()) write("assistant", "<|channel|>commentary", text);
    const Json& calls = *value_of(message, "tool_calls");
    for (std::size_t c = 0; c < calls.size(); ++c) add_call(calls[c], c, path);
  }

  void add_call(const Json& call, std::size_t c, const std::string& path) {
    const std::string here = fmt::format("{}tool_calls[{}].function", path, c);
    const Json* function = call.is_object() ? value_of(call, "function") : nullptr;
    if (function == nullptr || !function->is_object()) {
      reject(here, "an object with name and arguments", json_excerpt(call));
    }
    const std::string name = string_of(*function, "name", here + ".");
    const Json* arguments = value_of(*function, "arguments");
    const std::string text = arguments == nullptr     ? "{}"
                             : arguments->is_string() ? arguments->get<std::string>()
                                                      : compact_text(*arguments);
    write("assistant to=functions." + name, "<|channel|>commentary json", text, "<|call|>");
    last_call_ = name;
    const Json* id = value_of(call, "id");
    if (id != nullptr && id->is_string()) names_[id->get<std::string>()] = name;
  }

  // A result bears the name of the function that its call names.
  void add_result(const Json& message, const std::string& path, const std::string& text) {
    const auto named = names_.find(string_of(message, "tool_call_id", path));
    const std::string name =
        named != names_.end() ? named->second : string_of(message, "name", path, last_call_);
    if (name.empty()) reject(path + "tool_call_id", "the id of a call before it", "none");
    write("functions." + name + " to=assistant", "<|channel|>commentary", text);
  }

  const Json& variables_;
  Json tools_;
  std::optional<std::size_t> dropped_;  // the message up to which reasoning is left out
  bool seen_answer_ = false;
  std::map<std::string, std::string> names_;  // of functions, by calls' ids
  std::string last_call_;
  std::string out_;
};

}  // namespace

std::string render_harmony(const Json& variables, const std::tm& now) {
  return HarmonyRendering(variables, now).text();
}

}  // namespace lathe
