// Encodes a conversation as prompt tokens.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/template/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {

/// The text of `messages` ([{"role": ..., "content": ...}]) up to where the answer begins, with the
/// special tokens that the template writes. The messages are read as those of a request to the
/// server (read_messages(), check_results()). `variables`: an object with further template
/// variables. Errors: those of the two; the template's.
Result<std::string> render_chat(
    const nlohmann::ordered_json& messages, const ChatTemplateFile& chat,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object());

/// render() of `variables`, whose messages are as read_messages() leaves them. An answer without
/// content has null, which DeepSeek's templates tell from "". Where a template needs text (it
/// fails, or writes "None") it has "" as in vLLM, in `variables`, too. Errors: those with null.
Result<std::string> render_messages(const ChatTemplate& chat, nlohmann::ordered_json& variables);

/// render_chat()'s text as tokens.
Result<std::vector<std::int32_t>> encode_chat(
    const nlohmann::ordered_json& messages, const ChatTemplateFile& chat,
    const Tokenizer& tokenizer,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object());

/// Parses the template variables that the flag `field` gives as a JSON object; empty text: none.
/// Errors: malformed, invalid_argument (not an object).
Result<nlohmann::ordered_json> read_chat_variables(const std::string& text,
                                                   const std::string& field);

}  // namespace lathe
