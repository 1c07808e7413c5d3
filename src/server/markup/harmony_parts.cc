#include "server/markup/harmony_parts.h"

#include <algorithm>
#include <array>

#include "server/markup/tool_arguments.h"

namespace lathe {
namespace {

constexpr std::string_view kRole = "assistant";
constexpr std::string_view kFunctions = "functions.";
constexpr std::size_t kMostHeaderBytes = 256;

// Whether `text` begins with `word`, or is a beginning of it.
bool fits(std::string_view text, std::string_view word) {
  return word.starts_with(text.substr(0, word.size()));
}

std::string_view without_space(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kJsonSpace), text.size()));
  return text;
}

// The text without the bytes that tell marks from their quotes.
std::string shown(std::string_view text) {
  std::string out(text);
  std::erase(out, kMarkByte);
  return out;
}

// The word at `at`.
std::string word_at(std::string_view text, std::size_t at) {
  const std::size_t end = text.find_first_of(std::string(" \t\r\n<") + kMarkByte, at);
  return std::string(text.substr(at, std::min(end, text.size()) - at));
}

}  // namespace

HarmonyParts::HarmonyParts(HarmonyRules rules) : rules_(std::move(rules)) {
  start_ = arriving("<|start|>");
  message_ = arriving("<|message|>");
  channel_ = arriving("<|channel|>");
  end_ = arriving("<|end|>");
  return_ = arriving("<|return|>");
  call_ = arriving("<|call|>");
  held_ = arriving(rules_.begun);
  if (const std::size_t at = held_.find(message_); at != std::string::npos) {
    TextParts none;
    open(std::string(held_, 0, at), none);
    raw_.clear();
    held_.clear();
  }
  begun_ = held_.size();
}

// The text as an answer has it: with the byte before marks, if marks are tokens.
std::string HarmonyParts::arriving(std::string_view text) const {
  std::string out(text);
  if (!rules_.marks_by_id) return out;
  for (std::size_t at = 0; (at = out.find("<|", at)) != std::string::npos; at += 3) {
    out.insert(at, 1, kMarkByte);
  }
  return out;
}

void HarmonyParts::push(std::string_view text, TextParts& out) {
  held_ += text;
  while (!complete() && step(out, /*last=*/false)) {
  }
  if (complete()) held_.clear();
}

bool HarmonyParts::step(TextParts& out, bool last) {
  switch (state_) {
    case State::between:
      return step_between(out, last);
    case State::header:
      return step_header(out, last);
    case State::reasoning:
    case State::content:
    case State::call:
      return step_body(out, last);
  }
  return false;
}

// After a message's end comes <|start|>, which some answers leave out before <|channel|>.
bool HarmonyParts::step_between(TextParts& out, bool last) {
  const std::string_view rest = without_space(held_);
  if (rest.empty()) return false;
  for (const std::string& mark : {start_, channel_}) {
    if (!fits(rest, mark)) continue;
    if (rest.size() < mark.size()) {
      if (last) break;
      return false;
    }
    held_.erase(0, held_.size() - rest.size() + (mark == start_ ? mark.size() : 0));
    raw_ = mark == start_ ? start_ : "";
    state_ = State::header;
    return true;
  }
  raw_.clear();
  open_text(out);
  return true;
}

// Whether the text so far may become a header.
bool HarmonyParts::may_be_header() const {
  const std::size_t end = held_.find(message_);
  const std::size_t most = kMostHeaderBytes + (end == std::string::npos ? message_.size() - 1 : 0);
  if (std::min(end, held_.size()) > most) return false;
  std::string_view rest = held_;
  if (fits(rest, kRole)) rest.remove_prefix(std::min(rest.size(), kRole.size()));
  rest = without_space(rest);
  return rest.empty() || fits(rest, channel_) || fits(rest, message_) || fits(rest, "to=");
}

bool HarmonyParts::step_header(TextParts& out, bool last) {
  const bool may_be = may_be_header();
  const std::size_t at = may_be ? held_.find(message_) : std::string::npos;
  if (at != std::string::npos) {
    const std::string header = held_.substr(0, at);
    raw_ += std::string_view(header).substr(std::min(begun_, header.size()));
    raw_ += message_;
    held_.erase(0, at + message_.size());
    begun_ = 0;
    open(header, out);
    return true;
  }
  if (may_be && !last) return false;
  // Text without a header, or the beginning of one that the answer's end cut.
  held_.erase(0, begun_);
  begun_ = 0;
  if (may_be && !rules_.reasoning_stays) {
    held_.clear();
    return false;
  }
  open_text(out);
  return !held_.empty();
}

