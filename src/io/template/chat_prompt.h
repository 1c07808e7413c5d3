// Encodes a conversation as prompt tokens.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/template/chat_template.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {

/// The text of `messages` ([{"role": ..., "content": ...}]) up to where the answer begins, with the
/// special tokens that the template writes. The messages are read as those of a request to the
/// server (read_messages(), check_results()). `variables`: an object with further template
/// variables, also in place of the tokenizer's bos_token and eos_token. Errors: those of the two;
/// the template's.
Result<std::string> render_chat(
    const nlohmann::ordered_json& messages, const ChatTemplateFile& chat,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object());

/// render() of `variables`, whose messages are as read_messages() leaves them. An answer without
/// content has null, which DeepSeek's templates tell from "". Where a template needs text (it
/// fails, or writes "None") it has "" as in vLLM, in `variables`, too. Errors: those with null.
Result<std::string> render_messages(const ChatTemplate& chat, nlohmann::ordered_json& variables);

/// Adds bos_token and eos_token, unless `variables` has them: a client's take the tokenizer's
/// place, as in transformers.
void add_special_texts(const ChatTemplateFile& chat, nlohmann::ordered_json& variables);

/// render_chat()'s text as tokens.
Result<std::vector<std::int32_t>> encode_chat(
    const nlohmann::ordered_json& messages, const ChatTemplateFile& chat,
    const Tokenizer& tokenizer,
    const nlohmann::ordered_json& variables = nlohmann::ordered_json::object());

/// The first of `variables` that the conversation itself sets, whatever a client says: messages or
/// add_generation_prompt, and tools where they have a field. Empty: none.
std::string_view own_variable(const nlohmann::ordered_json& variables, bool tools);
inline constexpr std::string_view kOtherVariables = "names that are not the request's own";

/// Parses the template variables that the flag `field` gives as a JSON object; empty text: none.
/// Errors: malformed, invalid_argument (not an object; own_variable() with `tools`).
Result<nlohmann::ordered_json> read_chat_variables(const std::string& text,
                                                   const std::string& field, bool tools);

}  // namespace lathe
