#include "server/openai/chat_history.h"

#include <fmt/format.h>

#include <utility>

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// The client's message or item that a path is in.
std::string item_of(const std::string& path) { return path.substr(0, path.find(']') + 1); }

}  // namespace

std::string ChatHistory::last() const { return fmt::format("messages[{}]", messages_.size() - 1); }

void ChatHistory::add(std::string_view role, std::string text, const std::string& path) {
  answering_ = false;
  if (role == "system" && messages_.size() == 1 && messages_[0]["role"] == "system") {
    messages_[0]["content"].get_ref<std::string&>() += "\n\n" + text;
    return;
  }
  messages_.push_back({{"role", role}, {"content", std::move(text)}});
  if (const std::string item = item_of(path); !item.empty()) {
    sources_.add_copy(last(), item);
  } else {
    sources_.add(last(), path);
  }
}

// Appends to a text of the assistant's message, which is begun if need be.
void ChatHistory::append(const char* name, std::string_view text, const std::string& path) {
  if (!answering_) {
    messages_.push_back({{"role", "assistant"}, {"content", ""}});
    sources_.add(last(), item_of(path));
  }
  answering_ = true;
  Json& value = messages_.back()[name];
  if (value.is_null()) value = "";
  if (value == "") sources_.add(fmt::format("{}.{}", last(), name), path);
  value.get_ref<std::string&>() += text;
}

bool ChatHistory::ends_with_text() const {
  return answering_ && !messages_.back()["content"].get_ref<const std::string&>().empty();
}

void ChatHistory::add_answer(std::string_view text, const std::string& path) {
  append("content", text, path);
}

void ChatHistory::add_reasoning(std::string_view text, const std::string& path) {
  append("reasoning_content", text, path);
}

bool ChatHistory::add_call(const std::string& id, const std::string& name, Json arguments,
                           const std::string& path, std::string_view member) {
  if (!answering_) turn_.clear();
  if (!turn_.insert(id).second) return false;
  calls_[id] = false;
  append("content", "", path);
  Json& calls = messages_.back()["tool_calls"];
  const std::string call = fmt::format("{}.tool_calls[{}]", last(), calls.size());
  sources_.add(call, path);
  sources_.add_copy(call + ".function.arguments", fmt::format("{}.{}", path, member));
  calls.push_back({{"id", id},
                   {"type", "function"},
                   {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  return true;
}

bool ChatHistory::add_result(const std::string& id, std::string text, const std::string& path,
                             std::string_view member) {
  const auto call = calls_.find(id);
  if (call == calls_.end() || std::exchange(call->second, true)) return false;
  answering_ = false;
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
  sources_.add(last(), path);
  sources_.add(last() + ".content", fmt::format("{}.{}", path, member));
  return true;
}

}  // namespace lathe
