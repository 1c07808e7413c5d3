// CallIds: the ids of an answer's tool calls.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "server/markup/tool_call.h"
#include "server/markup/tool_format.h"

namespace lathe {

/// No two calls of a conversation have one id, or a client could not say which one a result is of.
class CallIds {
 public:
  /// `messages`: the conversation in chat's form; outlives this.
  CallIds(ToolFormat format, const nlohmann::ordered_json& messages)
      : format_(format), messages_(&messages) {}

  /// The id of a call, which is added to `given`, the ids of the answer's earlier calls. The
  /// model's own id where its template reads ids (kimi, mistral) and no call has it, else another.
  std::string add(const ToolCall& call, std::set<std::string>& given);

 private:
  bool is_taken(const std::string& id, const std::set<std::string>& given);

  ToolFormat format_;
  const nlohmann::ordered_json* messages_;
  std::optional<std::set<std::string>> earlier_;  // ids in messages_; read for the first call
};

}  // namespace lathe
