#include "server/service/chat_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/edit_distance.h"
#include "server/openai/field_readers.h"
#include "server/openai/fields.h"
#include "server/openai/object_reader.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::vector<std::string>;

constexpr std::size_t kMostNames = 9;  // the header has eight, and says that there are more
constexpr std::size_t kShownBy = 64;   // first bytes of a content that are looked for
constexpr std::size_t kTooShort = 16;  // a shorter instruction may be in the prompt by chance

// Whether a message's member says more than its absence. Answers have empty lists of these names,
// which clients send back.
bool has_value(const std::string& name, const Json& value) {
  const bool listed = name == "tool_calls" || name == "annotations";
  return !value.is_null() && !(listed && value.is_array() && value.empty());
}

std::string_view role_of(const Json& message) {
  return message["role"].get_ref<const std::string&>();
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
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

// A member of a message.
struct Place {
  std::size_t message;
  std::string member;
};

// `doubtful` gets members with the name of one that the template reads, of a message or of another
// object. A value of false says what absence does.
void find_unread_members(const ApiRequest& request, const ChatTemplate& chat, Names& out,
                         std::vector<Place>& doubtful) {
  if (request.route != ApiRoute::chat) return;
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const Json& message = request.messages[i];
    const bool assistant = role_of(message) == "assistant", tool = role_of(message) == "tool";
    for (const auto& item : message.items()) {
      const std::string& name = item.key();
      if (out.size() == kMostNames) return;
      if (name == "role" || name == "content" || !has_value(name, item.value())) continue;
      if (tool && name == "tool_call_id") continue;
      bool read = chat.reads_member(name);
      if (name == "tool_calls") read = assistant && read;
      if (name == "reasoning" || name == "reasoning_content") {
        read =
            assistant && (chat.reads_member("reasoning") || chat.reads_member("reasoning_content"));
      }
      const bool own = name == "reasoning" || name == "reasoning_content" || name == "tool_calls";
      if (!read) {
        out.push_back(fmt::format("messages[{}].{}", i, name));
      } else if (!own && item.value() != false && doubtful.size() < kMostNames) {
        doubtful.push_back({i, name});
      }
    }
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    for (std::size_t p = 0; p < content->size(); ++p) {
      for (const auto& item : (*content)[p].items()) {
        const std::string& name = item.key();
        // Every prompt is cached, whatever its marks.
        if (name == "type" || name == "text" || name == "cache_control") continue;
        if (out.size() == kMostNames) return;
        out.push_back(fmt::format("messages[{}].content[{}].{}", i, p, name));
      }
    }
  }
}

// Whether a member is meant for one that the server reads. A prompt may show it, but "paramters"
// binds no call.
bool is_misspelt(std::string_view member, std::initializer_list<std::string_view> known) {
  constexpr std::size_t kMostEdits = 2, kShortest = 6;
  return std::ranges::any_of(known, [&](std::string_view name) {
    return name.size() >= kShortest && member.size() <= name.size() + kMostEdits &&
           edit_distance(member, name) <= kMostEdits;
  });
}

// Members of tools and calls that neither the server nor the template knows. Templates that write
// whole objects as JSON show them.
void find_unread_tools(const ApiRequest& request, const ChatTemplate& chat, std::string_view prompt,
                       Names& out) {
  const auto add = [&](const Json& object, std::initializer_list<std::string_view> known,
                       const std::string& path) {
    Names unknown;
    note_unknown(object, known, path, unknown);
    for (std::string& name : unknown) {
      const std::string_view member = std::string_view(name).substr(path.size() + 1);
      const bool read = chat.reads_member(member) ||
                        prompt.find(fmt::format("\"{}\"", member)) != std::string_view::npos;
      if ((!read || is_misspelt(member, known)) && out.size() < kMostNames) {
        out.push_back(std::move(name));
      }
    }
  };
  if (request.route != ApiRoute::chat) return;
  for (std::size_t i = 0; i < request.tools.size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    add(request.tools[i], {"type", "function", "strict", "cache_control"}, path);
    add(request.tools[i]["function"],
        {"name", "description", "parameters", "strict", "cache_control"}, path + ".function");
  }
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const auto calls = request.messages[i].find("tool_calls");
    if (calls == request.messages[i].end() || role_of(request.messages[i]) != "assistant") continue;
    for (std::size_t c = 0; c < calls->size(); ++c) {
      const std::string path = fmt::format("messages[{}].tool_calls[{}]", i, c);
      add((*calls)[c], {"id", "type", "function"}, path);
      add((*calls)[c]["function"], {"name", "arguments"}, path + ".function");
    }
  }
}

