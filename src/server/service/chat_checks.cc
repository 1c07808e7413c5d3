#include "server/service/chat_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "server/openai/field_readers.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

constexpr std::size_t kMostNames = 8;  // the header has no more
constexpr std::size_t kShownBy = 64;   // first bytes of a content that are looked for
constexpr std::size_t kTooShort = 16;  // a shorter instruction may be in the prompt by chance

bool has_value(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && !at->is_null() && !(at->is_structured() && at->empty());
}

// Ids of an assistant's calls.
struct Calls {
  std::set<std::string> ids;
  bool any = false;
  bool unnamed = false;  // one has no id
};

Result<Calls, ApiError> calls_in(const Json& message, const std::string& path) {
  Calls out;
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return out;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const Json id = (*calls)[i].value("id", Json());
    if (!id.is_null() && !id.is_string()) {
      return bad_field(fmt::format("{}.tool_calls[{}].id", path, i), "a string", excerpt(id));
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

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// The request's own name of a message's content. Other protocols' messages are made of several
// items.
std::string content_name(const ApiRequest& request, std::size_t i, const Json& role) {
  if (request.route == ApiRoute::messages)
    return i == 0 && role == "system" ? "system" : "messages";
  if (request.route == ApiRoute::responses) {
    return i == 0 && role == "system" && request.echoed.contains("instructions") ? "instructions"
                                                                                 : "input";
  }
  return fmt::format("messages[{}].content", i);
}

void add_name(Names& out, std::string name) {
  if (std::ranges::find(out, name) == out.end()) out.push_back(std::move(name));
}

void find_unread_variables(const ApiRequest& request, const ChatTemplate& chat, Names& out) {
  if (request.reasoning_effort && !chat.reads_variable("reasoning_effort")) {
    out.emplace_back("reasoning_effort");
  }
  if (!request.template_kwargs.is_object()) return;
  const bool thinks = chat.reads_variable("enable_thinking") || chat.reads_variable("thinking");
  for (const auto& item : request.template_kwargs.items()) {
    const std::string& name = item.key();
    if (out.size() == kMostNames) return;
    // /v1/messages sets both for its switch.
    const bool own =
        request.route == ApiRoute::messages && (name == "enable_thinking" || name == "thinking");
    if (own) {
      if (!thinks) add_name(out, "thinking.type");
    } else if (!chat.reads_variable(name)) {
      out.push_back("chat_template_kwargs." + name);
    }
  }
}

void find_unread_members(const ApiRequest& request, const ChatTemplate& chat, Names& out) {
  if (request.route != ApiRoute::chat) return;
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const Json& message = request.messages[i];
    const bool assistant = message["role"] == "assistant", tool = message["role"] == "tool";
    for (const auto& item : message.items()) {
      const std::string& name = item.key();
      if (out.size() == kMostNames) return;
      if (name == "role" || name == "content" || !has_value(message, name.c_str())) continue;
      if (tool && name == "tool_call_id") continue;
      bool read = chat.reads_member(name);
      if (name == "tool_calls") read = assistant && read;
      if (name == "reasoning" || name == "reasoning_content") {
        read =
            assistant && (chat.reads_member("reasoning") || chat.reads_member("reasoning_content"));
      }
      if (!read) out.push_back(fmt::format("messages[{}].{}", i, name));
    }
    const Json& content = message.value("content", Json());
    for (std::size_t p = 0; content.is_array() && p < content.size(); ++p) {
      for (const auto& item : content[p].items()) {
        const std::string& name = item.key();
        // Every prompt is cached, whatever its marks.
        if (name == "type" || name == "text" || name == "cache_control") continue;
        if (out.size() == kMostNames) return;
        out.push_back(fmt::format("messages[{}].content[{}].{}", i, p, name));
      }
    }
  }
}

// Messages with a content that the prompt may not show. The assistant's are left out: templates
// drop parts of them on purpose.
std::vector<std::size_t> suspects(const Json& messages, std::string_view prompt) {
  std::vector<std::size_t> out;
  std::size_t from = 0;  // contents come in the order of messages
  for (std::size_t i = 0; i < messages.size() && out.size() < kMostNames; ++i) {
    const Json& content = messages[i]["content"];
    if (messages[i]["role"] == "assistant" || !content.is_string()) continue;
    const std::string_view text = trimmed(content.get_ref<const std::string&>());
    if (text.empty()) continue;
    if (messages[i]["role"] == "system" && text.size() < kTooShort) {
      out.push_back(i);
      continue;
    }
    const std::string_view front = text.substr(0, kShownBy);
    const std::size_t at = prompt.find(front, from);
    if (at == std::string_view::npos) {
      out.push_back(i);
    } else {
      from = at + front.size();
    }
  }
  return out;
}

}  // namespace

std::optional<ApiError> check_results(const Json& messages) {
  Calls calls;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (messages[i]["role"] == "assistant") {
      auto own = calls_in(messages[i], path);
      if (!own) return own.error();
      calls = std::move(*own);
      continue;
    }
    if (messages[i]["role"] != "tool") {
      calls = {};
      continue;
    }
    const Json id = messages[i].value("tool_call_id", Json());
    if (id.is_null()) continue;
    if (!id.is_string()) return bad_field(path + ".tool_call_id", "a string", excerpt(id));
    const bool known = calls.any && (calls.unnamed || calls.ids.contains(id.get<std::string>()));
    if (known) continue;
    return bad_field(path + ".tool_call_id",
                     "the id of a call in the assistant's message before it", excerpt(id));
  }
  return std::nullopt;
}

Names find_unread(const ApiRequest& request, const Json& variables, const ChatTemplate& chat,
                  const std::string& prompt) {
  Names out;
  find_unread_variables(request, chat, out);
  find_unread_members(request, chat, out);
  const auto suspected = suspects(variables["messages"], prompt);
  if (suspected.empty()) return out;
  Json changed = variables;
  const auto word = [](std::size_t i) { return fmt::format("Qx7{}zK9", i); };
  for (const std::size_t i : suspected) changed["messages"][i]["content"] = word(i);
  const auto other = chat.render(changed);
  if (!other) return out;  // it reads them
  for (const std::size_t i : suspected) {
    if (other->find(word(i)) != std::string::npos) continue;
    add_name(out, content_name(request, i, variables["messages"][i]["role"]));
  }
  return out;
}

}  // namespace lathe
