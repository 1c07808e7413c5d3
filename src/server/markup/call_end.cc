#include "server/markup/call_end.h"

#include <algorithm>

#include "server/markup/tool_arguments.h"
#include "server/markup/tool_call.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostHeader = 256;  // bytes of a call before its arguments

// Length of the white space at `at`.
std::size_t after_space(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kJsonSpace, at), text.size());
}

bool begins_with_part_of(std::string_view text, std::string_view mark) {
  return mark.starts_with(text.substr(0, mark.size()));
}

enum class Quoted { no, yes, wait };

// Moves past a byte in quotes, or a quote of JSON or Python. wait: what it is depends on later
// bytes.
Quoted pass_quoted(std::string_view text, CallScan& scan, bool python) {
  const std::string_view rest = text.substr(scan.at);
  const char c = rest[0];
  const bool thrice = python && rest.starts_with(std::string(3, c));
  std::size_t step = 1;
  if (scan.quote == 0) {
    if (c != '"' && (!python || c != '\'')) return Quoted::no;
    if (python && rest.size() < 3) return Quoted::wait;
    scan.quote = c;
    scan.triple = thrice;
    step = thrice ? 3 : 1;
  } else if (c == '\\') {
    step = 2;
    if (rest.size() < step) return Quoted::wait;
  } else if (c == scan.quote) {
    if (scan.triple && rest.size() < 3) return Quoted::wait;
    if (thrice || !scan.triple) scan.quote = 0;
    step = scan.triple && thrice ? 3 : 1;
  }
  scan.at += step;
  return Quoted::yes;
}

// The end mark outside of JSON's or Python's strings.
std::optional<CallEnd> end_outside_quotes(std::string_view text, std::string_view mark,
                                          CallScan& scan, bool python) {
  while (scan.at < text.size()) {
    const Quoted quoted = pass_quoted(text, scan, python);
    if (quoted == Quoted::wait) return std::nullopt;
    if (quoted == Quoted::yes) continue;
    if (begins_with_part_of(text.substr(scan.at), mark)) {
      if (text.size() - scan.at < mark.size()) return std::nullopt;
      return CallEnd{scan.at, scan.at + mark.size()};
    }
    ++scan.at;
  }
  return std::nullopt;
}

std::optional<CallEnd> first_end(std::string_view text, std::string_view mark, CallScan& scan) {
  const std::size_t at = text.find(mark, scan.at);
  if (at != std::string_view::npos) return CallEnd{at, at + mark.size()};
  scan.at = std::max(scan.at, text.size() - std::min(text.size(), mark.size() - 1));
  return std::nullopt;
}

// The end mark outside of parameters, which have end tags of their own. may_lack_end: one without
// ends with its call, if another parameter begins before the next end tag.
std::optional<CallEnd> end_outside_parameters(std::string_view text, std::string_view mark,
                                              std::string_view parameter,
                                              std::string_view end_parameter, CallScan& scan,
                                              bool may_lack_end = false) {
  for (;;) {
    const std::size_t end = text.find(mark, scan.at);
    const std::size_t open = text.find(parameter, scan.at);
    if (open >= end) {  // neither, or the end first
      if (end != std::string_view::npos) return CallEnd{end, end + mark.size()};
      const std::size_t kept = std::max(mark.size(), parameter.size());
      scan.at = std::max(scan.at, text.size() - std::min(text.size(), kept));
      return std::nullopt;
    }
    const std::size_t shut = text.find(end_parameter, open);
    if (shut == std::string_view::npos) {
      scan.at = open;
      return std::nullopt;
    }
    const std::size_t next = text.find(parameter, open + parameter.size());
    if (may_lack_end && end < next && next < shut) return CallEnd{end, end + mark.size()};
    scan.at = shut + end_parameter.size();
  }
}

// The end mark outside of the values of <function=...>. A value that has no end tag ends with its
// function.
std::optional<CallEnd> end_outside_values(std::string_view text, std::string_view mark,
                                          CallScan& scan) {
  for (;;) {
    const std::size_t end = text.find(mark, scan.at);
    const bool inside = scan.depth > 0;
    const std::string_view tag = inside ? kEndTagParameter : kTagParameter;
    const std::size_t next = text.find(tag, scan.at);
    if (end < next) {
      const bool ends = !inside || trim(text.substr(0, end)).ends_with(kEndFunctionMark);
      if (ends) return CallEnd{end, end + mark.size()};
      scan.at = end + mark.size();
    } else if (next == std::string_view::npos) {
      const std::size_t kept = std::max(mark.size(), kEndTagParameter.size());
      scan.at = std::max(scan.at, text.size() - std::min(text.size(), kept));
      return std::nullopt;
    } else {
      scan.at = next + tag.size();
      scan.depth = inside ? 0 : 1;
    }
  }
}