// Whether a prompt that has a short text has it from this message alone.
bool shows(std::string_view text, const Json& messages, std::size_t message, bool tools,
           std::string_view prompt, std::string_view source) {
  constexpr std::size_t kByChance = 6;
  if (tools || text.size() < kByChance || prompt.find(text) == std::string_view::npos ||
      source.find(text) != std::string_view::npos) {
    return false;
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Json& content = messages[i]["content"];
    const bool plain = content.is_string() && messages[i].size() == 2;
    if (i != message &&
        (!plain || content.get_ref<const std::string&>().find(text) != std::string::npos)) {
      return false;
    }
  }
  return true;
}

// Contents that the prompt may not show. The assistant's are left out: templates drop parts of
// them on purpose.
std::vector<Place> suspects(const Json& messages, bool tools, std::string_view prompt,
                            std::string_view source) {
  std::vector<Place> out;
  std::size_t from = 0;  // contents come in the order of messages
  for (std::size_t i = 0; i < messages.size() && out.size() < kMostNames; ++i) {
    const Json& content = messages[i]["content"];
    if (role_of(messages[i]) == "assistant" || !content.is_string()) continue;
    const std::string_view text = trimmed(content.get_ref<const std::string&>());
    if (text.empty()) continue;
    if (role_of(messages[i]) == "system" && text.size() < kTooShort) {
      if (!shows(text, messages, i, tools, prompt, source)) out.push_back({i, "content"});
      continue;
    }
    const std::string_view front = text.substr(0, kShownBy);
    const std::size_t at = prompt.find(front, from);
    if (at == std::string_view::npos) {
      out.push_back({i, "content"});
    } else {
      from = at + front.size();
    }
  }
  return out;
}

// A text that no request has.
std::string word(std::size_t i) { return fmt::format("Qx7{}zK9", i); }

// The places with texts that prompts do not show.
std::vector<Place> unseen(std::vector<Place> places, const Json& variables,
                          const ChatTemplate& chat) {
  if (places.empty()) return places;
  Json changed = variables;
  for (std::size_t i = 0; i < places.size(); ++i) {
    changed["messages"][places[i].message][places[i].member] = word(i);
  }
  const auto other = chat.render(changed);
  if (!other) return {};  // it reads them
  std::vector<Place> out;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (other->find(word(i)) == std::string::npos) out.push_back(std::move(places[i]));
  }
  return out;
}

}  // namespace

Names find_unread(const ApiRequest& request, const Json& variables, const ChatTemplate& chat,
                  const std::string& prompt) {
  Names out;
  std::vector<Place> doubtful;
  find_unread_variables(request, chat, out);
  find_unread_members(request, chat, out, doubtful);
  find_unread_tools(request, chat, prompt, out);
  const Json& messages = variables["messages"];
  const bool tools = variables.contains("tools");
  for (const Place& place :
       unseen(suspects(messages, tools, prompt, chat.source()), variables, chat)) {
    out.push_back(fmt::format("messages[{}].content", place.message));
  }
  // A template may also look at a member without showing it.
  const auto is_text = [&](const Place& place) {
    return messages[place.message][place.member].is_string();
  };
  const auto others = std::stable_partition(doubtful.begin(), doubtful.end(), is_text);
  std::vector<Place> texts = unseen({doubtful.begin(), others}, variables, chat);
  texts.insert(texts.end(), others, doubtful.end());
  for (const Place& place : texts) {
    Json changed = variables;
    changed["messages"][place.message].erase(place.member);
    const auto other = chat.render(changed);
    if (!other || *other != prompt) continue;
    out.push_back(fmt::format("messages[{}].{}", place.message, place.member));
  }
  return out;
}

std::optional<ApiError> refuse_unread(const Names& unread) {
  static constexpr std::string_view kPublished[] = {
      "content",      "name",          "refusal",          "audio",      "function_call",
      "annotations",  "reasoning",     "description",      "tool_calls", "strict",
      "tool_call_id", "cache_control", "reasoning_content"};
  for (const std::string& path : unread) {
    if (!path.starts_with("messages[") && !path.starts_with("tools[")) continue;
    const std::string_view member = std::string_view(path).substr(path.rfind('.') + 1);
    if (std::ranges::find(kPublished, member) == std::end(kPublished)) {
      return bad_field(shown_path(path), "a known name", "an unknown one");
    }
  }
  return std::nullopt;
}

}  // namespace lathe
