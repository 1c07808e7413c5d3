#include "server/markup/answer_parts.h"

#include <algorithm>

namespace lathe {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";

// Length of the longest suffix of `text` that is a proper prefix of the mark.
std::size_t beginning_of(std::string_view mark, std::string_view text) {
  for (std::size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

AnswerParts::AnswerParts(MarkupRules rules)
    : rules_(std::move(rules)),
      tool_marks_(tool_marks(rules_.tools)),
      state_(rules_.reasoning && rules_.starts_inside ? State::reasoning : State::content) {
  if (rules_.schemas == nullptr) rules_.schemas = std::make_shared<nlohmann::ordered_json>();
  if (rules_.reasoning) marks_ = {{kEndThink, Mark::end_think}, {kThink, Mark::think}};
  if (rules_.tools != ToolFormat::none && !rules_.list_of_calls) {
    marks_.push_back({tool_marks_.begin, Mark::call});
    for (std::string_view mark : tool_marks_.around) marks_.push_back({mark, Mark::around});
  }
  for (const Mark& mark : marks_) {
    if (fronts_.find(mark.text[0]) == std::string::npos) fronts_ += mark.text[0];
  }
}

// Whether </think> may end reasoning that was left out.
bool AnswerParts::may_end_nothing() const {
  return !reasoned_ && !began_ && calls_ == 0 && rules_.tools != ToolFormat::dsml;
}

// Whether marks of this kind count in the current state.
bool AnswerParts::counts(Mark::Kind kind) const {
  switch (kind) {
    case Mark::end_think:
      // Before anything else it ends reasoning that was left out.
      return state_ == State::reasoning || may_end_nothing();
    case Mark::think:
      return state_ == State::content && !began_;
    default:
      return true;
  }
}

void AnswerParts::push(std::string_view text, TextParts& out) {
  if (marks_.empty()) {
    give(text, out);
    return;
  }
  held_ += text;
  for (;;) {
    if (complete()) {
      held_.clear();
      return;
    }
    if (state_ == State::call) {
      const std::size_t end = find_call_end(rules_.tools, held_, looked_);
      if (end == std::string::npos) return;
      looked_ = 0;
      const std::string body = held_.substr(0, end);
      held_.erase(0, end + tool_marks_.end.size());
      end_call(body, out);
      continue;
    }
    if (state_ == State::reasoning && looked_ > 0 && !unclosed_) {
      // held_ begins with a call. What it is depends on whether the reasoning has an end.
      const std::size_t end = held_.find(kEndThink, looked_);
      if (end == std::string::npos) {
        looked_ = held_.size() - std::min(held_.size() - 1, kEndThink.size());
        return;
      }
      looked_ = 0;
      give(std::string_view(held_).substr(0, end), out);
      held_.erase(0, end);
      continue;
    }
    if (held_.find_first_of(fronts_) == std::string::npos) {
      give(held_, out);
      held_.clear();
      return;
    }
    std::size_t first = std::string::npos;
    Mark found{};
    std::size_t kept = 0;
    for (const Mark& mark : marks_) {
      if (!counts(mark.kind)) continue;
      const std::size_t at = held_.find(mark.text);
      if (at < first ||
          (at == first && at != std::string::npos && mark.text.size() > found.text.size())) {
        first = at;
        found = mark;
      }
      kept = std::max(kept, beginning_of(mark.text, held_));
    }
    if (first == std::string::npos) {
      const std::string final_text = held_.substr(0, held_.size() - kept);
      held_.erase(0, final_text.size());
      give(final_text, out);
      return;
    }
    give(std::string_view(held_).substr(0, first), out);
    held_.erase(0, first);
    const bool call = found.kind == Mark::call || found.kind == Mark::around;
    if (state_ == State::reasoning && call && !unclosed_) {
      looked_ = found.text.size();
      continue;
    }
    held_.erase(0, found.text.size());
    take(found, out);
  }
}

void AnswerParts::take(Mark mark, TextParts& out) {
  switch (mark.kind) {
    case Mark::think:
      if (began_) {  // text other than white space came before it
        give(mark.text, out);
        return;
      }
      if (rules_.reasoning_stays) out.content.append(spaces_).append(mark.text);
      spaces_.clear();
      state_ = State::reasoning;
      return;
    case Mark::end_think:
      if (state_ == State::content && !may_end_nothing()) {  // text came before it
        give(mark.text, out);
        return;
      }
      reasoned_ = true;
      if (rules_.reasoning_stays) {
        out.content.append(spaces_).append(mark.text);
        began_ = true;
      }
      spaces_.clear();
      state_ = State::content;
      if (rules_.reasoning_stays) return;
      drop_newline_ = rules_.tools != ToolFormat::dsml;  // dsml keeps all that follows as content
      return;
    case Mark::call:
      state_ = State::call;
      return;
    case Mark::around:
      state_ = State::content;
      // The last two newlines before the first call belong to the mark, earlier ones to the
      // content.
      if (rules_.tools == ToolFormat::dsml && calls_ == 0 && began_ && spaces_.ends_with("\n\n")) {
        out.content.append(spaces_, 0, spaces_.size() - 2);
        spaces_.clear();
      }
      return;
  }
}

void AnswerParts::give(std::string_view text, TextParts& out) {
  if (text.empty()) return;
  if (state_ == State::reasoning) {
    (rules_.reasoning_stays ? out.content : out.reasoning) += text;
    return;
  }
  if (std::exchange(drop_newline_, false) && text.front() == '\n') text.remove_prefix(1);
  if (rules_.list_of_calls) {
    began_ = true;
    read_list(text, out);
    return;
  }
  // White space before a mark or between calls belongs to the mark; it is emitted only if text
  // follows.
  const bool waits = rules_.tools != ToolFormat::none || (rules_.reasoning && !began_);
  if (!waits) {
    if (!spaces_.empty()) out.content += std::exchange(spaces_, {});
    out.content += text;
    began_ = true;
    return;
  }
  const std::size_t last = text.find_last_not_of(kJsonSpace);
  if (last == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  out.content += spaces_;
  out.content += text.substr(0, last + 1);
  spaces_ = text.substr(last + 1);
  began_ = true;
}

void AnswerParts::end_call(std::string_view body, TextParts& out) {
  state_ = State::content;
  auto calls = read_tool_calls(rules_.tools, body, *rules_.schemas);
  if (calls) {
    spaces_.clear();
    for (ToolCall& call : *calls) {
      if (complete()) return;
      call.text_before = out.content.size();
      out.calls.push_back(std::move(call));
      ++calls_;
    }
    return;
  }
  give(std::string(tool_marks_.begin) + std::string(body) + std::string(tool_marks_.end), out);
}

// An object in the list becomes a call at its last brace.
void AnswerParts::read_list(std::string_view text, TextParts& out) {
  if (complete()) return;
  for (const char c : text) {
    list_ += c;
    if (quoted_) {
      quoted_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      continue;
    }
    quoted_ = c == '"';
    if (c == '{' || c == '[') ++depth_;
    if (c != '}' && c != ']') continue;
    --depth_;
    if (depth_ != 1 || c != '}') continue;
    auto call = read_tool_calls(ToolFormat::tag, list_.substr(list_.find('{')), *rules_.schemas);
    if (!call) continue;
    out.calls.push_back(std::move(call->front()));
    out.calls.back().text_before = out.content.size();
    ++calls_;
    list_.clear();
    if (complete()) return;
  }
}

void AnswerParts::finish(TextParts& out) {
  unclosed_ = true;
  if (state_ == State::reasoning) {
    looked_ = 0;
    push("", out);
  }
  if (complete()) return;
  // What is not a call is text, except the list's own marks after its last call.
  if (calls_ == 0 || list_.find_first_not_of(" \t\r\n,]") != std::string::npos) {
    out.content += list_;
  }
  list_.clear();
  if (state_ == State::call) {
    state_ = State::content;
    give(std::string(tool_marks_.begin) + held_, out);
  } else {
    give(held_, out);
  }
  held_.clear();
  if (calls_ == 0) out.content += spaces_;  // white space after calls is dropped
  spaces_.clear();
}

}  // namespace lathe
