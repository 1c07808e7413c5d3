// TextParts: what a piece of an answer's text adds to each part of the answer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/markup/tool_call.h"

namespace lathe {

enum class PartKind { reasoning, content, call };

/// What an answer has of one kind between others: so many bytes of text, or calls.
struct PartRun {
  PartKind kind = PartKind::content;
  std::size_t size = 0;
};

/// Adds to the last run if that is of the same kind.
inline void add_run(std::vector<PartRun>& order, PartRun run) {
  if (run.size == 0) return;
  if (!order.empty() && order.back().kind == run.kind) {
    order.back().size += run.size;
  } else {
    order.push_back(run);
  }
}

struct TextParts {
  // Filled by add_...().
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::vector<PartRun> order;  // in which the model wrote them

  void add_reasoning(std::string_view text) {
    reasoning += text;
    add_run(order, {PartKind::reasoning, text.size()});
  }
  void add_content(std::string_view text) {
    content += text;
    add_run(order, {PartKind::content, text.size()});
  }
  void add_call(ToolCall call) {
    calls.push_back(std::move(call));
    add_run(order, {PartKind::call, 1});
  }

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  /// Keeps the capacity.
  void clear() {
    reasoning.clear();
    content.clear();
    calls.clear();
    order.clear();
  }
};

}  // namespace lathe
