// Matcher: constrains one answer to a grammar.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/request/token_constraint.h"
#include "server/grammar/grammar.h"

namespace lathe::grammar {

/// Reasoning marks that are single tokens.
struct ThinkTokens {
  bool inside = false;                // the answer begins in reasoning
  std::optional<std::int32_t> begin;  // may be the answer's first token; unset: reasoning is over
  std::int32_t end = -1;
  // Tokens between `begin` and the reasoning: the rest of a mark that is more than one token.
  std::vector<std::int32_t> header = {};
};

class Matcher final : public TokenConstraint {
 public:
  /// The answer follows `grammar`, after the end of reasoning if there is any.
  Matcher(std::shared_ptr<Grammar> grammar, const ThinkTokens& think);

  Result<bool> allowed(std::span<std::uint32_t> bits) override;
  bool accept(std::int32_t token) override;
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<Matcher>(*this);
  }

 private:
  void renew_masks();

  std::shared_ptr<Grammar> grammar_;
  std::shared_ptr<Masks> masks_;
  Place place_ = Walk::kNowhere;
  TokenGraph::Node node_ = TokenGraph::kStart;  // if the grammar has a graph
  ThinkTokens think_;
  bool began_ = false;
  std::size_t header_ = 0;  // tokens of think_.header that have come
};

}  // namespace lathe::grammar
