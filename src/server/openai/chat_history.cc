#include "server/openai/chat_history.h"

#include <utility>

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void ChatHistory::add(std::string_view role, std::string text) {
  answering_ = false;
  if (role == "system" && messages_.size() == 1 && messages_[0]["role"] == "system") {
    messages_[0]["content"].get_ref<std::string&>() += "\n\n" + text;
    return;
  }
  messages_.push_back({{"role", role}, {"content", std::move(text)}});
}

// Appends to a text of the assistant's message, which is begun if need be.
void ChatHistory::append(const char* name, std::string_view text) {
  if (!answering_) messages_.push_back({{"role", "assistant"}, {"content", ""}});
  answering_ = true;
  Json& value = messages_.back()[name];
  if (value.is_null()) value = "";
  value.get_ref<std::string&>() += text;
}

bool ChatHistory::ends_with_text() const {
  return answering_ && !messages_.back()["content"].get_ref<const std::string&>().empty();
}

void ChatHistory::add_answer(std::string_view text) { append("content", text); }

void ChatHistory::add_reasoning(std::string_view text) { append("reasoning_content", text); }

bool ChatHistory::add_call(const std::string& id, const std::string& name, Json arguments) {
  if (!answering_) turn_.clear();
  if (!turn_.insert(id).second) return false;
  calls_[id] = false;
  append("content", "");
  messages_.back()["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  return true;
}

bool ChatHistory::add_result(const std::string& id, std::string text) {
  const auto call = calls_.find(id);
  if (call == calls_.end() || std::exchange(call->second, true)) return false;
  answering_ = false;
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
  return true;
}

}  // namespace lathe
