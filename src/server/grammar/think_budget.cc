#include "server/grammar/think_budget.h"

#include <algorithm>
#include <utility>

namespace lathe::grammar {

Result<bool> ThinkBudget::allowed(std::span<std::uint32_t> bits) {
  bool may_end = true;
  if (within_ != nullptr) {
    const auto inner = within_->allowed(bits);
    if (!inner) return inner.error();
    may_end = *inner;
  } else {
    std::fill(bits.begin(), bits.end(), ~std::uint32_t{0});
    const auto last = static_cast<std::uint32_t>(vocab_) % 32;
    if (last > 0) bits.back() = (std::uint32_t{1} << last) - 1;
  }
  const bool header = header_ < marks_.header.size();
  if (!marks_.inside || header || budget_ > 0 || !has_bit(bits, marks_.end)) return may_end;
  std::fill(bits.begin(), bits.end(), 0);
  set_bit(bits, marks_.end);
  return false;
}

bool ThinkBudget::accept(std::int32_t token) {
  if (within_ != nullptr && !within_->accept(token)) return false;
  const bool first = !std::exchange(began_, true);
  if (marks_.inside && header_ < marks_.header.size()) {
    marks_.inside = token == marks_.header[header_];  // else this is no reasoning
    ++header_;
  } else if (marks_.inside) {
    marks_.inside = token != marks_.end;
    --budget_;
  } else if (first && token == marks_.begin) {
    marks_.inside = true;
  }
  return true;
}

std::unique_ptr<TokenConstraint> ThinkBudget::clone() const {
  auto out = std::make_unique<ThinkBudget>(budget_, marks_, vocab_,
                                           within_ != nullptr ? within_->clone() : nullptr);
  out->began_ = began_;
  out->header_ = header_;
  return out;
}

}  // namespace lathe::grammar
