// TokenRules: the tokens that an answer may use at all, and sequences that it must not contain
// (vLLM's allowed_token_ids and bad_words), on top of a grammar or alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/request/token_constraint.h"

namespace lathe::grammar {

/// Shared by the choices of a prompt.
struct TokenLists {
  std::int32_t vocab = 0;
  // Bits [(vocab + 31) / 32] of the tokens that may occur; empty: all.
  std::vector<std::uint32_t> allowed;
  std::vector<std::uint32_t> stops;  // bits of the stop tokens; empty: none
  // Each of at least one token. The last token of a sequence is not allowed after its others,
  // unless another constraint leaves no other token there.
  std::vector<std::vector<std::int32_t>> bad;
};

/// The lists' bits for `ids`, all of which are in [0, vocab).
std::vector<std::uint32_t> bits_of(const std::vector<std::int32_t>& ids, std::int32_t vocab);

class TokenRules final : public TokenConstraint {
 public:
  /// `within`: another constraint that holds too; null: none.
  TokenRules(std::shared_ptr<const TokenLists> lists, std::unique_ptr<TokenConstraint> within);

  Result<bool> allowed(std::span<std::uint32_t> bits) override;
  bool may_end_with(std::int32_t stop) const override;
  bool accept(std::int32_t token) override;
  std::unique_ptr<TokenConstraint> clone() const override;

 private:
  bool any_but_stops(std::span<const std::uint32_t> bits) const;
  bool ends_bad(const std::vector<std::int32_t>& sequence) const;
  bool leaves_out(std::int32_t token) const;
  bool completes_bad(std::int32_t token) const;

  std::shared_ptr<const TokenLists> lists_;
  std::unique_ptr<TokenConstraint> within_;
  std::size_t most_ = 0;            // tokens before the last one of the longest bad sequence
  std::vector<std::int32_t> tail_;  // the answer's last most_ tokens
  bool gives_way_ = false;          // to the other constraint, by the last allowed()
};

}  // namespace lathe::grammar
