// ToolCall, and the readers of a call's text in each format.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/markup/tool_format.h"

namespace lathe {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object's text
  std::string id = {};    // the model's own; empty: it gives none
};
using ToolCalls = std::optional<std::vector<ToolCall>>;

/// Levels of a call's arguments. With the lists and objects of a history around them they are
/// within what a chat template takes (kMaxJinjaDepth), so that a client can send every call back.
inline constexpr int kMostArgumentLevels = 190;

/// The calls, unless the arguments of one have more levels, or a number that no double holds, as
/// Python's have: then they are text.
ToolCalls sendable(ToolCalls calls);

/// Parses the text between a call's marks: one call or several. `tools`: the request's; where the
/// format does not say a value's type, its schema does. Numbers keep their digits. `closed`: the
/// end mark was there; without it the text must show by itself that the call is complete. nullopt:
/// not a call, or text that would be lost.
ToolCalls read_tool_calls(CallBody body, std::string_view text, const nlohmann::ordered_json& tools,
                          bool closed = true);

/// Whether a text may be a function's name, or a call's id: it has no mark of a call in it.
bool is_name_text(std::string_view text);

/// The list of one call.
ToolCalls one_call(ToolCall call);

/// Calls that are JSON; `known`: only functions of `tools`, with arguments and no further members,
/// as where no mark says that JSON is a call.
ToolCalls read_json_calls(std::string_view text, const nlohmann::ordered_json& tools, bool known);
ToolCalls read_function_calls(std::string_view text, const nlohmann::ordered_json& tools,
                              bool closed);
ToolCalls read_pairs_call(std::string_view text, const nlohmann::ordered_json& tools, bool closed);
/// `parameter`: the beginning of a parameter's tag, such as "<parameter"; `end`: its end tag.
ToolCalls read_invoke_call(std::string_view text, std::string_view parameter, std::string_view end,
                           const nlohmann::ordered_json& tools, bool closed);
/// `known`: only functions of `tools`.
ToolCalls read_python_calls(std::string_view text, const nlohmann::ordered_json& tools, bool known);
ToolCalls read_gemma_call(std::string_view text, const nlohmann::ordered_json& tools);

inline constexpr std::string_view kDsmlParameter = "<｜DSML｜parameter";
inline constexpr std::string_view kEndDsmlParameter = "</｜DSML｜parameter>";
inline constexpr std::string_view kInvokeParameter = "<parameter";
inline constexpr std::string_view kEndInvokeParameter = "</parameter>";
inline constexpr std::string_view kFunctionMark = "<function=";
inline constexpr std::string_view kEndFunctionMark = "</function>";
inline constexpr std::string_view kTagParameter = "<parameter=";
inline constexpr std::string_view kEndTagParameter = "</parameter>";
inline constexpr std::string_view kPairValue = "<arg_value>";
inline constexpr std::string_view kEndPairValue = "</arg_value>";

}  // namespace lathe
