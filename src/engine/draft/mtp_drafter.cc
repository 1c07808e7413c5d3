#include "engine/draft/mtp_drafter.h"

#include <algorithm>
#include <utility>

#include "model/layers/draft_layer.h"

namespace lathe {
namespace {

bool covers(std::span<const std::vector<PageId>> pages, const KvCache& cache,
            std::int64_t position) {
  for (std::size_t g = 0; g < pages.size(); ++g) {
    const auto page = static_cast<std::size_t>(position / cache.page_size(g));
    if (page >= pages[g].size() || pages[g][page].is_hole()) return false;
  }
  return true;
}

}  // namespace

Result<MtpDrafter> MtpDrafter::create(const Model& model, KvCache& cache, const OpsContext& ops,
                                      const OtherRanks* ranks) {
  const ModelConfig& config = model.config();
  const auto sizes = HiddenRowSizes::of(cache.plan(), kDraftUses, config.shared_choice_width());
  AllHidden hidden(1 + (ranks == nullptr ? 0 : ranks->models.size()));
  // On the rank's thread, where its device is the current one.
  auto add = [&](std::int32_t r) -> Result<void> {
    const auto at = static_cast<std::size_t>(r);
    const OpsContext& of = r == 0 ? ops : ranks->models[at - 1].ops;
    auto rows = HiddenRows::create(*of.backend, config.state_width(), sizes);
    if (!rows) return rows.error();
    hidden[at] = std::make_unique<HiddenRows>(std::move(*rows));
    return {};
  };
  if (auto ok = ranks == nullptr ? add(0) : ranks->group->run(add); !ok) return ok.error();
  std::vector<HiddenRows*> rows_of;
  for (const auto& rows : hidden) rows_of.push_back(rows.get());
  auto runner = RankedRunner::create({&model, &cache, ops}, ranks, RunnerPass::draft, rows_of);
  if (!runner) return runner.error();
  return MtpDrafter(model, cache, ops, std::move(hidden), std::move(rows_of), std::move(*runner));
}

// A pass has at most the rows of a model's step, because the plan sizes buffers for that. A request
// in phase verify has at most the rows of a step that checks drafts, because recordings fix that
// number.
MtpDrafter::MtpDrafter(const Model& model, const KvCache& cache, const OpsContext& ops,
                       AllHidden hidden, std::vector<HiddenRows*> rows_of, RankedRunner runner)
    : cache_(&cache),
      cost_(1.0 / model.config().layers),
      most_rows_(cache.plan().max_rows()),
      verify_rows_(1 + (ops.backend->replays() ? cache.plan().draft_tokens() : kDraftUses)),
      shared_keys_(model.config().shared_choice_width()),
      hidden_(std::move(hidden)),
      rows_of_(std::move(rows_of)),
      runner_(std::move(runner)) {}

Result<void> MtpDrafter::read(std::span<const ComputedRows> rows) {
  for (const ComputedRows& r : rows) drafts_.erase(r.id.value);
  while (!rows.empty()) {
    std::size_t n = 0;
    std::int64_t in_all = 0;
    for (; n < rows.size(); ++n) {
      in_all += std::ssize(rows[n].hidden);
      if (n > 0 && in_all > most_rows_) break;
    }
    if (auto ok = read_and_draft(rows.first(n)); !ok) return ok;
    rows = rows.subspan(n);
  }
  return {};
}

Result<void> MtpDrafter::read_and_draft(std::span<const ComputedRows> rows) {
  chains_.clear();
  if (auto ok = read_rows(rows); !ok) return ok;
  if (shared_keys_ > 0) share_choices();
  for (std::int64_t deep = 1;; ++deep) {
    std::erase_if(chains_, [&](Chain& c) { return !take(c) || deep == kDraftUses; });
    if (chains_.empty()) return {};
    if (auto ok = go_on(); !ok) return ok;
  }
}

// Writes the layer's keys of the rows, and samples a first draft after the rows of each request
// that wants one. Rows that an answer got in one step come first, as phase verify.
Result<void> MtpDrafter::read_rows(std::span<const ComputedRows> rows) {
  items_.clear();
  chains_.reserve(rows.size());  // items point into it
  for (const Phase phase : {Phase::verify, Phase::extend}) {
    for (const ComputedRows& r : rows) {
      const bool many = r.prefill || std::ssize(r.hidden) > verify_rows_;
      if (phase != (many ? Phase::extend : Phase::verify)) continue;
      BatchItem& item = items_.emplace_back();
      item.phase = phase;
      item.pages = r.pages;
      item.cached = static_cast<std::int32_t>(r.first);
      item.tokens = r.tokens.subspan(static_cast<std::size_t>(r.first) + 1, r.hidden.size());
      item.before = r.hidden;
      if (r.most < 1) continue;
      Chain& chain = chains_.emplace_back(r);
      chain.item = items_.size() - 1;
      item.logits = 1;
      item.samples = std::span(&chain.sampling, 1);
    }
  }
  if (auto ok = runner_.launch(items_, false); !ok) return ok;
  return runner_.collect();
}

// Later uses of the layer read the keys that the first row chose. If that row saw no more keys than
// a choice holds, there is nothing to choose (-1): the later rows read the request's first keys,
// their own included as long as there is room.
void MtpDrafter::share_choices() {
  for (Chain& c : chains_) {
    const bool chose = std::ssize(c.rows->tokens) - 1 > shared_keys_;
    c.choice = chose ? runner_.choice(c.item, 0) : -1;
  }
}

// Runs one more row for each chain: its last draft, at the next position.
Result<void> MtpDrafter::go_on() {
  items_.clear();
  for (Chain& c : chains_) {
    c.item = items_.size();
    BatchItem& item = items_.emplace_back();
    item.phase = Phase::decode;
    item.pages = c.rows->pages;
    item.cached = static_cast<std::int32_t>(std::ssize(c.rows->tokens) + std::ssize(c.drafts) - 2);
    item.tokens = std::span(c.drafts).last(1);
    item.before = std::span(&c.before, 1);
    if (shared_keys_ > 0) item.choices = std::span(&c.choice, 1);
    item.logits = 1;
    item.samples = std::span(&c.sampling, 1);
  }
  if (auto ok = runner_.launch(items_, false); !ok) return ok;
  return runner_.collect();
}

// Adds the sampled draft to its chain. Returns false if the chain ends: it is long enough, the
// logits were not finite, or no page holds the next position.
bool MtpDrafter::take(Chain& c) {
  const std::optional<SampledToken>& drawn = runner_.sampled(c.item, 0);
  if (!drawn) return false;
  c.add(drawn->token);
  Drafts& all = drafts_[c.rows->id.value];
  all.known = c.rows->tokens.size();
  all.tokens = c.drafts;
  if (std::ssize(c.drafts) >= c.rows->most) return false;
  const std::int64_t next = std::ssize(c.rows->tokens) + std::ssize(c.drafts) - 2;
  if (!covers(c.rows->pages, *cache_, next)) return false;
  c.before = runner_.hidden(c.item, 0);
  return true;
}

void MtpDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& r : requests) {
    const auto found = drafts_.find(r.id.value);
    if (found == drafts_.end() || found->second.known != r.tokens.size()) continue;
    const std::vector<std::int32_t>& tokens = found->second.tokens;
    r.drafts.assign(tokens.begin(), tokens.begin() + std::min(std::ssize(tokens),
                                                              static_cast<std::ptrdiff_t>(r.most)));
  }
}

}  // namespace lathe
