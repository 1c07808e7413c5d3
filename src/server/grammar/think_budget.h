// ThinkBudget: ends an answer's reasoning after a number of tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/request/token_constraint.h"
#include "server/grammar/matcher.h"

namespace lathe::grammar {

class ThinkBudget final : public TokenConstraint {
 public:
  /// After `budget` tokens of reasoning the next one is the mark of its end, unless another
  /// constraint excludes that. `within`: another constraint that holds too; null: none.
  ThinkBudget(std::int64_t budget, const ThinkTokens& marks, std::int32_t vocab,
              std::unique_ptr<TokenConstraint> within)
      : budget_(budget), marks_(marks), vocab_(vocab), within_(std::move(within)) {
    if (marks_.inside) header_ = marks_.header.size();
  }

  Result<bool> allowed(std::span<std::uint32_t> bits) override;
  bool may_end_with(std::int32_t stop) const override {
    return within_ == nullptr || within_->may_end_with(stop);
  }
  bool accept(std::int32_t token) override;
  std::unique_ptr<TokenConstraint> clone() const override;

 private:
  std::int64_t budget_;  // tokens left
  ThinkTokens marks_;
  std::int32_t vocab_;
  bool began_ = false;
  std::size_t header_ = 0;  // tokens of the header that have come
  std::unique_ptr<TokenConstraint> within_;
};

}  // namespace lathe::grammar
