// Engine: requests in, tokens out. A step is one forward pass over rows of many requests. Between
// launch() and collect() it is in flight, and all other calls are allowed, as between steps. The
// next step may be in flight as well.
//
// Tokens depend only on the sequence of calls: no decision depends on a clock, a thread or a
// global. One thread calls it. docs/engine.md states the invariants (E1, E2, ...).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/draft/drafting.h"
#include "engine/request/request.h"
#include "engine/runner/ranked_runner.h"
#include "engine/schedule/page_allocator.h"
#include "engine/schedule/schedule.h"
#include "kernels/context.h"
#include "model/cache.h"
#include "model/model.h"
#include "ops/sampling.h"

namespace lathe {

struct EngineOptions {
  std::int64_t chunked_prefill_size = 0;  // most prefill rows of a step; 0: the plan's most rows
  std::int64_t max_running_requests = 0;  // 0: the plan's
  bool prefix_cache = true;
  bool priorities = false;  // a client's requests are served by priority; else it must be 0
  // With priorities: steps after which a request counts as one level earlier, so that none starves.
  std::int64_t priority_aging = 256;
  // On a device that can: a decode step starts before the results of the step before are handled.
  bool overlap = true;
  bool debug_nan = false;  // the model reports the layer after which NaN or Inf first appeared
  std::uint64_t seed = 0;  // for requests without one
  // Guesses up to draft_tokens tokens per request and step; must outlive the engine. Null: no
  // drafts.
  Drafter* drafter = nullptr;
  std::int64_t draft_tokens = 4;
  // The other ranks of the model; must outlive the engine. Null: the model is on one.
  const OtherRanks* ranks = nullptr;
  // Called with the model's logits [vocab] before a token is sampled from them; may be empty.
  std::function<void(RequestId, std::span<const float>)> on_logits = nullptr;
  // Called at the start of step(), on its thread; an error fails the step. May be empty.
  std::function<Result<void>()> before_step = nullptr;
};

/// Totals over all steps, and the current state.
struct EngineStats {
  std::int64_t steps = 0;
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;
  DraftStats drafts;
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t finished = 0;
  std::int64_t waiting = 0;
  std::int64_t running = 0;
  std::int64_t held_pages = 0;  // by running requests, in all layer groups
  std::int64_t total_pages = 0;
  std::int64_t prefix_cache_tokens = 0;  // held by the prefix cache, with or without requests
  double waited_s = 0;                   // waiting for the device
  KeyReads key_reads;                    // of decode and verify steps
};

class Engine {
 public:
  /// Uses the cache's plan and pools, and owns all pages that are free at the call. Model, cache
  /// and what `ops` points to must outlive the engine. Errors: options beyond the plan, a cache
  /// without free pages, a drafter without a plan for its drafts (check_drafts()).
  static Result<Engine> create(const Model& model, KvCache& cache, const EngineOptions& options,
                               const OpsContext& ops);

  /// Queues a request. Errors, with nothing changed: an empty prompt, a token outside the
  /// vocabulary, sampling parameters, a prompt and answer that can never fit (E6).
  Result<RequestId> submit(Request request);
  /// Ends a request; the next collect() reports it. Its pages are released at once, or if a step in
  /// flight has rows of it, when that step is collected; the tokens of those rows are dropped. A
  /// caller that found a stop string passes FinishReason::stop. Returns false for an unknown or
  /// ended request.
  bool cancel(RequestId id, FinishReason reason = FinishReason::cancelled);
  /// A request's state; finished for an unknown id.
  RequestState state(RequestId id) const;

  /// Starts one forward pass and the sampling after it, if there is a request. Precondition: no
  /// step is in flight. Errors: the model's; then every request is unchanged, nothing is in flight,
  /// and launch() may be called again (E9).
  Result<void> launch();
  /// Waits for the oldest step in flight, if any, and reports it. Errors: the device's; then the
  /// state is as after a failed launch(), and the step after it is dropped, too.
  Result<StepReport> collect();
  /// Starts the next step before the results of the one in flight are known, if that is possible
  /// (docs/engine.md); otherwise does nothing. Then the first collect() reports the step that was
  /// in flight, and the second one this step.
  void launch_ahead();
  /// One step: launches one if none is in flight, starts the next one if it can (launch_ahead()),
  /// and collects the older one.
  Result<StepReport> step();
  bool in_flight() const { return runner_.in_flight(); }
  bool in_flight_ahead() const { return runner_.in_flight_ahead(); }
  /// Nothing to run, nothing in flight and nothing to report.
  bool idle() const {
    return running_.empty() && waiting_ == 0 && unreported_.empty() && !in_flight();
  }

