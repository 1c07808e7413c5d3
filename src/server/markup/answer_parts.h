// AnswerParts: splits an answer's text into reasoning, content and tool calls as it arrives.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/markup/tool_format.h"

namespace lathe {

struct MarkupRules {
  bool reasoning = false;      // <think> and </think> are marks
  bool starts_inside = false;  // the prompt ends inside reasoning
  // Reasoning and its marks are content. Calls in it still are none.
  bool reasoning_stays = false;
  ToolFormat tools = ToolFormat::none;
  std::shared_ptr<const nlohmann::ordered_json> schemas;  // the request's tools; null: none
  bool one_call = false;                                  // the first call is the last
  bool list_of_calls = false;  // content is [{"name", "parameters"}, ...]
  // Special tokens that are marks, with the text that detokenising skips.
  std::vector<std::pair<std::int32_t, std::string>> tokens;
};

/// What a piece of text adds to each part of the answer.
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

/// Nothing is lost: text that does not parse, or is incomplete when the answer ends, becomes
/// content. Linear in the text; holds back at most the beginning of a mark, an open call, or a call
/// inside reasoning with what follows it, as the reasoning's end decides what it is.
class AnswerParts {
 public:
  explicit AnswerParts(MarkupRules rules);

  /// Appends the parts that `text` makes final to `out`.
  void push(std::string_view text, TextParts& out);
  /// Appends the rest at the end of the answer.
  void finish(TextParts& out);
  bool reasons() const { return state_ == State::reasoning; }
  std::size_t calls() const { return calls_; }
  /// The only call wanted is complete.
  bool complete() const { return rules_.one_call && calls_ > 0; }

 private:
  enum class State { reasoning, content, call };
  struct Mark {
    std::string_view text;
    enum Kind { think, end_think, call, around } kind;
  };
  bool may_end_nothing() const;
  bool counts(Mark::Kind kind) const;
  void take(Mark mark, TextParts& out);
  void give(std::string_view text, TextParts& out);
  void end_call(std::string_view body, TextParts& out);
  void read_list(std::string_view text, TextParts& out);

  MarkupRules rules_;
  ToolMarks tool_marks_;
  std::vector<Mark> marks_;
  std::string fronts_;  // first bytes of the marks
  State state_;
  std::string held_;           // held back: a mark's beginning, or a call's body
  std::size_t looked_ = 0;     // bytes of an open call already searched for its end
  bool drop_newline_ = false;  // directly after </think>
  bool reasoned_ = false;      // reasoning has ended
  bool unclosed_ = false;      // the answer has ended, and with it its reasoning
  bool began_ = false;         // something other than white space was emitted
  std::string spaces_;         // between calls, emitted only if text follows
  std::size_t calls_ = 0;
  // In a list of calls: the text after the last call, and the scanner's state in it.
  std::string list_;
  int depth_ = 0;
  bool quoted_ = false;
  bool escaped_ = false;
};

}  // namespace lathe
