#include "engine/draft/model_drafter.h"

#include <algorithm>
#include <utility>

#include "engine/draft/draft_length.h"
#include "engine/schedule/page_kinds.h"

namespace lathe {
namespace {

constexpr std::int64_t kBurstRows = 1 + kDraftModelDrafts;  // of a request in phase verify

std::size_t nth(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Result<ModelDrafter> ModelDrafter::create(const Model& model, KvCache& cache,
                                          const ModelDrafterOptions& options, const OpsContext& ops,
                                          const OtherRanks* ranks) {
  const ModelPlan& plan = cache.plan();
  if (plan.has_state()) {
    return Error{ErrorCode::unsupported, "--draft",
                 "a draft model without a state between tokens, which a rejected draft would spoil",
                 model.config().architecture, "--draft ngram needs no weights"};
  }
  for (const GroupPlan& g : plan.groups) {
    if (!g.plan.phase(Phase::verify).routes.empty()) continue;
    return Error{ErrorCode::unsupported, "--draft",
                 "a draft model whose plan has a kernel for phase verify",
                 "none in group " + g.group.name, "--draft ngram needs no weights"};
  }
  ModelDrafterOptions o = options;
  if (o.prefill_rows == 0) o.prefill_rows = plan.max_rows();
  auto pages = PageAllocator::create(page_kinds(cache, o.prefill_rows + kMaxDraftTokens),
                                     plan.block_tokens, o.prefix_cache);
  if (!pages) return pages.error();
  auto runner = RankedRunner::create({&model, &cache, ops}, ranks);
  if (!runner) return runner.error();
  return ModelDrafter(cache, o, ops, std::move(*pages), std::move(*runner));
}

ModelDrafter::ModelDrafter(KvCache& cache, const ModelDrafterOptions& options,
                           const OpsContext& ops, PageAllocator pages, RankedRunner runner)
    : cache_(&cache),
      options_(options),
      ops_(ops),
      pages_(std::move(pages)),
      runner_(std::move(runner)) {}

// A failed pass costs drafts alone: keys count only once their pass is over, and the next call
// releases the pages after them.
void ModelDrafter::propose(std::span<DraftRequest> requests) {
  jobs_.clear();
  chains_.clear();
  jobs_.reserve(requests.size());  // chains point into it
  std::int64_t prefill_rows = options_.prefill_rows;
  row_share_ = draft_row_share(std::ssize(requests), on_host());
  for (DraftRequest& r : requests) plan_rows(r, prefill_rows);
  // Rows of a phase must be neighbours in a batch.
  std::stable_partition(jobs_.begin(), jobs_.end(),
                        [](const Job& j) { return j.rows <= kBurstRows; });
  for (std::span<Job> rest = jobs_; !rest.empty();) {
    std::size_t n = 0;
    std::int64_t in_all = 0;
    for (; n < rest.size(); ++n) {
      in_all += rest[n].rows;
      if (n > 0 && in_all > cache_->plan().max_rows()) break;
    }
    if (!compute(rest.first(n))) break;
    rest = rest.subspan(n);
  }
  (void)draft();
}

// Whether to prefill a request of which this model has less than half. On a GPU many rows take
// about as long as one. On a CPU they cost time, which drafts do not win back while many requests
// run, nor in an answer that ends soon. So the answer must first have lasted for as many steps as
// the rows cost.
bool ModelDrafter::worth_reading(Known& known, std::int64_t missing) const {
  if (!on_host()) return true;
  if (rows_are_dear(row_share_)) return false;
  const double steps = row_share_ * options_.cost * static_cast<double>(missing);
  return static_cast<double>(known.waited++) >= steps;
}

// Updates what is known of a request: which of its drafts became tokens, or at first what the
// prefix cache has. If drafts are wanted, the last token's row is computed again even if its key is
// there, because it gives the first draft.
void ModelDrafter::follow(Known& known, std::span<const std::int32_t> tokens, std::int64_t most) {
  const std::int64_t end = std::ssize(tokens) - (most > 0 ? 1 : 0);
  if (known.keys.empty()) {
    pages_.release(known.pages);  // left by a failed pass
    const CachedTokens cached = pages_.match(tokens, std::ssize(tokens) - 1, known.pages);
    known.sure = cached.tokens;
    known.parting = cached.known > cached.tokens ? cached.known : 0;
    known.trimmed = known.sure;
    known.keys.assign(tokens.begin(), tokens.begin() + known.sure);
  }
  const std::int64_t written = std::min(std::ssize(known.keys), end);
  known.sure = std::min(known.sure, written);
  while (known.sure < written && known.keys[nth(known.sure)] == tokens[nth(known.sure)]) {
    ++known.sure;
  }
  known.keys.resize(nth(known.sure));
  pages_.undo(known.sure, known.pages);
}

// Plans the rows that the request lacks, with pages for them and for the drafts after them. A
// longer run is cut to the call's remaining `prefill_rows`. A request that cannot get pages for all
// its tokens releases those that it has, so that another request can draft.
void ModelDrafter::plan_rows(DraftRequest& r, std::int64_t& prefill_rows) {
  const std::int64_t tokens = std::ssize(r.tokens);
  const std::int64_t context = cache_->plan().context_length();
  Known& known = known_[r.id.value];
  if (tokens > context) return give_up(known);
  known.pages.cache_salt = r.cache_salt;
  follow(known, r.tokens, r.most);
  const std::int64_t most = std::min(r.most, context - tokens + 1);
  const std::int64_t chain = std::max<std::int64_t>(0, most - 1);  // rows that drafts need
  const std::int64_t missing = tokens - known.sure;
  const bool burst = missing <= kBurstRows;
  const bool late = r.most > 0 && !burst && 2 * missing > tokens;
  if (late && !worth_reading(known, missing)) return give_up(known);
  std::int64_t rows = burst ? missing : std::min(missing, prefill_rows);
  // A pass ends where the prompt parts from a cached one, to cache the window before that place.
  const bool parts = known.sure < known.parting && known.sure + rows > known.parting;
  if (parts) rows = known.parting - known.sure;
  if (rows == 0) return;

  std::vector<std::int64_t> available;
  for (std::size_t k = 0; k < pages_.rules().size(); ++k) available.push_back(pages_.available(k));
  const ScheduleLimits limits{pages_.rules(), pages_.block_tokens(), rows + chain};
  // admits() counts one token more than `known`.
  const ScheduledRequest all{tokens + chain - 1, known.sure, known.sure, false};
  if (!admits({}, all, limits, available)) return give_up(known);
  const ScheduledRequest wanted{tokens + chain, known.sure, known.sure, false};
  const std::int64_t reach = first_rows(wanted, limits, rows == missing ? rows + chain : rows);
  if (reach == 0) return;
  pages_.extend(known.sure, known.sure + reach, known.pages);
  Job& job = jobs_.emplace_back(Job{&r, &known, std::min(rows, reach), 0});
  if (job.rows == missing) job.most = std::min(most, reach - missing + 1);
  if (!burst) prefill_rows -= job.rows;
}

// Runs the jobs' rows in one pass, which also samples the first drafts.
Result<void> ModelDrafter::compute(std::span<Job> jobs) {
  items_.clear();
  chains_.reserve(jobs_.size());  // items point into it
  const std::size_t first_chain = chains_.size();
  const bool verify =
      std::ranges::any_of(jobs, [](const Job& j) { return j.rows > 1 && j.rows <= kBurstRows; });
  std::int64_t rows = 0;
  for (const Job& job : jobs) {
    BatchItem& item = items_.emplace_back();
    item.phase = job.rows > kBurstRows ? Phase::extend : verify ? Phase::verify : Phase::decode;
    item.pages = job.known->pages.lists;
    item.cached = static_cast<std::int32_t>(job.known->sure);
    item.tokens = job.request->tokens.subspan(nth(job.known->sure), nth(job.rows));
    rows += job.rows;
    if (job.most < 1) continue;
    const Chain& chain = chains_.emplace_back(job, items_.size() - 1);
    item.logits = 1;
    item.samples = std::span(&chain.sampling, 1);
  }
  auto ok = runner_.launch(items_, false);
  if (ok) ok = runner_.collect();
  if (!ok) {
    chains_.erase(chains_.begin() + static_cast<std::ptrdiff_t>(first_chain), chains_.end());
    return ok;
  }
  rows_ += rows;
  for (const Job& job : jobs) {
    Known& k = *job.known;
    const auto tokens = job.request->tokens.subspan(nth(k.sure), nth(job.rows));
    k.keys.insert(k.keys.end(), tokens.begin(), tokens.end());
    k.sure += job.rows;
    // Keeps the last token's pages: its row may be computed again.
    pages_.trim(k.trimmed, std::max(k.trimmed, k.sure - 1), k.pages);
    k.trimmed = std::max(k.trimmed, k.sure - 1);
    if (k.sure == k.parting) {
      pages_.publish(std::span(k.keys).first(nth(k.sure)), k.pages);
      k.parting = 0;
    } else if (job.rows > kBurstRows) {
      pages_.publish(std::span(k.keys).first(nth(k.sure - 1)), k.pages);
    }
  }
  const auto fresh = chains_.begin() + static_cast<std::ptrdiff_t>(first_chain);
  const auto end = std::remove_if(fresh, chains_.end(), [&](Chain& c) { return !take(c); });
  chains_.erase(end, chains_.end());
  return {};
}

// Runs a row for the last draft of each chain until every chain is long enough.
Result<void> ModelDrafter::draft() {
  while (!chains_.empty()) {
    items_.clear();
    for (Chain& c : chains_) {
      c.item = items_.size();
      BatchItem& item = items_.emplace_back();
      item.phase = Phase::decode;
      item.pages = c.of->known->pages.lists;
      item.cached = static_cast<std::int32_t>(std::ssize(c.of->known->keys));
      item.tokens = std::span(c.drafts).last(1);
      item.logits = 1;
      item.samples = std::span(&c.sampling, 1);
    }
    if (auto ok = runner_.launch(items_, false); !ok) return ok;
    if (auto ok = runner_.collect(); !ok) return ok;
    rows_ += std::ssize(chains_);
    for (Chain& c : chains_) c.of->known->keys.push_back(c.drafts.back());
    std::erase_if(chains_, [&](Chain& c) { return !take(c); });
  }
  return {};
}

// Adds the sampled draft to its chain. Returns false if the chain ends: it is long enough, or the
// logits were not finite.
bool ModelDrafter::take(Chain& c) {
  const std::optional<SampledToken>& drawn = runner_.sampled(c.item, 0);
  if (!drawn) return false;
  c.add(drawn->token);
  c.of->request->drafts = c.drafts;
  return std::ssize(c.drafts) < c.of->most;
}

void ModelDrafter::give_up(Known& known) {
  if (known.sure > 0) pages_.publish(std::span(known.keys).first(nth(known.sure - 1)), known.pages);
  pages_.release(known.pages);
  known.keys.clear();
  known.sure = known.trimmed = known.parting = 0;
}

void ModelDrafter::forget(RequestId id) {
  const auto found = known_.find(id.value);
  if (found == known_.end()) return;
  give_up(found->second);
  known_.erase(found);
}

}  // namespace lathe