  EngineStats stats() const;
  /// Most tokens of one request, prompt and answer together.
  std::int64_t capacity() const;
  /// Evicts every page that no running request holds.
  void clear_prefix_cache() { pages_.clear_cache(); }

 private:
  struct Client;
  // A request from submit() to its end: its tokens, and while it runs their pages.
  struct Sequence {
    RequestId id;
    std::int64_t turn = 0;     // of its client's requests, the one with the lowest turn is first
    Client* client = nullptr;  // while it waits or runs
    std::int64_t place = 0;    // while it runs: how many running requests of its client are before
    std::int64_t most_rows = kNoBound;  // of prefill, in this step
    SamplingParams sampling;
    std::uint64_t seed = 0;
    std::vector<std::int32_t> stops;   // ascending
    std::vector<std::int32_t> tokens;  // the prompt, the answer, then drafts in flight
    std::int64_t prompt = 0;           // tokens of the prompt
    std::int64_t drafts = 0;           // drafts at the end of `tokens`
    RequestDrafting drafting;
    std::vector<std::int32_t> forced;
    std::shared_ptr<TokenConstraint> constraint;  // its state is after the answer; null: none
    // [1 + drafts, words] With a constraint: the tokens allowed after the answer and its first 0,
    // 1, ... drafts.
    std::vector<std::uint32_t> allowed;
    RequestId sibling_of = {};
    // The next row that must score a prompt token; from prompt - 1 on: none.
    std::int64_t next_scored = 0;
    std::vector<SampledToken> prompt_logprobs;
    std::int64_t limit = 0;     // tokens of the answer
    std::int64_t computed = 0;  // tokens with keys in the cache
    // The block boundary where its tokens part from a cached prompt, if no request can resume there
    // yet: what is missing there goes to the prefix cache when it is computed. 0: none.
    std::int64_t parting = 0;
    std::int64_t trimmed = 0;  // tokens for which pages before windows have been released
    RequestPages pages;        // of `computed` tokens between steps
    std::int64_t cached = 0;   // tokens found in the prefix cache at the first admission
    std::int64_t preemptions = 0;
    bool admitted_before = false;
    std::optional<FinishReason> ended;  // to be removed from its list
    std::int32_t in_flight = 0;         // steps in flight with rows of it

    std::int64_t known() const { return std::ssize(tokens) - drafts; }
    std::span<const std::int32_t> first(std::int64_t n) const {
      return std::span(tokens).first(static_cast<std::size_t>(n));
    }
    std::span<std::uint32_t> allowed_after(std::int64_t so_many, std::int64_t words) {
      return std::span(allowed).subspan(static_cast<std::size_t>(so_many * words),
                                        static_cast<std::size_t>(words));
    }
    void drop_drafts() {
      tokens.resize(static_cast<std::size_t>(known()));
      drafts = 0;
    }
    std::int64_t answered() const { return known() - prompt; }
    bool scores() const { return next_scored < prompt - 1; }
    ScheduledRequest scheduled() const {
      return {known(), computed, computed, answered() > 0, most_rows, ends_next(*this)};
    }
    // Prefetch the object, and then the memory that a decode row reads through its pointers.
    void prefetch() const;
    void prefetch_lists() const;
  };
  using SequencePtr = std::unique_ptr<Sequence>;
  // The requests of one client.
  struct Client {
    std::uint64_t id = 0;
    std::deque<SequencePtr> waiting;  // in order
    std::int64_t running = 0;
    std::int64_t served = 0;  // turn of its last admission, or before which it came
    std::int64_t rows = 0;    // of prefill that its waiting requests may have in this step
    // While make_room() counts: requests that would run, and the first ones of `waiting` among
    // them.
    std::int64_t planned = 0, taken = 0;
  };
  // A step, from its schedule to its results.
  struct Flight {
    std::vector<Sequence*> batch;  // [items]
    std::vector<BatchItem> items;
    std::vector<SampleArgs> samples;   // [rows with logits], in the order of items
    std::vector<PageId> states;        // [items, groups with a state]
    std::vector<std::int32_t> tokens;  // [items] input tokens of a step ahead
    StepReport report;                 // without its results

    void clear() {
      batch.clear();
      items.clear();
      samples.clear();
      states.clear();
      tokens.clear();
      report = {};
    }
  };

  Engine(const Model& model, KvCache& cache, const EngineOptions& options, const OpsContext& ops,
         PageAllocator pages, Drafting drafting, RankedRunner runner);
  // engine.cc
  std::int64_t capacity(std::size_t kind) const;
  Result<void> check_fits(const Request& request) const;
  void end(Sequence& r, FinishReason reason, std::optional<Error> error,
           std::vector<Finished>& out);
  void report_end(Sequence& r, FinishReason reason, std::optional<Error> error,
                  std::vector<Finished>& out);

