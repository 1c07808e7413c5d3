#include "server/grammar/matcher.h"

#include <algorithm>
#include <utility>

namespace lathe::grammar {

Matcher::Matcher(std::shared_ptr<Grammar> grammar, const ThinkTokens& think)
    : grammar_(std::move(grammar)), think_(think) {
  if (think_.inside) header_ = think_.header.size();
  if (grammar_->graph() != nullptr) return;
  masks_ = grammar_->masks();
  place_ = masks_->start();
}

void Matcher::renew_masks() {
  if (masks_->bytes() <= kMostMaskBytes) return;
  const std::shared_ptr<Masks> renewed = grammar_->masks(masks_.get());
  place_ = renewed->bring(*masks_, place_);
  masks_ = renewed;
}

Result<bool> Matcher::allowed(std::span<std::uint32_t> bits) {
  if (think_.inside) {
    const bool header = header_ < think_.header.size();
    std::fill(bits.begin(), bits.end(), header ? 0 : ~std::uint32_t{0});
    if (header) set_bit(bits, think_.header[header_]);
    return false;
  }
  bool may_end = false;
  if (const TokenGraph* graph = grammar_->graph()) {
    graph->fill(node_, bits);
    may_end = graph->may_end(node_);
  } else {
    renew_masks();
    Masks::Next next;
    masks_->fill(place_, bits, next);
    grammar_->keep_usable(bits);
    may_end = next.may_end;
  }
  if (!began_ && think_.begin) {
    set_bit(bits, *think_.begin);
  }
  return may_end;
}

bool Matcher::accept(std::int32_t token) {
  const bool begins = !std::exchange(began_, true) && token == think_.begin;
  if (think_.inside && header_ < think_.header.size()) {
    if (token != think_.header[header_]) return false;
    ++header_;
    return true;
  }
  if (think_.inside || begins) {
    think_.inside = token != think_.end;
    return true;
  }
  if (const TokenGraph* graph = grammar_->graph()) {
    const auto next = graph->step(node_, token);
    if (next) node_ = *next;
    return next.has_value();
  }
  if (!grammar_->is_usable(token)) return false;
  const Place next = masks_->step(place_, token);
  if (next == Walk::kNowhere) return false;
  place_ = next;
  return true;
}

}  // namespace lathe::grammar
