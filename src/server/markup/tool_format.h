// Parsers for the tool-call formats of model families.
//
//   tag       <tool_call>BODY</tool_call>, BODY one of
//             {"name": N, "arguments": {...}}                          Qwen 2.5, Qwen 3, Hermes
//             <function=N><parameter=K>V</parameter>...</function>      Qwen3-Coder
//             N<arg_key>K</arg_key><arg_value>V</arg_value>...          GLM 4.5 to 5
//   deepseek  <｜tool▁call▁begin｜>N<｜tool▁sep｜>JSON<｜tool▁call▁end｜>
//             V3.1; V3 and R1 write
//             function<｜tool▁sep｜>N and fenced JSON
//   dsml      <｜DSML｜invoke name="N">PARAMETERS</｜DSML｜invoke>           V3.2, V4
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"

namespace lathe {

/// JSON's white space, around calls and answers.
inline constexpr std::string_view kJsonSpace = " \t\r\n";

#define LATHE_TOOL_FORMATS(X) X(none) X(tag) X(deepseek) X(dsml)
LATHE_ENUM(ToolFormat, LATHE_TOOL_FORMATS)

/// The format that a chat template asks for, found by the marks in its source.
ToolFormat find_tool_format(std::string_view chat_template);

struct ToolMarks {
  std::string_view begin;  // of a call
  std::string_view end;
  // Marks around calls; dropped.
  std::vector<std::string_view> around;
};
ToolMarks tool_marks(ToolFormat format);

/// Position of the mark that ends a call, in the text after the call's begin mark, or npos. A
/// parameter's value may contain that mark if the format marks the end of values. `from`: where to
/// search from, initially 0; advanced past text that need not be searched again.
std::size_t find_call_end(ToolFormat format, std::string_view text, std::size_t& from);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object's text
  // Bytes of content before it: in the piece of an answer that it came with, or in a whole answer.
  std::size_t text_before = 0;
};

/// Parses the text between a call's marks: one call, or several functions. `tools`: the request's;
/// where the format does not say a value's type, its schema does. Numbers keep their digits.
/// nullopt: not a call, or text that would be lost.
std::optional<std::vector<ToolCall>> read_tool_calls(ToolFormat format, std::string_view body,
                                                     const nlohmann::ordered_json& tools);

}  // namespace lathe
