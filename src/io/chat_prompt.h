// A conversation as the tokens of a prompt.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/result.h"
#include "io/chat_template.h"
#include "io/tokenizer.h"

namespace lathe {

/// Tokens of `messages` ([{"role": ..., "content": ...}]) up to where the answer begins. The
/// template writes the special tokens itself. Errors: the template's.
Result<std::vector<std::int32_t>> encode_chat(const nlohmann::ordered_json& messages,
                                              const ChatTemplateFile& chat,
                                              const Tokenizer& tokenizer);

}  // namespace lathe
