#include "server/markup/answer_parts.h"

#include <algorithm>

#include "server/markup/tool_arguments.h"

namespace lathe {
namespace {

// First bytes of a call without marks that decide whether it may be one.
constexpr std::size_t kMostBareFront = 512;
// Text that is read again for calls in broken ones: this often, so that the work stays linear.
constexpr int kMostReopened = 16;
// Between calls without marks.
constexpr std::string_view kSeparators = " \t\r\n,;";

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
      tool_marks_(&tool_marks(rules_.tools)),
      think_(reasoning_marks(rules_.reasoning_format)),
      state_(rules_.reasoning && rules_.starts_inside ? State::reasoning : State::content) {
  if (rules_.schemas == nullptr) rules_.schemas = std::make_shared<nlohmann::ordered_json>();
  if (rules_.harmony) {
    harmony_.emplace(std::move(*rules_.harmony));
    marks_.push_back({"<", Mark::around});
    return;
  }
  if (rules_.reasoning) marks_ = {{think_.end, Mark::end_think}, {think_.begin, Mark::think}};
  if (rules_.tools != ToolFormat::none && !rules_.list_of_calls) {
    for (const CallMarks& call : tool_marks_->calls) {
      marks_.push_back({call.begin, Mark::call, &call});
      const bool fence = call.begin.starts_with(call.end);  // opens as it ends
      if (!call.end.empty() && !fence) marks_.push_back({call.end, Mark::stray_end});
    }
    const auto& around = tool_marks_->around;
    for (std::size_t i = 0; i < around.size(); ++i) {
      marks_.push_back({around[i], i % 2 == 0 ? Mark::around : Mark::stray_end});
    }
    if (tool_marks_->bare_json || tool_marks_->bare_python) fronts_.set('{').set('[');
  }
  for (const Mark& mark : marks_) fronts_.set(static_cast<std::uint8_t>(mark.text[0]));
}

// Whether a mark, or a call without marks, may begin in the text.
bool AnswerParts::has_front(std::string_view text) const {
  return std::ranges::any_of(text, [&](char c) { return fronts_[static_cast<std::uint8_t>(c)]; });
}

// Whether </think> may end reasoning that was left out.
bool AnswerParts::may_end_nothing() const {
  return !reasoned_ && !began_ && around_.empty() && calls_ == 0 &&
         rules_.tools != ToolFormat::dsml;
}

// Whether marks of this kind count in the current state.
bool AnswerParts::counts(Mark::Kind kind) const {
  switch (kind) {
    case Mark::end_think:
      // Before anything else it ends reasoning that was left out.
      return state_ == State::reasoning || may_end_nothing();
    case Mark::think:
      return state_ == State::content && !began_ && around_.empty();
    case Mark::stray_end:
      return state_ == State::content && after_call_;
    case Mark::call:
    case Mark::around:
      if (state_ == State::reasoning && rules_.constrained) return false;
      return !rules_.text_or_calls || !began_ || calls_ > 0;
  }
  return true;
}

void AnswerParts::push(std::string_view text, TextParts& out) {
  if (marks_.empty()) {
    give(text, out);
    return;
  }
  if (harmony_) {
    harmony_->push(text, out);
    state_ = harmony_->reasons() ? State::reasoning : State::content;
    calls_ = harmony_->calls();
    return;
  }
  const bool open = state_ == State::content || (state_ == State::reasoning && looked_ == 0);
  if (open && held_.empty() && !complete() && !has_front(text)) {
    give(text, out);
    return;
  }
  held_ += text;
  while (!complete() && step(out)) {
  }
  if (complete()) held_.clear();
}

// The first mark in the text held back; of two at one place the longer.
AnswerParts::Found AnswerParts::find_mark() const {
  Found out;
  for (const Mark& mark : marks_) {
    if (!counts(mark.kind)) continue;
    const std::size_t at = held_.find(mark.text);
    if (at < out.at ||
        (at == out.at && at != std::string::npos && mark.text.size() > out.mark.text.size())) {
      out.at = at;
      out.mark = mark;
    }
    out.kept = std::max(out.kept, beginning_of(mark.text, held_));
  }
  return out;
}

// Whether `text` may become a call without marks.
bool AnswerParts::is_bare(std::string_view text) const {
  text = text.substr(0, kMostBareFront);
  return (tool_marks_->bare_json && may_be_json_call(text, *rules_.schemas)) ||
         (tool_marks_->bare_python && may_be_python_call(text, *rules_.schemas));
}

// Where a call without marks may begin: at the first bracket of a line.
std::size_t AnswerParts::find_bare() const {
  if (state_ != State::content || (!tool_marks_->bare_json && !tool_marks_->bare_python) ||
      rules_.list_of_calls || rules_.no_bare) {
    return std::string::npos;
  }
  for (std::size_t at = 0; (at = held_.find_first_of("{[", at)) != std::string::npos; ++at) {
    const std::string_view front = std::string_view(held_).substr(0, at);
    const std::size_t before = front.find_last_not_of(kJsonSpace);
    const bool first = before == std::string_view::npos && !began_;
    const bool begins_line = front.find('\n', before + 1) != std::string_view::npos ||
                             (before == std::string_view::npos &&
                              (after_call_ || spaces_.find('\n') != std::string::npos));
    const bool line =
        first || (begins_line && !rules_.bare_first) ||
        (after_call_ && front.find_first_not_of(kSeparators) == std::string_view::npos);
    if (line && is_bare(std::string_view(held_).substr(at))) return at;
  }
  return std::string::npos;
}

// Whether a step was made, after which another may be.
bool AnswerParts::step(TextParts& out) {
  if (state_ == State::call) return step_call(out);
  if (state_ == State::bare) return step_bare(out);
  if (state_ == State::after_bare) return step_after_bare(out);
  if (state_ == State::reasoning && looked_ > 0 && !unclosed_) {
    // held_ begins with a call. What it is depends on whether the reasoning has an end.
    const std::size_t end = held_.find(think_.end, looked_);
    if (end == std::string::npos) {
      looked_ = held_.size() - std::min(held_.size() - 1, think_.end.size());
      return false;
    }
    looked_ = 0;
    give(std::string_view(held_).substr(0, end), out);
    held_.erase(0, end);
    return true;
  }
  if (!has_front(held_)) {
    give(held_, out);
    held_.clear();
    return false;
  }
  const Found found = find_mark();
  const std::size_t bare = find_bare();
  // The text at the end may still become a mark.
  if (bare < found.at && bare < held_.size() - found.kept) {
    give(std::string_view(held_).substr(0, bare), out);
    held_.erase(0, bare);
    state_ = State::bare;
    scan_ = {};
    return true;
  }
  if (found.at == std::string::npos) {
    const std::string final_text = held_.substr(0, held_.size() - found.kept);
    held_.erase(0, final_text.size());
    give(final_text, out);
    return false;
  }
  give(std::string_view(held_).substr(0, found.at), out);
  held_.erase(0, found.at);
  if (!counts(found.mark.kind)) return true;  // the text before it makes it text
  const bool call = found.mark.kind == Mark::call || found.mark.kind == Mark::around;
  if (state_ == State::reasoning && call && !unclosed_) {
    looked_ = found.mark.text.size();
    return true;
  }
  held_.erase(0, found.mark.text.size());
  take(found.mark, out);
  return true;
}

bool AnswerParts::step_call(TextParts& out) {
  const auto end = find_call_end(*open_, held_, scan_);
  if (!end) return false;
  const std::string body = held_.substr(0, end->body);
  const std::string mark = held_.substr(end->body, end->next - end->body);
  held_.erase(0, end->next);
  scan_ = {.plain = scan_.plain};
  state_ = State::content;
  if (!add_calls(read_tool_calls(open_->body, body, *rules_.schemas), out)) {
    refuse_call(body, mark, out);
  }
  return true;
}

// Where the text of a call that does not parse has the mark of a later one, outside the call's
// quotes and parameters, or, if `anywhere`, also in them. npos: nowhere.
std::size_t AnswerParts::find_later_call(CallBody body, std::string_view text,
                                         bool anywhere) const {
  std::size_t out = std::string::npos;
  if (reopened_ >= kMostReopened || (anywhere && cut_)) return out;
  const bool ends_itself = body == CallBody::mistral || body == CallBody::python_tag;
  for (const Mark& mark : marks_) {
    if (mark.kind != Mark::call && mark.kind != Mark::around) continue;
    if (anywhere || ends_itself) {
      out = std::min(out, text.find(mark.text));
      continue;
    }
    CallScan scan;
    const auto at = find_call_end({.begin = {}, .end = mark.text, .body = body}, text, scan);
    if (at) out = std::min(out, at->body);
  }
  return out;
}

// Makes text of a call that does not parse, and reads it again from the next mark of a call on.
void AnswerParts::refuse_call(std::string_view body, std::string_view end, TextParts& out) {
  const std::size_t next = find_later_call(open_->body, body, scan_.plain);
  std::string text(open_->begin);
  text += body.substr(0, next);
  if (next == std::string_view::npos) {
    give(text.append(end), out);
    return;
  }
  give(text, out);
  ++reopened_;
  held_.insert(0, std::string(body.substr(next)).append(end));
  scan_ = {};
}

bool AnswerParts::step_bare(TextParts& out) {
  const auto stop = [&](std::size_t text) {
    bare_text_ += std::string_view(held_).substr(0, text);
    held_.erase(0, text);
    give_bare(out);
    return true;
  };
  if (held_.size() <= kMostBareFront && !is_bare(held_)) return stop(1);
  // Brackets of both notations are balanced; only Python has strings in single quotes.
  const bool python =
      tool_marks_->bare_python &&
      may_be_python_call(std::string_view(held_).substr(0, kMostBareFront), *rules_.schemas);
  const auto end = find_value_end(held_, scan_, python);
  if (!end) return false;
  const std::string text = held_.substr(0, *end);
  auto calls = tool_marks_->bare_json
                   ? sendable(read_json_calls(text, *rules_.schemas, /*known=*/true))
                   : std::nullopt;
  if (!calls && python) calls = sendable(read_python_calls(text, *rules_.schemas, /*known=*/true));
  if (!calls) {
    const CallBody body = python ? CallBody::python : CallBody::json;
    const std::size_t next = find_later_call(body, text, /*anywhere=*/false);
    if (next != std::string::npos) ++reopened_;
    return stop(std::min(next, *end));
  }
  held_.erase(0, *end);
  if (!began_ && bare_text_.empty()) {
    state_ = State::content;
    add_calls(std::move(calls), out);
    return true;
  }
  bare_text_ += text;
  for (ToolCall& call : *calls) bare_calls_.push_back(std::move(call));
  state_ = State::after_bare;
  return true;
}

// The text is a call if the answer ends here, or with more such calls, or with an end mark.
bool AnswerParts::step_after_bare(TextParts& out) {
  const std::size_t next = std::min(held_.find_first_not_of(kSeparators), held_.size());
  bare_text_ += std::string_view(held_).substr(0, next);
  held_.erase(0, next);
  if (held_.empty()) return false;
  for (const CallMarks& marks : tool_marks_->calls) {
    if (marks.end.empty() || !marks.end.starts_with(held_.substr(0, marks.end.size()))) continue;
    if (held_.size() < marks.end.size()) return false;
    held_.erase(0, marks.end.size());
    state_ = State::content;
    bare_text_.clear();
    add_calls(std::move(bare_calls_), out);
    bare_calls_.clear();
    return true;
  }
  for (const Mark& mark : marks_) {
    if (!mark.text.starts_with(held_.substr(0, mark.text.size()))) continue;
    if (held_.size() < mark.text.size()) return false;
    give_bare(out);
    return true;
  }
  if ((held_[0] == '{' || held_[0] == '[') && is_bare(held_)) {
    state_ = State::bare;
    scan_ = {};
    return true;
  }
  give_bare(out);
  return true;
}

// What might have been a call is text.
void AnswerParts::give_bare(TextParts& out) {
  state_ = State::content;
  bare_calls_.clear();
  give(std::exchange(bare_text_, {}), out);
}

void AnswerParts::take(const Mark& mark, TextParts& out) {
  switch (mark.kind) {
    case Mark::think:
      if (began_ || !around_.empty()) {  // text other than white space came before it
        give(mark.text, out);
        return;
      }
      if (rules_.reasoning_stays) out.add_content(spaces_ + std::string(mark.text));
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
        out.add_content(spaces_ + std::string(mark.text));
        began_ = true;
      }
      spaces_.clear();
      state_ = State::content;
      if (rules_.reasoning_stays) return;
      drop_newline_ = rules_.tools != ToolFormat::dsml;  // dsml keeps all that follows as content
      return;
    case Mark::call:
      state_ = State::call;
      open_ = mark.call_marks;
      scan_ = {.plain = scan_.plain};
      return;
    case Mark::stray_end:
      if (after_call_) {
        spaces_.clear();
      } else {  // text came before it
        give(mark.text, out);
      }
      return;
    case Mark::around:
      state_ = State::content;
      drop_newline_ = false;
      after_call_ = false;
      // The last two newlines before the first call belong to the mark, earlier ones to the
      // content.
      if (rules_.tools == ToolFormat::dsml && calls_ == 0 && began_ && around_.empty() &&
          spaces_.ends_with("\n\n")) {
        out.add_content(std::string_view(spaces_).substr(0, spaces_.size() - 2));
        spaces_.erase(0, spaces_.size() - 2);
      }
      around_.append(std::exchange(spaces_, {})).append(mark.text);
      return;
  }
}

void AnswerParts::give(std::string_view text, TextParts& out) {
  if (text.empty()) return;
  if (state_ == State::reasoning) {
    if (rules_.reasoning_stays) {
      out.add_content(text);
    } else {
      out.add_reasoning(text);
    }
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
  const bool ends_in_text = !text.empty() && kJsonSpace.find(text.back()) == std::string_view::npos;
  if (waits && ends_in_text && !after_call_ && spaces_.empty() && around_.empty()) {
    out.add_content(text);  // most pieces
    began_ = true;
    return;
  }
  if (!waits) {
    if (!spaces_.empty()) out.add_content(std::exchange(spaces_, {}));
    out.add_content(text);
    began_ = true;
    return;
  }
  // So do the commas and semicolons between calls without marks.
  const bool lists = after_call_ && (tool_marks_->bare_json || tool_marks_->bare_python);
  const std::size_t last = text.find_last_not_of(lists ? kSeparators : kJsonSpace);
  if (last == std::string_view::npos) {
    spaces_ += text;
    return;
  }
  const std::size_t end = lists ? text.find_last_not_of(kJsonSpace) : last;
  out.add_content(std::exchange(around_, {}).append(spaces_).append(text.substr(0, end + 1)));
  spaces_ = text.substr(end + 1);
  began_ = true;
  after_call_ = false;
}

// Whether they are calls.
bool AnswerParts::add_calls(ToolCalls calls, TextParts& out) {
  if (!calls) return false;
  around_.clear();
  spaces_.clear();
  for (ToolCall& call : *calls) {
    if (complete()) break;
    out.add_call(std::move(call));
    ++calls_;
  }
  after_call_ = true;
  return true;
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
    auto call =
        sendable(read_json_calls(list_.substr(list_.find('{')), *rules_.schemas, /*known=*/false));
    if (!call) continue;
    out.add_call(std::move(call->front()));
    ++calls_;
    list_.clear();
    if (complete()) return;
  }
}

void AnswerParts::finish(TextParts& out, bool whole) {
  if (harmony_) {
    harmony_->finish(out, whole);
    calls_ = harmony_->calls();
    return;
  }
  unclosed_ = true;
  cut_ = !whole;
  if (state_ == State::reasoning) {
    looked_ = 0;
    push("", out);
  }
  if (complete()) return;
  // What is not a call is text, except the list's own marks after its last call.
  if (calls_ == 0 || list_.find_first_not_of(" \t\r\n,]") != std::string::npos) {
    out.add_content(list_);
  }
  list_.clear();
  finish_call(out, whole);
  while (state_ == State::bare && !complete()) {
    const std::size_t next = find_later_call(CallBody::json, held_, /*anywhere=*/true);
    if (next == std::string::npos) break;
    ++reopened_;
    bare_text_.append(held_, 0, next);
    held_.erase(0, next);
    give_bare(out);
    push("", out);
    finish_call(out, whole);
  }
  if (complete()) return;
  if (state_ == State::bare || state_ == State::after_bare) {
    const bool last = state_ == State::after_bare && held_.empty();
    bare_text_ += std::exchange(held_, {});
    if (last && whole) {
      state_ = State::content;
      add_calls(std::move(bare_calls_), out);
    } else {
      give_bare(out);
    }
  }
  give(held_, out);
  held_.clear();
  // White space after calls is dropped.
  if (calls_ == 0 || !around_.empty()) {
    out.add_content(std::exchange(around_, {}).append(spaces_));
  }
  spaces_.clear();
}

// The text of a call at the answer's end, where the end mark of its section also ends it.
std::string_view AnswerParts::without_section_end() const {
  const std::string_view text = trim(held_);
  const auto& around = tool_marks_->around;
  for (std::size_t i = 1; i < around.size(); i += 2) {
    if (text.ends_with(around[i])) return text.substr(0, text.size() - around[i].size());
  }
  return held_;
}

// A call without its end mark is a call if its text is complete. Otherwise an end mark inside its
// quotes counts, as a quote may be missing.
void AnswerParts::finish_call(TextParts& out, bool whole) {
  while (state_ == State::call && !complete()) {
    if (whole && add_calls(read_tool_calls(open_->body, without_section_end(), *rules_.schemas,
                                           /*closed=*/false),
                           out)) {
      held_.clear();
      state_ = State::content;
      return;
    }
    if (!scan_.plain) {
      scan_ = {.plain = true};
    } else {
      state_ = State::content;
      refuse_call(std::exchange(held_, {}), "", out);
    }
    push("", out);
  }
}

}  // namespace lathe
