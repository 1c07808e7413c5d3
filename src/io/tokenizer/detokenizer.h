// Turns token ids into text, at once or incrementally.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {

/// Each token's text and how texts are joined: a tokenizer.json's decoder, applied to every token
/// in advance.
struct TokenTexts {
  std::vector<std::string> pieces;  // [ids]; the token's bytes
  std::vector<std::string> firsts;  // [ids]; ... as the text's first token; empty: `pieces`
  std::vector<bool> known;          // [ids]; false: a gap in the vocabulary
  std::vector<bool> special;        // [ids]
  std::vector<bool> is_byte;        // [ids]; a <0xHH> of a decoder with ByteFallback
  // Pieces are bytes of one UTF-8 text (byte-level); otherwise each is text, except is_byte.
  bool bytes = true;
  bool spaced = false;           // without a decoder, tokens are joined by spaces
  std::string strip;             // a character to strip from the front of the text ...
  std::int32_t strip_count = 0;  // ... up to this many times
  bool too_long = false;         // some tokens were, and are empty

  const std::string& piece(std::size_t id, bool first) const {
    return first && !firsts.empty() ? firsts[id] : pieces[id];
  }
  bool has(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < pieces.size() &&
           known[static_cast<std::size_t>(id)];
  }
};

/// The tokens' bytes, unchanged. Unknown ids are skipped.
std::string join_bytes(const TokenTexts& texts, std::span<const std::int32_t> ids,  // [n]
                       bool skip_special_tokens);

/// Text as decoded by HF tokenizers: one U+FFFD per maximal invalid subpart, but one per token in a
/// run of ByteFallback tokens that is not UTF-8.
std::string join_text(const TokenTexts& texts, std::span<const std::int32_t> ids,  // [n]
                      bool skip_special_tokens);

/// Incremental decoding. Holds back an incomplete character; the concatenated results of push() and
/// flush() equal Tokenizer::decode() of the ids. The one exception is a run of ByteFallback tokens
/// that is not UTF-8: its valid characters are returned before the invalid byte arrives.
class Detokenizer {
 public:
  explicit Detokenizer(std::shared_ptr<const TokenTexts> texts, bool skip_special_tokens = false)
      : texts_(std::move(texts)), skip_special_tokens_(skip_special_tokens) {}

  std::string push(std::int32_t id);
  /// Whether the last push() returned U+FFFD for a character held back, before its token's text.
  bool gave_up() const { return gave_up_; }
  /// The rest, with U+FFFD for an incomplete character; the next push begins a new text.
  std::string flush();

 private:
  bool continues(std::string_view piece) const;
  void strip_front(std::string& out);

  std::shared_ptr<const TokenTexts> texts_;
  bool skip_special_tokens_;
  bool first_ = true;
  std::int32_t stripped_ = 0;  // characters stripped so far; strip_count: done
  std::string pending_;        // bytes of an unfinished character, at most 3
  bool gave_up_ = false;
};

}  // namespace lathe
