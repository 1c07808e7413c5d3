// Vocabulary: the bytes of all tokens, as a trie.
#pragma once

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

  /// Of the trie, each before those below it, whose root is node 0.
  struct Node {
    std::uint32_t end;          // the first node that is not below it
    std::uint32_t first_token;  // in tokens(); the next node's is the end
    std::uint8_t depth;         // bytes from the root
    std::uint8_t byte;          // the last of them
  };
  std::span<const Node> nodes() const {  // and one behind the last
    return nodes_;
  }
  std::span<const std::int32_t> tokens() const { return tokens_; }

  const std::string& text(std::int32_t token) const {
    return texts_[static_cast<std::size_t>(token)];
  }
  std::int64_t size() const { return std::ssize(texts_); }

 private:
  std::vector<std::string> texts_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace lathe::grammar
