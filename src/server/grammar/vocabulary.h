// Vocabulary: a trie over the bytes of all tokens.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/grammar/automaton.h"

namespace lathe::grammar {

/// Immutable.
class Vocabulary {
 public:
  /// `texts[id]`; tokens without text, and those longer than kLongestToken, never appear in
  /// constrained answers.
  explicit Vocabulary(std::vector<std::string> texts);

  /// Trie nodes in preorder; the root is node 0.
  struct Node {
    std::uint32_t end;          // the first node after its subtree
    std::uint32_t first_token;  // index into tokens(); ends at the next node's
    std::uint8_t depth;         // in bytes from the root
    std::uint8_t byte;          // the last of them
  };
  std::span<const Node> nodes() const {  // and a sentinel
    return nodes_;
  }
  std::span<const std::int32_t> tokens() const { return tokens_; }

  const std::string& text(std::int32_t token) const {
    return texts_[static_cast<std::size_t>(token)];
  }
  std::int64_t size() const { return std::ssize(texts_); }
  /// The bytes that are the text of a usable token. `usable`: bits [(size() + 31) / 32]; empty:
  /// all.
  std::bitset<256> bytes(std::span<const std::uint32_t> usable) const;

 private:
  std::vector<std::string> texts_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;
};

/// A token's bit in bits [(vocab + 31) / 32].
inline bool has_bit(std::span<const std::uint32_t> bits, std::int32_t token) {
  return (bits[static_cast<std::size_t>(token / 32)] >> (token % 32) & 1u) != 0;
}
inline void set_bit(std::span<std::uint32_t> bits, std::int32_t token) {
  bits[static_cast<std::size_t>(token / 32)] |= std::uint32_t{1} << (token % 32);
}

}  // namespace lathe::grammar
