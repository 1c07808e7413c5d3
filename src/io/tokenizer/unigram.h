// The unigram model of SentencePiece (arXiv 1804.10959): cuts a text into the tokens with the
// greatest sum of scores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizer/token_table.h"

namespace lathe {

/// Longest token in bytes: encoding looks up every prefix of that length at every character.
inline constexpr std::size_t kMaxUnigramToken = 512;

struct UnigramModel {
  std::vector<std::string> tokens;  // [ids], none empty, none twice
  std::vector<double> scores;       // [ids], finite
  std::int32_t unk = -1;            // for characters in no token; -1: drop them
  bool byte_fallback = false;       // such a character becomes tokens <0xHH> if all exist
};

class Unigram {
 public:
  /// A thread's working memory.
  struct Scratch {
    struct Best {               // cut of the text up to a byte
      double score = 0;         // sum over its tokens
      std::int64_t begin = -1;  // of its last token; -1: no cut ends here
      std::int32_t id = -1;     // of its last token
    };
    std::vector<Best> best;  // [bytes + 1]
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  };

  explicit Unigram(UnigramModel model);

  /// Appends the ids of `piece` (any bytes; not normalised, not split). A character in no token
  /// scores 10 less than the lowest score; a run of them is one unknown. O(n kMaxUnigramToken log
  /// tokens).
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  void search(std::string_view piece, std::vector<Scratch::Best>& best) const;
  void add(std::string_view part, std::vector<std::int32_t>& ids) const;

  UnigramModel model_;  // its tokens are in by_text_
  TokenTable by_text_;
  std::vector<std::int32_t> order_;  // [tokens] ids by their tokens' bytes
  double unk_score_ = 0;
};

}  // namespace lathe
