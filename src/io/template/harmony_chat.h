// gpt-oss's prompts, as the package openai-harmony renders them. The template of its checkpoints
// differs: it shows one call of a message, and quotes results once more. docs/chat-templates.md
// lists the variables.
#pragma once

#include <ctime>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lathe {

/// Renders the prompt. `variables`: an object with messages (roles system, developer, user,
/// assistant, tool), tools, reasoning_effort (low, medium, high; default medium), model_identity,
/// knowledge_cutoff, conversation_start_date (default: the date of `now`), add_generation_prompt
/// (default true). builtin_tools are refused: nothing here runs them. Throws JinjaFailure.
std::string render_harmony(const nlohmann::ordered_json& variables, const std::tm& now);

/// The functions as TypeScript, under "# Tools". `tools`: as in a chat request.
std::string harmony_tools(const nlohmann::ordered_json& tools);

}  // namespace lathe