// Where the JSON of a call of DSML or <invoke> begins; npos: not there yet, or it has parameters.
std::size_t invoke_json(std::string_view text) {
  const std::size_t name = text.substr(0, kMostHeader).find('>');
  if (name == std::string_view::npos) return name;
  const std::size_t at = after_space(text, name + 1);
  return text.substr(at).starts_with('{') ? at : std::string_view::npos;
}

// The end mark outside of strings in <|"|> or <escape>.
std::optional<CallEnd> end_outside_gemma_strings(std::string_view text, std::string_view mark,
                                                 CallScan& scan) {
  constexpr std::string_view kQuotes[] = {"<|\"|>", "<escape>"};
  while (scan.at < text.size()) {
    const std::string_view rest = text.substr(scan.at);
    std::size_t step = 1;
    if (rest[0] == '<') {
      for (std::size_t i = 0; i < 2; ++i) {
        const char own = static_cast<char>('1' + i);
        if ((scan.quote != 0 && scan.quote != own) || !begins_with_part_of(rest, kQuotes[i])) {
          continue;
        }
        if (rest.size() < kQuotes[i].size()) return std::nullopt;
        scan.quote = scan.quote == 0 ? own : '\0';
        step = kQuotes[i].size();
      }
      if (step == 1 && scan.quote == 0 && begins_with_part_of(rest, mark)) {
        if (rest.size() < mark.size()) return std::nullopt;
        return CallEnd{scan.at, scan.at + mark.size()};
      }
    }
    scan.at += step;
  }
  return std::nullopt;
}

// Where the JSON of a Mistral call begins. nullopt: not there yet; npos: this is no call.
std::optional<std::size_t> mistral_json(std::string_view text) {
  constexpr std::size_t kNo = std::string_view::npos;
  std::size_t at = after_space(text, 0);
  if (at > kMostHeader) return kNo;
  if (at == text.size()) return std::nullopt;
  const std::string_view front = text.substr(at);
  if (front[0] == '{') return at;
  if (front[0] == '[') return at;
  // N, [CALL_ID] and an id, [ARGS].
  for (const std::string_view mark : {"[CALL_ID]", "[ARGS]"}) {
    const std::size_t stop = text.find_first_of("[{\n", at);
    if (std::min(stop, text.size()) > kMostHeader) return kNo;
    if (stop == kNo) return std::nullopt;
    if (text[stop] == '{') return stop;
    if (text[stop] == '\n') return kNo;
    const std::string_view rest = text.substr(stop);
    if (!begins_with_part_of(rest, mark)) {
      if (mark == "[CALL_ID]") continue;
      return kNo;
    }
    if (rest.size() < mark.size()) return std::nullopt;
    at = stop + mark.size();
  }
  at = after_space(text, at);
  if (at > kMostHeader) return kNo;
  if (at == text.size()) return std::nullopt;
  return text[at] == '{' ? at : kNo;
}

// A call that ends with its JSON. One that is none ends at once.
std::optional<CallEnd> end_of_json(std::string_view text, std::optional<std::size_t> begin,
                                   CallScan& scan) {
  if (!begin) return std::nullopt;
  if (*begin == std::string_view::npos) return CallEnd{0, 0};
  const auto end = find_value_end(text.substr(*begin), scan, /*python=*/false);
  if (!end) return std::nullopt;
  return CallEnd{*begin + *end, *begin + *end};
}

// Skips JSON's or Python's next word if it is, or may become, `word`.
bool skip_word(std::string_view& text, std::string_view word) {
  if (!begins_with_part_of(text, word)) return false;
  text.remove_prefix(std::min(text.size(), word.size()));
  return true;
}

void skip_space(std::string_view& text) { text.remove_prefix(after_space(text, 0)); }

