// Reads tiktoken.model, the tokenizer file of Moonshot's Kimi and Moonlight models.
#pragma once

#include <string_view>

#include "base/result.h"
#include "io/tokenizer/tokenizer_json.h"

namespace lathe {

/// `ranks`: the file's text, a line "base64(bytes of a token) SPACE rank" per token; the rank is
/// the token's id. Adjacent tokens merge where their bytes together are a token, the lowest
/// rank first. `config`: the text of tokenizer_config.json, or empty. The 256 ids after the last
/// rank are special tokens: named by its added_tokens_decoder, others <|reserved_token_ID|>. The
/// pattern is that of the models' tokenization code (tokenization_kimi.py), which the files do not
/// have. Errors: malformed, with the line or key; unsupported: a tokenizer_class of other code.
Result<TokenizerDescription> read_tiktoken(std::string_view ranks, std::string_view config);

}  // namespace lathe
