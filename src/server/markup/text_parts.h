// TextParts: what a piece of an answer's text adds to each part of the answer.
#pragma once

#include <string>
#include <vector>

#include "server/markup/tool_call.h"

namespace lathe {

struct TextParts {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  /// Keeps the capacity.
  void clear() {
    reasoning.clear();
    content.clear();
    calls.clear();
  }
};

}  // namespace lathe
