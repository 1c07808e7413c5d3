// ChatHistory: builds chat's list of messages from the items of another protocol.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace lathe {

/// What the assistant says, thinks and calls between two other messages becomes one message, as
/// chat templates expect.
class ChatHistory {
 public:
  /// Adds a message of a user or of the system. System messages at the beginning become one.
  void add(std::string_view role, std::string text);
  void add_answer(std::string_view text);
  void add_reasoning(std::string_view text);
  /// `arguments`: a JSON object, or its text. False, and nothing added: another call of the message
  /// has that id.
  bool add_call(const std::string& id, const std::string& name, nlohmann::ordered_json arguments);
  /// Whether a call has had that id.
  bool has_call(const std::string& id) const { return calls_.contains(id); }
  /// Adds the result of a call. False, and nothing added: there is no such call, or it has one.
  bool add_result(const std::string& id, std::string text);

  bool empty() const { return messages_.empty(); }
  /// Whether the last message is the assistant's.
  bool ends_with_answer() const { return answering_; }
  /// Whether that message has text.
  bool ends_with_text() const;
  nlohmann::ordered_json take() { return std::move(messages_); }

 private:
  void append(const char* name, std::string_view text);

  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  bool answering_ = false;                       // the last message is the assistant's
  std::unordered_map<std::string, bool> calls_;  // by id: whether the last one has its result
  std::unordered_set<std::string> turn_;         // ids of the last message's calls
};

}  // namespace lathe
