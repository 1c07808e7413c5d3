// Reading a tokenizer.json into the parts of a Tokenizer.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/added_tokens.h"
#include "io/bpe.h"
#include "io/decoder.h"
#include "io/normalizer.h"
#include "io/pretokenizer.h"

namespace lathe {

/// Ids lie below this; vectors are indexed by id, so a bound keeps a file from asking for memory
/// that its size does not warrant. The largest vocabularies in use have a quarter of it.
inline constexpr std::int32_t kMaxTokenIds = 1 << 20;

struct TokenizerDescription {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  std::vector<AddedToken> added_tokens;     // ids agree with model.tokens and with each other
  std::vector<std::int32_t> before, after;  // what add_special_tokens puts around a text
  Decoder decoder;
};

/// Errors: malformed where the text is not a tokenizer.json, unsupported where it asks for what
/// Lathe cannot do, out_of_range for an id; `field` is the path of the key.
Result<TokenizerDescription> read_tokenizer_json(std::string_view json);

}  // namespace lathe
