#include "server/openai/chat_history.h"

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

void ChatHistory::add_call(const std::string& id, const std::string& name, Json arguments) {
  append("content", "");
  messages_.back()["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  calls_.insert(id);
}

bool ChatHistory::add_result(const std::string& id, std::string text) {
  if (!calls_.contains(id)) return false;
  answering_ = false;
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
  return true;
}

}  // namespace lathe
