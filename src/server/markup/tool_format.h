// The table of tool-call formats: their marks, the names that other servers give them, and how a
// chat template shows that its model writes one. docs/server.md prints it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"

namespace lathe {

#define LATHE_TOOL_FORMATS(X) \
  X(none)                     \
  X(tag) X(deepseek) X(dsml) X(harmony) X(llama) X(pythonic) X(mistral) X(gemma) X(kimi) X(minimax)
LATHE_ENUM(ToolFormat, LATHE_TOOL_FORMATS)

/// How the text of a call is written.
///
///   json        {"name": N, "arguments": {...}}, several of them, or a list of them
///   tagged      json, functions or pairs
///   function    N><parameter=K>V</parameter>...</function>: without its first mark
///   pairs       N<arg_key>K</arg_key><arg_value>V</arg_value>...
///   deepseek    N<｜tool▁sep｜>JSON; or function<｜tool▁sep｜>N and fenced JSON
///   dsml        N">PARAMETERS, which say whether they are strings
///   invoke      N">PARAMETERS of <parameter name="K">
///   mistral     json; or N[ARGS]JSON, N[CALL_ID]I[ARGS]JSON, NJSON
///   python_tag  json; or N.call(K=V, ...)
///   python      N(K=V, ...), or a list of them, with Python's literals
///   gemma       call:N{K:V, ...}, strings between <|"|> or <escape>
///   kimi        functions.N:I<|tool_call_argument_begin|>JSON
#define LATHE_CALL_BODIES(X) \
  X(json)                    \
  X(tagged)                  \
  X(function)                \
  X(pairs) X(deepseek) X(dsml) X(invoke) X(mistral) X(python_tag) X(python) X(gemma) X(kimi)
LATHE_ENUM(CallBody, LATHE_CALL_BODIES)

struct CallMarks {
  std::string_view begin;
  std::string_view end;  // empty: the call ends with its JSON
  CallBody body = CallBody::json;
};

struct ToolMarks {
  std::vector<CallMarks> calls = {};
  // Marks before and after a section of calls, in turn; dropped if there are calls.
  std::vector<std::string_view> around = {};
  // Further texts of special tokens in calls, which detokenising would skip.
  std::vector<std::string_view> inner = {};
  // Calls may come without marks: json or python, at the answer's begin or at its end.
  bool bare_json = false;
  bool bare_python = false;
};

/// The marks of a format. harmony has none: its channels are read by HarmonyParts.
const ToolMarks& tool_marks(ToolFormat format);

/// The format that a chat template asks for, found by the marks in its source.
ToolFormat find_tool_format(std::string_view chat_template);
/// The mark in the template that shows the format; empty for none.
std::string_view template_mark(ToolFormat format, std::string_view chat_template);

/// Names of a format at other servers: vLLM's and SGLang's --tool-call-parser.
const std::vector<std::string_view>& other_names(ToolFormat format);
/// The format of a name, its own or another server's.
std::optional<ToolFormat> find_named_tool_format(std::string_view name);

}  // namespace lathe