// Whether `text` begins with, or may become, the name of a function and `after`.
bool may_be_name(std::string_view text, std::string_view after, const Json& tools) {
  for (const Json& tool : tools) {
    const auto& name = tool["function"]["name"].get_ref<const std::string&>();
    std::string_view rest = text;
    if (skip_word(rest, name) && skip_word(rest, after)) return true;
  }
  return false;
}

}  // namespace

std::optional<std::size_t> find_value_end(std::string_view text, CallScan& scan, bool python) {
  while (scan.at < text.size()) {
    const Quoted quoted = pass_quoted(text, scan, python);
    if (quoted == Quoted::wait) return std::nullopt;
    if (quoted == Quoted::yes) continue;
    const char c = text[scan.at];
    if (c == '{' || c == '[' || (python && c == '(')) {
      ++scan.depth;
    } else if (c == '}' || c == ']' || (python && c == ')')) {
      if (--scan.depth <= 0) return ++scan.at;
    }
    ++scan.at;
  }
  return std::nullopt;
}

std::optional<CallEnd> find_call_end(const CallMarks& marks, std::string_view text,
                                     CallScan& scan) {
  const auto json_or_first = [&] {
    return scan.plain ? first_end(text, marks.end, scan)
                      : end_outside_quotes(text, marks.end, scan, /*python=*/false);
  };
  const auto pairs_or_first = [&] {
    return scan.plain ? first_end(text, marks.end, scan)
                      : end_outside_parameters(text, marks.end, kPairValue, kEndPairValue, scan,
                                               /*may_lack_end=*/true);
  };
  switch (marks.body) {
    case CallBody::json:
    case CallBody::deepseek:
    case CallBody::kimi:
      return json_or_first();
    case CallBody::tagged: {
      const std::size_t front = after_space(text, 0);
      if (front == text.size()) return std::nullopt;
      if (text[front] == '{' || text[front] == '[') return json_or_first();
      if (!scan.plain && begins_with_part_of(text.substr(front), kFunctionMark)) {
        return end_outside_values(text, marks.end, scan);
      }
      return pairs_or_first();
    }
    case CallBody::function:
      return first_end(text, marks.end, scan);
    case CallBody::pairs:
      return pairs_or_first();
    case CallBody::dsml:
    case CallBody::invoke: {
      if (const std::size_t json = invoke_json(text); json != std::string_view::npos) {
        scan.at = std::max(scan.at, json);
        return json_or_first();
      }
      const bool dsml = marks.body == CallBody::dsml;
      return end_outside_parameters(text, marks.end, dsml ? kDsmlParameter : kInvokeParameter,
                                    dsml ? kEndDsmlParameter : kEndInvokeParameter, scan);
    }
    case CallBody::mistral:
      return end_of_json(text, mistral_json(text), scan);
    case CallBody::python_tag: {
      const std::size_t front = after_space(text, 0);
      // Other text than JSON has no end but the answer's.
      if (front == text.size() || text[front] != '{') return std::nullopt;
      return end_of_json(text, front, scan);
    }
    case CallBody::python:
      return scan.plain ? first_end(text, marks.end, scan)
                        : end_outside_quotes(text, marks.end, scan, /*python=*/true);
    case CallBody::gemma:
      return scan.plain ? first_end(text, marks.end, scan)
                        : end_outside_gemma_strings(text, marks.end, scan);
  }
  return std::nullopt;
}

bool may_be_json_call(std::string_view text, const Json& tools) {
  if (text.starts_with('[')) {
    text.remove_prefix(1);
    skip_space(text);
  }
  if (!skip_word(text, "{")) return false;
  skip_space(text);
  std::string_view rest = text;
  if (skip_word(rest, "\"name\"")) {
    skip_space(rest);
    if (!skip_word(rest, ":")) return false;
    skip_space(rest);
    return skip_word(rest, "\"") && may_be_name(rest, "\"", tools);
  }
  rest = text;
  if (skip_word(rest, "\"type\"")) {
    skip_space(rest);
    if (!skip_word(rest, ":")) return false;
    skip_space(rest);
    return begins_with_part_of(rest, "\"function\"");
  }
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"\"function\"", "\"arguments\"", "\"parameters\"",
                                              "\"id\""},
      [&](std::string_view word) { return begins_with_part_of(text, word); });
}

bool may_be_python_call(std::string_view text, const Json& tools) {
  if (!text.starts_with('[')) return false;
  text.remove_prefix(1);
  skip_space(text);
  return may_be_name(text, "(", tools);
}

}  // namespace lathe