  // engine_schedule.cc
  void schedule(StepReport& report);
  ScheduleLimits limits() const;
  void describe_running();
  void count_available();
  void preempt(Sequence& victim, StepReport& report);
  std::int64_t cap_at_parting(const Sequence& r, std::int64_t rows) const;
  std::int64_t cap_scored_rows(const Sequence& r, std::int64_t rows);
  void admit(std::int64_t prefill_rows, StepReport& report);
  bool waits_for_sibling(const Sequence& r) const;

  // engine_clients.cc
  static bool is_before(const Sequence& a, const Sequence& b);
  Client& client_of(std::uint64_t id);
  void add_waiting(SequencePtr r);
  SequencePtr take_waiting(Client& client);
  void add_running(SequencePtr r);
  void leave_client(Sequence& r);
  void drop_if_idle(Client& client);
  Client* next_client(bool with_rows);
  bool waits_unfairly() const;
  void make_room(StepReport& report);
  bool find_room(const Sequence& next, std::vector<Sequence*>& running,
                 std::vector<Sequence*>& victims);
  void order_running();
  void share_prefill();

  // engine_pages.cc
  void publish(Sequence& r);
  void publish_prompts();
  void publish_partings();
  void keep_and_release(Sequence& r, FinishReason reason);
  void give_up_pages(Sequence& r);
  void trim(Sequence& r);

  // engine_drafts.cc
  void add_drafts();
  void take_proposal(Sequence& r, const DraftRequest& proposal, std::int64_t& rows);
  DraftView draft_view(Sequence& r) const;
  void add_rows(Sequence& r, std::size_t item, std::int64_t before, const StepReport& report);

  // engine_constraint.cc
  std::int64_t allowed_words() const { return (model_->config().vocab + 31) / 32; }
  Result<bool> find_allowed(Sequence& r, TokenConstraint& constraint, std::int64_t drafts);
  std::int64_t allowed_drafts(Sequence& r, std::span<const std::int32_t> drafts);
  void follow_constraint(Sequence& r, StepReport& report);

  // engine_batch.cc
  void build_batch(StepReport& report);
  std::size_t state_kinds() const;
  void give_pages(Sequence& r, std::int64_t cached, Flight& step, BatchItem& item);
  static void add_scored_rows(const Sequence& r, std::int64_t rows, BatchItem& item);
  SampleArgs sampling_of(Sequence& r, std::int64_t drafts, std::int32_t unknown = 0) const;

  // engine_step.cc
  static void land(const Flight& flight);
  void undo_step();
  void prefetch_requests() const;

  // engine_ahead.cc
  bool may_follow();
  // Whether its next token is the last that it may have.
  static bool ends_next(const Sequence& r) { return r.answered() + 1 >= r.limit; }

  // engine_results.cc
  void take_results(StepReport& report);
  void take_scored(Sequence& r, std::size_t item);
  void take_tokens(Sequence& r, std::size_t item, StepReport& report);
  bool take_token(Sequence& r, std::size_t item, std::int64_t k, StepReport& report);
  const NonFiniteItem* non_finite_row(std::size_t item, std::int64_t first, std::int64_t end) const;
  Error not_finite(const Sequence& r, std::optional<std::int32_t> layer) const;

  const Model* model_;
  KvCache* cache_;
  EngineOptions options_;
  OpsContext ops_;
  PageAllocator pages_;
  std::vector<std::int32_t> eos_;
  std::uint64_t last_id_ = 0;
  std::vector<SequencePtr> running_;         // in order (E2), once schedule() has begun
  std::map<std::uint64_t, Client> clients_;  // that have a request; node addresses are stable
  std::int64_t waiting_ = 0;                 // requests, of all clients
  bool ordered_ = true;                      // running_ is in order
  bool shares_rows_ = false;                 // clients share the prefill rows of this step
  std::int64_t turn_ = 0;                    // two for each admission
  RequestId no_room_;                        // the waiting request that found no pages last
  std::vector<Finished> unreported_;
  EngineStats sums_;
  Drafting drafting_;

  // The current step.
  std::vector<ScheduledRequest> scheduled_;  // [running]
  std::vector<std::int64_t> available_;      // [kinds of page]
  std::vector<std::int64_t> rows_;           // [running]
  std::int64_t scored_rows_left_ = 0;        // rows that may still score prompts in this step
  std::vector<DraftView> draftable_;         // requests that may have drafts

  Flight step_;   // in flight, or the last one
  Flight ahead_;  // the step after it
  // Requests that ended with rows in flight. They hold their pages until those are collected.
  std::vector<SequencePtr> leaving_;

  RankedRunner
      runner_;  // last member: its destructor waits for steps in flight, which read sequences
};

}  // namespace lathe
