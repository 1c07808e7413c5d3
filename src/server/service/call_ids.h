// CallIds: the ids of an answer's tool calls.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "server/markup/tool_call.h"
#include "server/markup/tool_format.h"

namespace lathe {

/// The ids of calls in `messages`, a conversation in chat's form. Empty for a format whose
/// templates show no ids.
std::set<std::string> earlier_call_ids(ToolFormat format, const nlohmann::ordered_json& messages);

/// No two calls of a conversation have one id, or a client could not say which one a result is of.
class CallIds {
 public:
  CallIds(ToolFormat format, std::set<std::string> earlier)
      : format_(format), earlier_(std::move(earlier)) {}

  /// The id of a call, which is added to `given`, the ids of the answer's earlier calls. The
  /// model's own id where its template reads ids (kimi, mistral) and no call has it, else another.
  std::string add(const ToolCall& call, std::set<std::string>& given);

 private:
  ToolFormat format_;
  std::set<std::string> earlier_;
};

}  // namespace lathe
