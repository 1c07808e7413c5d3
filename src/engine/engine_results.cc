#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace lathe {

void Engine::take_results(StepReport& report) {
  report.tokens.reserve(step_.samples.size());
  for (std::size_t i = 0; i < step_.items.size(); ++i) {
    Sequence& r = *step_.batch[i];
    if (r.ended) continue;  // cancelled meanwhile
    const std::int64_t drafts = r.drafts;
    const std::int64_t rows = std::ssize(step_.items[i].tokens) - drafts;
    if (const NonFiniteItem* bad = non_finite_row(i, 0, rows)) {
      end(r, FinishReason::error, not_finite(r, bad->layer), report.finished);
      continue;
    }
    const std::int64_t before = std::exchange(r.computed, r.computed + rows);
    if (!step_.items[i].scored.empty()) take_scored(r, i);
    if (step_.items[i].logits > 0) take_tokens(r, i, report);
    if (!r.ended && r.constraint && step_.items[i].logits > 0) follow_constraint(r, report);
    if (!r.ended || r.in_flight > 0) pages_.confirm(r.pages);
    if (r.ended) continue;
    if (drafts > 0) pages_.undo(r.computed, r.pages);  // pages of rejected drafts
    if (drafting_.reads()) add_rows(r, i, before, report);
  }
  drafting_.end_step(report.decode_rows, report.accepted);
  if (drafting_.reads()) publish_prompts();
  for (SequencePtr& r : running_) {
    if (!r->ended) continue;
    leave_client(*r);
    if (r->in_flight > 0) leaving_.push_back(std::move(r));
  }
  std::erase_if(running_, [](const SequencePtr& r) { return r == nullptr || r->ended; });
  publish_partings();
  for (const SequencePtr& r : running_) trim(*r);
}

// Needs no check for NaN: attention propagates a non-finite row to the answer's first token.
void Engine::take_scored(Sequence& r, std::size_t item) {
  const std::span<const std::optional<SampledToken>> scored = runner_.scored(item);
  for (std::size_t k = 0; k < scored.size(); ++k) {
    r.prompt_logprobs.push_back(
        scored[k].value_or(SampledToken{step_.items[item].scored[k], {}, {}, {}}));
  }
  r.next_scored += std::ssize(scored);
}

// The token sampled after a draft counts if that draft and all before it were sampled, too. Keys of
// rejected drafts stay after the computed tokens, where the next rows overwrite them before any
// read.
void Engine::take_tokens(Sequence& r, std::size_t item, StepReport& report) {
  const std::int64_t drafts = r.drafts;
  std::int64_t accepted = 0;
  while (take_token(r, item, accepted, report)) {
    const std::int64_t row = std::ssize(step_.items[item].tokens) - drafts + accepted;
    ++accepted;
    if (const NonFiniteItem* bad = non_finite_row(item, row, row + 1)) {
      end(r, FinishReason::error, not_finite(r, bad->layer), report.finished);
      break;
    }
    ++r.computed;
  }
  r.drop_drafts();
  if (drafts == 0) return;
  drafting_.took(r.drafting, drafts, accepted);
  report.accepted += accepted;
}

// Adds the token sampled from the k-th row of logits, and ends the answer if it is the last one.
// Returns true if the token equals the next draft, so that the draft's row counts, and the answer
// continues.
bool Engine::take_token(Sequence& r, std::size_t item, std::int64_t k, StepReport& report) {
  if (options_.on_logits) {
    const auto logits = runner_.logits(item, k);
    if (!logits) {
      end(r, FinishReason::error, logits.error(), report.finished);
      return false;
    }
    options_.on_logits(r.id, *logits);
  }
  std::optional<SampledToken>& sampled = runner_.sampled(item, k);
  if (!sampled) {
    end(r, FinishReason::error, not_finite(r, std::nullopt), report.finished);
    return false;
  }
  const bool prefill = step_.items[item].phase == Phase::extend;
  if (prefill && !drafting_.reads()) publish(r);
  if (!r.forced.empty()) sampled->token = r.forced[static_cast<std::size_t>(r.answered())];
  const std::int32_t token = sampled->token;
  report.tokens.push_back(
      {r.id, r.answered(), std::move(*sampled), std::exchange(r.prompt_logprobs, {})});
  const bool right = r.drafts > 0 && r.tokens[static_cast<std::size_t>(r.known())] == token;
  if (right) {
    --r.drafts;
  } else {
    r.drop_drafts();
    r.tokens.push_back(token);
  }
  const bool stop = std::binary_search(r.stops.begin(), r.stops.end(), token);
  if (!stop && r.constraint) LATHE_CHECK(r.constraint->accept(token), "token not accepted");
  if (!stop && r.answered() < r.limit) return right;
  FinishReason reason = stop ? FinishReason::stop : FinishReason::length;
  if (!stop && r.constraint) {
    const auto goes_on = find_allowed(r, *r.constraint, 0);
    if (goes_on && !*goes_on) reason = FinishReason::complete;
  }
  end(r, reason, std::nullopt, report.finished);
  return false;
}

// The first of the item's rows [first, end) with NaN or Inf, or null.
const NonFiniteItem* Engine::non_finite_row(std::size_t item, std::int64_t first,
                                            std::int64_t end) const {
  for (const NonFiniteItem& bad : runner_.non_finite()) {
    if (bad.item == item && bad.row >= first && bad.row < end) return &bad;
  }
  return nullptr;
}

Error Engine::not_finite(const Sequence& r, std::optional<std::int32_t> layer) const {
  std::string place = fmt::format("NaN or Inf in step {}", sums_.steps);
  if (layer && *layer < 0) {
    place += ", in the embedding";
  } else if (layer && *layer >= model_->config().layers) {
    place += ", in the logits";
  } else if (layer) {
    place += fmt::format(", after layer {}", *layer);
  }
  return {ErrorCode::out_of_range, fmt::format("logits of request {}", r.id.value),
          "finite numbers", std::move(place), layer ? "" : "--debug-nan names the layer"};
}

}  // namespace lathe
