// DeepSeek V4's prompts. Its checkpoints have a program instead of a Jinja template; its rules are
// implemented here. docs/chat-templates.md lists the variables.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/enum.h"

namespace lathe {

// Two generations of the encoding, which differ in the texts for effort.
#define LATHE_V4_ENCODINGS(X) X(preview) X(official)
LATHE_ENUM(V4Encoding, LATHE_V4_ENCODINGS)

/// Renders the prompt, with the marks of its beginning and of answers' ends. `variables`: an object
/// with messages (roles system, developer, user, assistant, tool, latest_reminder), tools, thinking
/// or enable_thinking (default true), reasoning_effort (none, minimal, low, medium, high, xhigh,
/// max), drop_thinking (default true), add_generation_prompt (default true: opens an answer after
/// any last message), encoding (preview or official, overrides `encoding`). Throws JinjaFailure.
std::string render_deepseek_v4(const nlohmann::ordered_json& variables, V4Encoding encoding);

}  // namespace lathe
