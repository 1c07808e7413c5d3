// The decoder of a tokenizer.json, limited to orders of steps that can be applied token by token.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/tokenizer/detokenizer.h"
#include "io/tokenizer/regex.h"

namespace lathe {

/// (ReplaceStep | StripStep | MetaspaceStep)*, then ByteFallback, then Fuse with a Strip of the
/// text's start; or ByteLevel alone; or none, which joins tokens by spaces.
struct Decoder {
  struct ReplaceStep {
    Regex regex;
    std::string content;
  };
  struct StripStep {  // of a token
    std::string character;
    std::int32_t start = 0;  // at most this many
    std::int32_t stop = 0;
  };
  struct MetaspaceStep {  // replaces a character by a space
    std::string character;
    bool drops = false;  // the text's first token loses all of them
  };
  std::vector<std::variant<ReplaceStep, StripStep, MetaspaceStep>> steps;  // of a token
  bool none = false;
  bool byte_level = false;
  bool byte_fallback = false;
  StripStep text_strip;  // of the text; stop is 0

  /// Decodes `token`, a string of the vocabulary; `first`: it is the text's first token. None: its
  /// steps make it more than 64 times as long and 4 KiB.
  std::optional<std::string> apply(std::string_view token, bool first = false) const;
  /// Whether a text's first token may decode differently.
  bool has_first() const;
};

/// `tokens[id]` as in the vocabulary, empty for unused ids; `special[id]`. Tokens that
/// Decoder::apply() refuses are empty and set too_long.
TokenTexts decode_vocabulary(const Decoder& decoder, const std::vector<std::string>& tokens,
                             std::vector<bool> special);

}  // namespace lathe