// Begins a message without a header; raw_ is text of it.
void HarmonyParts::open_text(TextParts& out) {
  state_ = State::content;
  analysis_ = false;
  fresh_ = true;
  raw_message_ = rules_.reasoning_stays;
  if (!raw_.empty()) give(shown(std::exchange(raw_, {})), out);
}

void HarmonyParts::open(std::string_view header, TextParts& out) {
  std::string channel, recipient;
  if (const std::size_t at = header.find(channel_); at != std::string_view::npos) {
    channel = word_at(header, at + channel_.size());
  }
  if (const std::size_t at = header.find("to="); at != std::string_view::npos) {
    recipient = word_at(header, at + 3);
  }
  fresh_ = true;
  raw_message_ = rules_.reasoning_stays;
  const bool prefixed = recipient.starts_with(kFunctions);
  name_ = prefixed ? recipient.substr(kFunctions.size()) : recipient;
  if (rules_.calls &&
      ((prefixed && !name_.empty()) ||
       (!rules_.prefixed && rules_.schemas != nullptr && is_tool(*rules_.schemas, name_)))) {
    state_ = State::call;
    body_.clear();
    return;
  }
  const bool addressed = !recipient.empty() && recipient != "all" && recipient != "user";
  // A call to a tool that the server has not: text, with all that the model wrote.
  raw_message_ = raw_message_ || addressed;
  analysis_ = channel == "analysis";
  state_ = analysis_ && !raw_message_ ? State::reasoning : State::content;
  const std::string raw = shown(std::exchange(raw_, {}));
  if (raw_message_) give(raw, out);
}

// Whether the mark before `rest` ends the message: where marks are text, an answer may quote them.
bool HarmonyParts::ends_message(std::string_view rest, bool starts, bool last, bool& wait) const {
  if (rules_.marks_by_id) return true;
  if (starts) {
    wait = !last && rest.size() < kRole.size() && fits(rest, kRole);
    return rest.starts_with(kRole);
  }
  rest = without_space(rest);
  if (rest.empty()) {
    wait = !last;
    return last;
  }
  for (const std::string& mark : {start_, channel_}) {
    if (rest.starts_with(mark)) return true;
    wait = wait || (!last && fits(rest, mark));
  }
  return false;
}

bool HarmonyParts::step_body(TextParts& out, bool last) {
  const std::array<std::string_view, 4> marks = {end_, return_, call_, start_};
  for (std::size_t at = 0; (at = held_.find(start_[0], at)) != std::string::npos; ++at) {
    const std::string_view here = std::string_view(held_).substr(at);
    const auto mark = std::ranges::find_if(marks, [&](auto m) { return fits(here, m); });
    if (mark == marks.end()) continue;
    bool wait = here.size() < mark->size();
    if (*mark == start_ && !may_start_in_body()) continue;
    const bool ends = !wait && ends_message(here.substr(mark->size()), *mark == start_, last, wait);
    if (wait && !last) {
      give(std::string_view(held_).substr(0, at), out);
      held_.erase(0, at);
      return false;
    }
    if (!ends) continue;
    give(std::string_view(held_).substr(0, at), out);
    const bool starts = *mark == start_;
    held_.erase(0, at + (starts ? 0 : mark->size()));
    end_message(starts ? "" : *mark, out, /*whole=*/true);
    return true;
  }
  give(held_, out);
  held_.clear();
  return false;
}

void HarmonyParts::give(std::string_view text, TextParts& out) {
  if (text.empty()) return;
  if (state_ == State::call) {
    body_ += text;
    return;
  }
  const bool reasons = state_ == State::reasoning;
  bool& told = reasons ? reasoned_ : told_;
  // Messages are paragraphs.
  std::string part = std::exchange(fresh_, false) && told && !raw_message_ ? "\n" : "";
  part += shown(text);
  if (reasons) {
    out.add_reasoning(part);
  } else {
    out.add_content(part);
  }
  told = true;
}

void HarmonyParts::end_message(std::string_view mark, TextParts& out, bool whole) {
  const bool call = state_ == State::call;
  if (call) {
    const std::string_view body = trim(body_);
    const auto arguments = body.empty() ? JsonMembers() : read_members(body);
    auto calls = arguments ? sendable(one_call({name_, members_text(*arguments)})) : std::nullopt;
    if (whole && calls) {
      out.add_call(std::move(calls->front()));
      ++calls_;
    } else {
      state_ = State::content;
      give(shown(raw_ + body_) + shown(mark), out);
    }
    raw_.clear();
    body_.clear();
  } else if (raw_message_) {
    give(mark, out);
  }
  state_ = State::between;
}

void HarmonyParts::finish(TextParts& out, bool whole) {
  while (!complete() && step(out, /*last=*/true)) {
  }
  if (complete()) return;
  if (state_ == State::call) end_message("", out, whole);
}

}  // namespace lathe
