#include <algorithm>

#include "engine/engine.h"

namespace lathe {

// Fills r.allowed for the token after `drafts` drafts, from a constraint in that state. Returns
// false if the answer ends there because nothing may follow. Errors: the constraint's; nothing may
// follow although the answer may not end.
Result<bool> Engine::find_allowed(Sequence& r, TokenConstraint& constraint, std::int64_t drafts) {
  const std::int64_t words = allowed_words();
  r.allowed.resize(static_cast<std::size_t>(words * (drafts + 1)));
  const std::span<std::uint32_t> bits = r.allowed_after(drafts, words);
  const auto may_end = constraint.allowed(bits);
  if (!may_end) return may_end.error();
  const auto word_of = [&](std::int32_t token) -> std::uint32_t& {
    return bits[static_cast<std::size_t>(token / 32)];
  };
  const auto bit_of = [](std::int32_t token) { return std::uint32_t{1} << (token % 32); };
  for (const std::int32_t t : r.stops) word_of(t) &= ~bit_of(t);
  const bool goes_on = std::any_of(bits.begin(), bits.end(), [](auto word) { return word != 0; });
  if (!goes_on && !*may_end) {
    return Error{ErrorCode::exhausted, "the answer's constraint",
                 "a token of the vocabulary that may follow", "none",
                 "a constraint that needs no such text"};
  }
  if (*may_end) {
    for (const std::int32_t t : r.stops) {
      if (constraint.may_end_with(t)) word_of(t) |= bit_of(t);
    }
  }
  return goes_on;
}

// The number of drafts that the constraint allows, without one that would end the answer.
std::int64_t Engine::allowed_drafts(Sequence& r, std::span<const std::int32_t> drafts) {
  const std::unique_ptr<TokenConstraint> ahead = r.constraint->clone();
  std::int64_t n = 0;
  for (const std::int32_t token : drafts) {
    if (!ahead->accept(token)) break;
    const auto goes_on = find_allowed(r, *ahead, n + 1);
    if (!goes_on || !*goes_on) break;
    ++n;
  }
  return n;
}

// Updates r.allowed after the step's tokens. If nothing may follow, the answer is complete.
void Engine::follow_constraint(Sequence& r, StepReport& report) {
  const auto goes_on = find_allowed(r, *r.constraint, 0);
  if (!goes_on) {
    end(r, FinishReason::error, goes_on.error(), report.finished);
  } else if (!*goes_on) {
    end(r, FinishReason::complete, std::nullopt, report.finished);
  }
}

}  // namespace lathe
