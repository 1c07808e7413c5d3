#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "engine/schedule/page_kinds.h"
#include "kernels/philox.h"

namespace lathe {
namespace {

Error outside(std::string field, std::string wanted, std::string offered, std::string hint = "") {
  return {ErrorCode::out_of_range, std::move(field), std::move(wanted), std::move(offered),
          std::move(hint)};
}

}  // namespace

Result<Engine> Engine::create(const Model& model, KvCache& cache, const EngineOptions& options,
                              const OpsContext& ops) {
  const ModelPlan& plan = cache.plan();
  EngineOptions o = options;
  if (o.chunked_prefill_size == 0) o.chunked_prefill_size = plan.max_rows();
  if (o.max_running_requests == 0) o.max_running_requests = plan.max_requests();
  for (const auto& [flag, value, most] :
       {std::tuple{"--chunked-prefill-size", o.chunked_prefill_size, plan.max_rows()},
        std::tuple{"--max-running-requests", o.max_running_requests, plan.max_requests()}}) {
    if (value < 1 || value > most) {
      return outside(flag, fmt::format("1 to {}, what the plan was made for", most),
                     fmt::format("{}", value));
    }
  }
  if (o.drafter != nullptr) {
    if (auto ok = check_drafts(plan, o.draft_tokens); !ok) return ok.error();
  }
  const std::vector<PageKind> kinds = page_kinds(cache, o.chunked_prefill_size);
  for (const PageKind& kind : kinds) {
    if (kind.ledger->free() > 0) continue;
    return Error{ErrorCode::exhausted, "--max-total-tokens", "at least one free page of the cache",
                 fmt::format("{} pages, all in use", kind.ledger->total()), ""};
  }
  auto pages = PageAllocator::create(kinds, plan.block_tokens, o.prefix_cache, true);
  if (!pages) return pages.error();
  Drafting drafting({o.drafter, o.draft_tokens, o.overlap}, plan, *pages, ops);
  const RunnerPass pass = drafting.reads() ? RunnerPass::forward_hidden : RunnerPass::forward;
  std::vector<HiddenRows*> hidden;
  if (drafting.reads()) {
    hidden.push_back(drafting.hidden());
    for (HiddenRows* rows : o.drafter->other_hidden()) hidden.push_back(rows);
  }
  auto runner = RankedRunner::create({&model, &cache, ops}, o.ranks, pass, hidden);
  if (!runner) return runner.error();
  return Engine(model, cache, o, ops, std::move(*pages), std::move(drafting), std::move(*runner));
}

Engine::Engine(const Model& model, KvCache& cache, const EngineOptions& options,
               const OpsContext& ops, PageAllocator pages, Drafting drafting, RankedRunner runner)
    : model_(&model),
      cache_(&cache),
      options_(options),
      ops_(ops),
      pages_(std::move(pages)),
      drafting_(std::move(drafting)),
      runner_(std::move(runner)) {
  // A configuration may name end tokens beyond a reduced vocabulary; no answer can have them.
  for (std::int32_t token : model.config().eos) {
    if (token >= 0 && token < model.config().vocab) eos_.push_back(token);
  }
}

// Tokens of one request that fit all pages of a kind. A bounded kind with one page more than a
// request keeps holds any number of tokens, a page of rows at a time.
std::int64_t Engine::capacity(std::size_t kind) const {
  const PageRule& rule = pages_.rules()[kind];
  const std::int64_t total = pages_.total(kind);
  if (rule.resume_tokens > 0) {
    const std::int64_t kept =
        pages_for(rule.resume_tokens + pages_.block_tokens() - 1, rule.page_size) + 1;
    if (total > kept) return kNoBound;
  }
  return total * rule.page_size;
}

std::int64_t Engine::capacity() const {
  std::int64_t tokens = cache_->plan().context_length();
  for (std::size_t k = 0; k < pages_.rules().size(); ++k) tokens = std::min(tokens, capacity(k));
  return tokens;
}

// A request that passes fits an empty pool, so the oldest one always makes progress (E3).
Result<void> Engine::check_fits(const Request& request) const {
  const std::int64_t prompt = std::ssize(request.prompt);
  const std::int64_t answer = request.only_prompt ? 0 : request.sampling.max_tokens.value_or(1);
  const std::int64_t needed = prompt + answer;
  if (needed <= capacity()) return {};
  const std::string offered =
      fmt::format("{} of the prompt + {} of the answer = {}", prompt, answer, needed);
  const std::int64_t context = cache_->plan().context_length();
  if (needed > context) {
    std::string hint = "a shorter prompt or a smaller max_new_tokens";
    if (needed <= model_->config().max_context) {
      hint = fmt::format("--context-length {}, {}", needed, hint);
    }
    return outside("--context-length", fmt::format("at most {} tokens", context), offered,
                   std::move(hint));
  }
  std::size_t least = 0;
  for (std::size_t k = 1; k < pages_.rules().size(); ++k) {
    if (capacity(k) < capacity(least)) least = k;
  }
  return Error{ErrorCode::exhausted, "--max-total-tokens",
               fmt::format("at most {} tokens, which is what the cache's {} pages of {} hold",
                           capacity(), pages_.total(least), pages_.rules()[least].page_size),
               offered,
               fmt::format("--max-total-tokens {}, a smaller --kv-layout or --kv-cache-dtype, or a "
                           "smaller max_new_tokens",
                           needed)};
}

Result<RequestId> Engine::submit(Request request) {
  const std::int32_t vocab = model_->config().vocab;
  if (request.prompt.empty()) return outside("prompt", "at least one token", "none");
  for (const auto& [field, tokens] :
       {std::pair{"prompt", &request.prompt}, std::pair{"forced", &request.forced}}) {
    for (std::size_t i = 0; i < tokens->size(); ++i) {
      const std::int32_t token = (*tokens)[i];
      if (token >= 0 && token < vocab) continue;
      return outside(fmt::format("{}[{}]", field, i),
                     fmt::format("a token from 0 to {}", vocab - 1), fmt::format("{}", token));
    }
  }
  if (!request.forced.empty()) {
    request.sampling.max_tokens = static_cast<std::int32_t>(request.forced.size());
  }
  if (request.only_prompt) request.sampling.max_tokens = 1;
  if (auto ok = check_sampling_params(request.sampling, vocab, eos_); !ok) return ok.error();
  if (auto ok = check_fits(request); !ok) return ok.error();
  const std::int64_t scored_from = request.prompt_logprobs_from.value_or(0);
  if (request.prompt_logprobs_from &&
      (scored_from < 0 || scored_from > std::ssize(request.prompt))) {
    return outside("logprob_start_len",
                   fmt::format("0 to {}, the prompt's tokens", request.prompt.size()),
                   fmt::format("{}", scored_from));
  }
  if (request.prompt_logprobs_from && !request.sampling.logprobs) {
    return outside("top_logprobs_num", "a number with logprob_start_len", "none");
  }
  if (request.only_prompt && !request.forced.empty()) {
    return outside("forced", "no tokens with only_prompt", "some");
  }
  if (request.constraint && !request.forced.empty()) {
    return outside("constraint", "none for a forced answer", "one");
  }
  if (request.priority != 0 && !options_.priorities) {
    return outside("priority", "0: requests are served in order of arrival",
                   fmt::format("{}", request.priority), "--scheduling-policy priority");
  }

  auto r = std::make_unique<Sequence>();
  r->sampling = std::move(request.sampling);
  if (request.forced.empty()) r->stops = stop_tokens(r->sampling, eos_);
  r->forced = std::move(request.forced);
  r->tokens = std::move(request.prompt);
  r->prompt = r->known();
  r->sibling_of = request.sibling_of;
  r->pages.cache_salt = request.cache_salt;
  r->next_scored =
      request.prompt_logprobs_from ? std::max<std::int64_t>(0, scored_from - 1) : r->prompt;
  r->drafting = drafting_.start();
  r->limit = r->sampling.max_tokens.value_or(static_cast<std::int32_t>(capacity() - r->prompt));
  r->constraint = std::move(request.constraint);
  if (r->constraint) {
    const auto goes_on = find_allowed(*r, *r->constraint, 0);
    if (!goes_on) return goes_on.error();
    if (!*goes_on) return outside("constraint", "a token that the answer may begin with", "none");
  }
  r->id = RequestId{++last_id_};
  r->seed = r->sampling.seed.value_or(random_bits(options_.seed, r->id.value));
  if (options_.priorities) r->turn = sums_.steps + request.priority * options_.priority_aging;
  r->client = &client_of(request.client);
  const RequestId id = r->id;
  add_waiting(std::move(r));
  return id;
}

bool Engine::cancel(RequestId id, FinishReason reason) {
  const auto is = [id](const SequencePtr& r) { return r->id == id; };
  if (auto it = std::find_if(running_.begin(), running_.end(), is); it != running_.end()) {
    end(**it, reason, std::nullopt, unreported_);
    leave_client(**it);
    if ((*it)->in_flight > 0) leaving_.push_back(std::move(*it));
    running_.erase(it);
    return true;
  }
  for (auto& [key, client] : clients_) {
    const auto it = std::find_if(client.waiting.begin(), client.waiting.end(), is);
    if (it == client.waiting.end()) continue;
    end(**it, reason, std::nullopt, unreported_);
    client.waiting.erase(it);
    --waiting_;
    drop_if_idle(client);
    return true;
  }
  return false;
}

RequestState Engine::state(RequestId id) const {
  const auto is = [id](const SequencePtr& r) { return r->id == id; };
  if (std::any_of(running_.begin(), running_.end(), is)) return RequestState::running;
  for (const auto& [key, client] : clients_) {
    const auto it = std::find_if(client.waiting.begin(), client.waiting.end(), is);
    if (it == client.waiting.end()) continue;
    return (*it)->admitted_before ? RequestState::preempted : RequestState::waiting;
  }
  return RequestState::finished;
}

void Engine::report_end(Sequence& r, FinishReason reason, std::optional<Error> error,
                        std::vector<Finished>& out) {
  r.ended = reason;
  drafting_.end(r.id, r.drafting);
  out.push_back({r.id, reason, std::move(error), r.prompt, r.answered(), r.cached, r.preemptions});
  ++sums_.finished;
}

// The caller removes the request from its list, and keeps it while it has rows in flight.
void Engine::end(Sequence& r, FinishReason reason, std::optional<Error> error,
                 std::vector<Finished>& out) {
  if (r.in_flight == 0) keep_and_release(r, reason);
  report_end(r, reason, std::move(error), out);
}

EngineStats Engine::stats() const {
  EngineStats out = sums_;
  out.drafts = drafting_.stats();
  out.waiting = waiting_;
  out.running = std::ssize(running_);
  out.total_pages = pages_.total();
  out.held_pages = pages_.held();
  out.waited_s = runner_.waited();
  out.key_reads = runner_.key_reads();
  out.prefix_cache_tokens = pages_.cached_tokens();
  return out;
}

}  // namespace lathe
