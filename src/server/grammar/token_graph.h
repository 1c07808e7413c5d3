// TokenGraph: all texts of a grammar that some tokens can write, token by token. It is for
// requests that leave few tokens to a grammar: there a token may be allowed by the bytes and still
// lead to a place where no token can go on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "server/grammar/automaton.h"
#include "server/grammar/vocabulary.h"

namespace lathe::grammar {

/// Immutable. From every node that can be reached the text can be completed.
class TokenGraph {
 public:
  using Node = std::uint32_t;
  static constexpr Node kStart = 0;

  /// `usable`: bits [(vocab + 31) / 32] of the tokens. nullopt: a graph that costs too much to
  /// make, by the grammar and the tokens alone.
  static std::optional<TokenGraph> make(const Automaton& automaton, const Vocabulary& vocabulary,
                                        std::span<const std::uint32_t> usable);

  /// No text of at least one token can be written.
  bool empty() const { return first_[kStart] == first_[kStart + 1]; }
  bool may_end(Node node) const { return ends_[node]; }
  std::int64_t bytes() const { return 8 * (std::ssize(edges_) + std::ssize(first_)); }
  /// Sets the bits [(vocab + 31) / 32] of the tokens that may come next, and no others.
  void fill(Node node, std::span<std::uint32_t> bits) const;
  /// The node after a token; nullopt: it may not come next.
  std::optional<Node> step(Node node, std::int32_t token) const;

 private:
  struct Edge {
    std::int32_t token;
    Node to;
  };
  class Maker;
  std::vector<Edge> edges_;           // by node; within one, ascending by token
  std::vector<std::uint32_t> first_;  // [nodes + 1]
  std::vector<bool> ends_;            // [nodes]
};

}  // namespace lathe::grammar
