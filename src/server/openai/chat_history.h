// ChatHistory: builds chat's list of messages from the items of another protocol.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "server/openai/source_paths.h"

namespace lathe {

/// What the assistant says, thinks and calls between two other messages becomes one message, as
/// chat templates expect.
class ChatHistory {
 public:
  /// `sources` gets the places of what is added.
  explicit ChatHistory(SourcePaths& sources) : sources_(sources) {}

  /// Adds a message of a user or of the system. System messages at the beginning become one.
  /// `path`: of its text, the member "content" of a message or a field.
  void add(std::string_view role, std::string text, const std::string& path);
  void add_answer(std::string_view text, const std::string& path);
  void add_reasoning(std::string_view text, const std::string& path);
  /// `arguments`: a JSON object, or its text; the call at `path` has them as `member`. False, and
  /// nothing added: another call of the message has that id.
  bool add_call(const std::string& id, const std::string& name, nlohmann::ordered_json arguments,
                const std::string& path, std::string_view member);
  /// Whether a call has had that id.
  bool has_call(const std::string& id) const { return calls_.contains(id); }
  /// Adds the result of a call, which has the text as `member`. False, and nothing added: there is
  /// no such call, or it has one.
  bool add_result(const std::string& id, std::string text, const std::string& path,
                  std::string_view member);

  bool empty() const { return messages_.empty(); }
  /// Whether the last message is the assistant's.
  bool ends_with_answer() const { return answering_; }
  /// Whether that message has text.
  bool ends_with_text() const;
  nlohmann::ordered_json take() { return std::move(messages_); }

 private:
  void append(const char* name, std::string_view text, const std::string& path);
  /// Chat's path of the last message.
  std::string last() const;

  SourcePaths& sources_;
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
  bool answering_ = false;                       // the last message is the assistant's
  std::unordered_map<std::string, bool> calls_;  // by id: whether the last one has its result
  std::unordered_set<std::string> turn_;         // ids of the last message's calls
};

}  // namespace lathe
