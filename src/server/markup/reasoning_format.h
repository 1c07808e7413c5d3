// The table of reasoning formats: marks around reasoning, and the names that other servers give
// them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/enum.h"

namespace lathe {

#define LATHE_REASONING_FORMATS(X) X(none) X(think) X(mistral) X(gemma) X(seed) X(kimi) X(harmony)
LATHE_ENUM(ReasoningFormat, LATHE_REASONING_FORMATS)

struct ReasoningMarks {
  std::string_view begin;
  std::string_view end;
  // A special token at the front of `begin`, if that is not one token.
  std::string_view token;
};

/// harmony: the marks of the analysis channel.
ReasoningMarks reasoning_marks(ReasoningFormat format);

/// The format that a chat template asks for, by its end mark.
ReasoningFormat find_reasoning_format(std::string_view chat_template);

/// Names of a format at other servers: vLLM's and SGLang's --reasoning-parser.
const std::vector<std::string_view>& other_names(ReasoningFormat format);
/// The format of a name, its own or another server's.
std::optional<ReasoningFormat> find_named_reasoning_format(std::string_view name);

}  // namespace lathe
