#include "server/grammar/token_rules.h"

#include <algorithm>
#include <utility>

#include "server/grammar/vocabulary.h"

namespace lathe::grammar {
namespace {

std::uint32_t& word_of(std::span<std::uint32_t> bits, std::int32_t token) {
  return bits[static_cast<std::size_t>(token / 32)];
}

std::uint32_t bit_of(std::int32_t token) { return std::uint32_t{1} << (token % 32); }

}  // namespace

std::vector<std::uint32_t> bits_of(const std::vector<std::int32_t>& ids, std::int32_t vocab) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocab + 31) / 32));
  for (const std::int32_t id : ids) word_of(bits, id) |= bit_of(id);
  return bits;
}

TokenRules::TokenRules(std::shared_ptr<const TokenLists> lists,
                       std::unique_ptr<TokenConstraint> within)
    : lists_(std::move(lists)), within_(std::move(within)) {
  for (const auto& sequence : lists_->bad) most_ = std::max(most_, sequence.size() - 1);
}

// Whether all but the last token of the sequence end the answer so far.
bool TokenRules::ends_bad(const std::vector<std::int32_t>& sequence) const {
  const std::int64_t before = std::ssize(sequence) - 1;
  return before <= std::ssize(tail_) &&
         std::equal(sequence.begin(), sequence.end() - 1, tail_.end() - before);
}

Result<bool> TokenRules::allowed(std::span<std::uint32_t> bits) {
  bool may_end = true;
  if (within_ != nullptr) {
    const auto inner = within_->allowed(bits);
    if (!inner) return inner.error();
    may_end = *inner;
  } else {
    std::ranges::fill(bits, ~std::uint32_t{0});
    if (lists_->vocab % 32 != 0) bits.back() = bit_of(lists_->vocab) - 1;
  }
  for (std::size_t i = 0; i < lists_->allowed.size(); ++i) bits[i] &= lists_->allowed[i];
  std::vector<std::int32_t> cleared;
  for (const auto& sequence : lists_->bad) {
    if (!ends_bad(sequence) || !has_bit(bits, sequence.back())) continue;
    word_of(bits, sequence.back()) &= ~bit_of(sequence.back());
    cleared.push_back(sequence.back());
  }
  gives_way_ = !may_end && !any_but_stops(bits);
  if (gives_way_) {
    for (const std::int32_t token : cleared) word_of(bits, token) |= bit_of(token);
  }
  return may_end;
}

bool TokenRules::may_end_with(std::int32_t stop) const {
  if (within_ != nullptr && !within_->may_end_with(stop)) return false;
  return !leaves_out(stop) && !completes_bad(stop);
}

// Whether the token is not one of those that may occur.
bool TokenRules::leaves_out(std::int32_t token) const {
  return !lists_->allowed.empty() && !has_bit(lists_->allowed, token);
}

bool TokenRules::completes_bad(std::int32_t token) const {
  return std::ranges::any_of(lists_->bad, [&](const auto& sequence) {
    return sequence.back() == token && ends_bad(sequence);
  });
}

bool TokenRules::any_but_stops(std::span<const std::uint32_t> bits) const {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if ((bits[i] & (lists_->stops.empty() ? ~0u : ~lists_->stops[i])) != 0) return true;
  }
  return false;
}

bool TokenRules::accept(std::int32_t token) {
  if (leaves_out(token) || (!gives_way_ && completes_bad(token))) return false;
  if (within_ != nullptr && !within_->accept(token)) return false;
  gives_way_ = false;
  if (most_ == 0) return true;
  if (tail_.size() == most_) tail_.erase(tail_.begin());
  tail_.push_back(token);
  return true;
}

std::unique_ptr<TokenConstraint> TokenRules::clone() const {
  auto made = std::make_unique<TokenRules>(lists_, within_ == nullptr ? nullptr : within_->clone());
  made->tail_ = tail_;
  made->gives_way_ = gives_way_;
  return made;
}

}  // namespace lathe::grammar
