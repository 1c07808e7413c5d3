// TextOffsets: where each token begins in the text of a completion, in code points.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizer/tokenizer.h"

namespace lathe {

/// Of tokens that are turned into text as an answer's are. A token that is not shown begins where
/// the next one does; one that continues an unfinished character, where that character begins. One
/// that does not begins after the U+FFFD that the character becomes.
class TextOffsets {
 public:
  /// `begin`: code points before the first token.
  TextOffsets(Detokenizer detokenizer, std::int64_t begin)
      : detokenizer_(std::move(detokenizer)), at_(begin) {}

  std::int64_t next(std::int32_t token);

 private:
  Detokenizer detokenizer_;
  std::int64_t at_;
};

/// [tokens] of a text that was encoded to them. A token that is not in the text, such as one that
/// the tokenizer adds, begins where the next one does.
std::vector<std::int64_t> offsets_in(std::string_view text, std::span<const std::int32_t> tokens,
                                     const Tokenizer& tokenizer);

std::int64_t count_code_points(std::string_view utf8);

}  // namespace lathe
