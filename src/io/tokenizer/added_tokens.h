// Finds added tokens that a text contains by name ("<|im_end|>"), before the rest is split.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/regex.h"

namespace lathe {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only if no word character is next to it
  bool lstrip = false;       // includes white space before it
  bool rstrip = false;       // includes white space after it
  bool normalized = false;   // matched in normalised text, in its normalised form
  bool special = false;      // left out by decode(skip_special_tokens)
};

/// Finds the leftmost token, and of several that begin there the longest. A match that single_word
/// rules out counts as ordinary text, and so does a shorter one inside it.
class AddedTokenFinder {
 public:
  /// Receives a part of the text: a token, or (id -1) ordinary text.
  using OnPart = std::function<void(std::string_view part, std::int32_t id)>;

  AddedTokenFinder() = default;
  /// Searches for `tokens[i].content`; empty ones are never found.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  /// `broken`: ascending offsets. A token that has one of them inside is ordinary text.
  void split(std::string_view text, const OnPart& on_part,
             std::span<const std::size_t> broken = {}) const;
  /// Appends an offset for each place in `text` where a token of several characters begins: after
  /// its first character. With them as `broken`, split() finds only tokens of one character.
  void find_breaks(std::string_view text, std::vector<std::size_t>& broken) const;

 private:
  // Index in tokens_ and length of the longest token at the front of `text`.
  std::optional<std::pair<std::size_t, std::size_t>> longest(std::string_view text) const;
  bool is_word(std::string_view character) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> first_{};  // bytes with which a token begins
  // A trie over bytes: (node << 8 | byte) → node, and per node the token that ends there or -1.
  std::unordered_map<std::uint64_t, std::int32_t> next_;
  std::vector<std::int32_t> ends_;
  std::optional<Regex> word_;
};

}  // namespace lathe
