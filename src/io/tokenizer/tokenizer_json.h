// Reads a tokenizer.json into the parts of a Tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/bpe.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pretokenizer.h"
#include "io/tokenizer/unigram.h"

namespace lathe {

/// Exclusive bound on ids: vectors are indexed by id, and a small file must not make them huge. The
/// largest vocabularies in use reach a quarter of it.
inline constexpr std::int32_t kMaxTokenIds = 1 << 20;

struct TokenizerDescription {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;                           // its tokens, in any case
  std::optional<UnigramModel> unigram;      // in place of byte pairs
  std::vector<AddedToken> added_tokens;     // ids agree with model.tokens and with each other
  std::vector<std::int32_t> before, after;  // tokens that add_special_tokens adds
  Decoder decoder;
};

/// Errors, with the key's path: malformed (not a tokenizer.json), unsupported (a feature),
/// out_of_range (an id).
Result<TokenizerDescription> read_tokenizer_json(std::string_view json);

}  // namespace lathe
