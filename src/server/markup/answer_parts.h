// AnswerParts: splits an answer's text into reasoning, content and tool calls as it arrives.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/markup/call_end.h"
#include "server/markup/harmony_parts.h"
#include "server/markup/reasoning_format.h"
#include "server/markup/text_parts.h"
#include "server/markup/tool_format.h"

namespace lathe {

struct MarkupRules {
  bool reasoning = false;  // the marks of reasoning count
  ReasoningFormat reasoning_format = ReasoningFormat::think;
  bool starts_inside = false;  // the prompt ends inside reasoning
  // Reasoning and its marks are content. Calls in it still are none.
  bool reasoning_stays = false;
  ToolFormat tools = ToolFormat::none;
  std::shared_ptr<const nlohmann::ordered_json> schemas;  // the request's tools; null: none
  bool one_call = false;                                  // the first call is the last
  // Calls without marks are none; or they are only where they begin the answer.
  bool no_bare = false, bare_first = false;
  // The answer is text or calls: marks of calls after text are text.
  bool text_or_calls = false;
  // A constraint begins where reasoning ends: calls in reasoning that has no end are none.
  bool constrained = false;
  bool list_of_calls = false;  // content is [{"name", "parameters"}, ...]
  // Special tokens that are marks, with the text that detokenising skips.
  std::vector<std::pair<std::int32_t, std::string>> tokens;
  // The answer is messages in channels. Of the above, only one_call and `tokens` count then.
  std::optional<HarmonyRules> harmony = std::nullopt;
};

/// Nothing is lost: text that does not parse, or is incomplete when the answer ends, becomes
/// content. Linear in the text; holds back at most the beginning of a mark, the marks that begin a
/// section of calls, an open call, or a call inside reasoning with what follows it, as the
/// reasoning's end decides what it is.
///
/// A call that does not parse hides no later one: if another begins in its text, outside quotes,
/// the text before that one is content. At the end of a whole answer a quote may be missing, and a
/// mark after it counts, too.
///
/// JSON or Python that calls a function of the request is a call also without marks, if the format
/// has such calls: where the answer begins with it, or where nothing else follows.
class AnswerParts {
 public:
  explicit AnswerParts(MarkupRules rules);

  /// Appends the parts that `text` makes final to `out`.
  void push(std::string_view text, TextParts& out);
  /// Appends the rest at the end of the answer. `whole`: it ended by itself, not by a limit or a
  /// stop string, so that a complete call may lack its end mark.
  void finish(TextParts& out, bool whole = true);
  bool reasons() const { return state_ == State::reasoning; }
  std::size_t calls() const { return calls_; }
  /// The only call wanted is complete.
  bool complete() const { return rules_.one_call && calls_ > 0; }

 private:
  // bare: in JSON or Python that may be a call; after_bare: after one that is, if nothing follows.
  enum class State { reasoning, content, call, bare, after_bare };
  struct Mark {
    std::string_view text;
    // around: begins a section of calls. stray_end: the end mark of a section, or of a call without
    // its begin mark.
    enum Kind { think, end_think, call, around, stray_end } kind;
    const CallMarks* call_marks = nullptr;  // of call
  };
  struct Found {
    std::size_t at = std::string_view::npos;
    Mark mark{};
    std::size_t kept = 0;  // bytes at the end that may become a mark
  };
  bool may_end_nothing() const;
  bool counts(Mark::Kind kind) const;
  Found find_mark() const;
  std::size_t find_bare() const;
  bool is_bare(std::string_view text) const;
  bool has_front(std::string_view text) const;
  bool step(TextParts& out);
  bool step_call(TextParts& out);
  bool step_bare(TextParts& out);
  bool step_after_bare(TextParts& out);
  void take(const Mark& mark, TextParts& out);
  void give(std::string_view text, TextParts& out);
  void give_bare(TextParts& out);
  bool add_calls(ToolCalls calls, TextParts& out);
  void read_list(std::string_view text, TextParts& out);
  std::size_t find_later_call(CallBody body, std::string_view text, bool anywhere) const;
  void refuse_call(std::string_view body, std::string_view end, TextParts& out);
  std::string_view without_section_end() const;
  void finish_call(TextParts& out, bool whole);

  MarkupRules rules_;
  const ToolMarks* tool_marks_;
  ReasoningMarks think_;
  std::vector<Mark> marks_;
  std::bitset<256> fronts_;  // first bytes of marks, and of calls without marks
  State state_;
  std::string held_;                 // held back: a mark's beginning, or a call's text
  const CallMarks* open_ = nullptr;  // the open call's
  CallScan scan_;                    // of the open call
  int reopened_ = 0;                 // calls that did not parse and held the mark of a later one
  std::size_t looked_ = 0;           // bytes of a call in reasoning already searched for its end
  bool drop_newline_ = false;        // directly after </think>
  bool reasoned_ = false;            // reasoning has ended
  bool unclosed_ = false;            // the answer has ended, and with it its reasoning
  bool cut_ = false;                 // and a limit or a stop string ended it
  bool began_ = false;               // something other than white space was emitted
  bool after_call_ = false;          // nothing was emitted after a call
  std::string
      around_;  // marks of kind around, and white space before them: text if no call follows
  std::string spaces_;  // between calls, emitted only if text follows
  std::size_t calls_ = 0;
  // Calls without marks that are none if text follows, and their text.
  std::vector<ToolCall> bare_calls_;
  std::string bare_text_;
  // In a list of calls: the text after the last call, and the scanner's state in it.
  std::string list_;
  int depth_ = 0;
  bool quoted_ = false;
  bool escaped_ = false;
  std::optional<HarmonyParts> harmony_;
};

}  // namespace lathe
