// Random runs of an engine: with one or two layer groups, one of them with a window; with and
// without a state; with no drafter, one that reads rows, one that does not, or a draft model; of
// one client or several, with and without priorities. Whatever is submitted, cancelled, preempted
// and evicted, each request gets the tokens that it gets alone, nothing leaks, and every request
// makes progress.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "base/test_scale.h"
#include "engine/draft/test/draft_test_util.h"
#include "engine/draft/test/model_drafter_test_util.h"
#include "engine/test/fake_model_test_util.h"
#include "kernels/philox.h"

namespace lathe {
namespace {

class Life {
 public:
  explicit Life(std::uint32_t seed) : rng_(seed), seed_(seed), setup_(draw_setup()) {
    options_.chunked_prefill_size = 1 + pick(some(2) ? 4 : 40);
    options_.max_running_requests = 1 + pick(8);
    options_.prefix_cache = !some(3);
    options_.seed = rng_();
    // By the life's seed alone, so that other choices are the same with one client.
    const std::uint64_t bits = random_bits(seed_, 6);
    if (bits % 3 == 0) clients_ = 2 + bits / 3 % 3;
    options_.priorities = bits / 9 % 4 == 0;
    options_.priority_aging = 1 + static_cast<std::int64_t>(bits / 36 % 20);
    salted_ = bits / 720 % 8 == 0;
    if (!some(overlaps_ ? 2 : 3)) {
      const auto next = [this](const DraftRequest& r, std::int64_t known) {
        return draft(r, known);
      };
      if (some(3)) {
        drafter_ = std::make_unique<ScriptedDrafter>(next);
      } else if (some(2) || ranked_) {  // ReadingDrafter has the rows of one rank
        auto model = std::make_unique<Draft>(draw_draft_model(), draw_drafting());
        model->change = [this](DraftRequest& r) { spoil(r); };
        model_ = model.get();
        drafter_ = std::move(model);
      } else {
        auto reading = std::make_unique<ReadingDrafter>(next, *setup_.backend, setup_.plan);
        reading->fails = [this] { return some(40); };
        reading_ = reading.get();
        drafter_ = std::move(reading);
      }
      options_.drafter = drafter_.get();
      options_.draft_tokens = 1 + pick(some(2) ? 3 : kMaxDraftTokens);
    }
    engine_.emplace(setup_.engine(options_));
    for (int i = 0; i < 3; ++i) stems_.push_back(words(20));
  }

  void run(int actions) {
    for (int i = 0; i < actions && !testing::Test::HasFatalFailure(); ++i) {
      switch (pick(16)) {
        case 0:
        case 1:
        case 2:
          submit();
          break;
        case 3:
          if (some(2)) cancel();
          break;
        case 4:
          if (some(4)) engine_->clear_prefix_cache();
          break;
        case 5:
          (some(2) ? setup_.model->fail_next : setup_.model->fail_late) =
              some(4) && !engine_->idle() && !ranked_;  // of ranks, the failed step is the last
          if (setup_.late != nullptr) {
            setup_.late->fail_next = some(6) && !engine_->idle() && !ranked_;
          }
          break;
        default:
          step();
      }
    }
    calls_in_flight_ = false;
    // Far more steps than all requests need, even if they recompute their rows at each preemption.
    for (int i = 0; i < 20000 && !engine_->idle() && !testing::Test::HasFatalFailure(); ++i) {
      step();
    }
    ASSERT_TRUE(engine_->idle());
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(engine_->stats().held_pages, 0);
    engine_->clear_prefix_cache();
    for (std::size_t g = 0; g < setup_.cache->groups(); ++g) {
      EXPECT_EQ(setup_.cache->ledger(g).free(), setup_.cache->ledger(g).total());
      const StatePool* state = setup_.cache->state(g);
      if (state != nullptr) {
        EXPECT_EQ(state->ledger().free(), state->ledger().total());
      }
    }
    EXPECT_EQ(engine_->stats().prefix_cache_tokens, 0);
    if (model_ != nullptr) expect_nothing_held(*model_);
  }

  bool several_clients() const { return clients_ > 1; }
  std::int64_t preemptions() const { return engine_->stats().preemptions; }
  std::int64_t cached() const { return engine_->stats().cached_tokens; }
  // Whether chunks end inside the stems of prompts, and windows or states are lost there.
  bool loses_windows() const { return loses_windows_ && options_.chunked_prefill_size <= 5; }
  DraftStats drafts() const { return engine_->stats().drafts; }
  std::int64_t reads() const { return reading_ != nullptr ? reading_->reads : 0; }
  bool draft_model() const { return model_ != nullptr; }
  int finished = 0;
  int refused = 0;
  int failures = 0;
  int not_finite = 0;
  int ahead() const { return ahead_; }

 private:
  struct Live {
    Request request;
    Answer expected;
    std::vector<std::int32_t> tokens;
    std::uint64_t client = 0;
    bool token_last_step = false;
  };

  std::int64_t pick(std::int64_t n) {
    return static_cast<std::int64_t>(rng_() % static_cast<unsigned>(n));
  }
  bool some(int one_in) { return pick(one_in) == 0; }

  FakeOptions draw_setup() {
    FakeOptions o;
    o.layout = some(2) ? LayoutKind::gqa_bf16 : LayoutKind::mla_bf16;
    o.page_size = static_cast<std::int32_t>(1 + pick(5));
    o.pages = 4 + pick(some(2) ? 16 : 40);
    o.context_length = 16 + pick(80);
    o.max_rows = 64;
    o.max_requests = 8;
    o.compact_extend = some(3);
    o.short_context = some(3) ? 1 + pick(20) : 0;
    // Adds a second group with a window, a state, both or neither.
    if (some(2)) {
      o.window = static_cast<std::int32_t>(1 + pick(16));
      o.window_page_size = static_cast<std::int32_t>(1 + pick(4));
      o.window_pages = 4 + pick(some(2) ? 16 : 40);
    }
    o.state = some(2);
    loses_windows_ = o.state || o.window > 0;
    o.late = some(2);
    if (some(3)) {  // steps start before the results of the step before
      o.late = o.overlaps = overlaps_ = true;
    }
    // By the life's seed alone, so that other choices are the same with one rank.
    const std::uint64_t bits = random_bits(seed_, 5);
    if (bits % 3 == 0) {
      o.ranks = bits % 2 == 0 ? 2 : 4;
      o.most_delay = bits / 3 % 2 == 0 ? 20 : 0;
    }
    ranked_ = o.ranks > 1;
    return o;
  }

  // The same model as the target, so that it drafts right, with pools of another shape.
  FakeOptions draw_draft_model() {
    FakeOptions o;
    o.page_size = static_cast<std::int32_t>(1 + pick(5));
    o.pages = 2 + pick(some(2) ? 16 : 200);
    o.context_length = 8 + pick(90);
    o.max_rows = 64;
    o.max_requests = 8;
    if (some(2)) {
      o.window = static_cast<std::int32_t>(1 + pick(16));
      o.window_page_size = static_cast<std::int32_t>(1 + pick(4));
      o.window_pages = 2 + pick(some(2) ? 16 : 200);
    }
    o.late = some(2);
    return o;
  }

  ModelDrafterOptions draw_drafting() {
    return {.prefill_rows = 1 + pick(some(2) ? 6 : 60), .prefix_cache = !some(3)};
  }

  // Makes some requests' drafts wrong from some position on, and some passes fail.
  void spoil(DraftRequest& r) {
    if (some(40))
      (some(2) ? model_->setup.model->fail_next : model_->setup.model->fail_late) = true;
    if (some(40)) model_->inner.clear_prefix_cache();
    for (std::size_t i = 0; i < r.drafts.size(); ++i) {
      const std::uint64_t bits = random_bits(r.id.value, r.tokens.size() + i);
      if (bits % 8 < 2 * (r.id.value % 4)) r.drafts[i] = (r.drafts[i] + 1) % FakeModel::kVocab;
    }
  }

  // A draft that is always, never or sometimes right, depending on the request. A wrong one may be
  // an invalid token or one that makes NaN.
  std::int32_t draft(const DraftRequest& r, std::int64_t known) const {
    const Live& live = live_.at(r.id);
    const auto at = static_cast<std::size_t>(known - std::ssize(live.request.prompt));
    const std::uint64_t bits = random_bits(r.id.value, static_cast<std::uint64_t>(known));
    const bool right =
        r.id.value % 4 == 0 || (r.id.value % 4 != 1 && bits % (r.id.value % 4 + 1) != 0);
    if (right && at < live.expected.tokens.size()) return live.expected.tokens[at];
    return static_cast<std::int32_t>((bits >> 8) % (FakeModel::kVocab + 2)) - 1;
  }

  std::vector<std::int32_t> words(std::int64_t n) {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < n; ++i) {
      out.push_back(static_cast<std::int32_t>(pick(FakeModel::kNanToken)));
    }
    return out;
  }

  Request draw_request() {
    Request r;
    r.prompt = stems_[static_cast<std::size_t>(pick(3))];
    r.prompt.resize(static_cast<std::size_t>(pick(21)));
    const auto tail = words(1 + pick(6));
    r.prompt.insert(r.prompt.end(), tail.begin(), tail.end());
    if (some(30))
      r.prompt[static_cast<std::size_t>(pick(std::ssize(r.prompt)))] = FakeModel::kNanToken;
    SamplingParams& p = r.sampling;
    p.temperature = some(2) ? 0 : 0.7f;
    if (some(2)) p.seed = rng_();
    if (!some(8)) p.max_tokens = static_cast<std::int32_t>(1 + pick(20));
    p.logit_bias = {{FakeModel::kNanToken, -1000}};
    if (some(4)) p.stop_token_ids = {1, 2, 3};
    if (some(4)) p.ignore_eos = true;
    if (some(4)) p.min_tokens = 1;
    const int one_in = overlaps_ ? 30 : 4;
    if (some(one_in)) p.repetition_penalty = 1.2f;
    if (some(one_in)) p.frequency_penalty = 0.5f;
    if (some(4)) p.top_k = 5;
    const std::uint64_t bits = random_bits(seed_ ^ 0xc11e, ++drawn_);
    r.client = bits % clients_;
    if (salted_) r.cache_salt = r.client;
    if (options_.priorities) r.priority = static_cast<std::int32_t>(bits / 8 % 7) - 3;
    return r;
  }

  void submit() {
    Request request = draw_request();
    const EngineStats before = engine_->stats();
    const std::int64_t needed =
        std::ssize(request.prompt) + request.sampling.max_tokens.value_or(1);
    const auto id = engine_->submit(request);
    ASSERT_EQ(id.ok(), needed <= engine_->capacity());
    if (!id) {
      ++refused;
      EXPECT_EQ(engine_->stats().waiting, before.waiting);
      return;
    }
    Live live;
    live.client = request.client;
    live.expected =
        expected_answer(request, engine_->capacity(), random_bits(options_.seed, id->value));
    live.request = std::move(request);
    live_.emplace(*id, std::move(live));
  }

  void cancel() {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, pick(std::ssize(live_)));
    if (cancelled_.contains(it->first)) return;
    const std::int64_t held = engine_->stats().held_pages;
    const bool running = engine_->state(it->first) == RequestState::running;
    ASSERT_TRUE(engine_->cancel(it->first));
    EXPECT_FALSE(engine_->cancel(it->first));
    EXPECT_EQ(engine_->state(it->first), RequestState::finished);
    if (!running) {
      EXPECT_EQ(engine_->stats().held_pages, held);
    }
    cancelled_.insert(it->first);
  }

  void step() {
    setup_.cache->poison_free();
    const bool fails = fails_later_ || setup_.model->fail_next || setup_.model->fail_late ||
                       (setup_.late != nullptr && setup_.late->fail_next);
    auto report = run_step();
    fails_later_ = fails && report && engine_->in_flight();
    if (!report) {
      ASSERT_TRUE(fails);
      ++failures;
      for (auto& [id, live] : live_) live.token_last_step = false;
      return;
    }
    EXPECT_LE(report->prefill_rows, options_.chunked_prefill_size);
    EXPECT_LE(engine_->stats().running, options_.max_running_requests);
    check_tokens(*report);
    check_finished(*report);
    check_order();
  }

  Result<StepReport> run_step() {
    if (setup_.late == nullptr) return engine_->step();
    if (!engine_->in_flight()) {
      if (auto ok = engine_->launch(); !ok) return ok.error();
    }
    if (calls_in_flight_ && some(20)) cancel();
    if (!some(8)) engine_->launch_ahead();
    ahead_ += engine_->in_flight_ahead();
    while (engine_->in_flight() && some(2) && !ranked_) {
      setup_.late->run_some(static_cast<std::size_t>(pick(3)));
      setup_.cache->poison_free();
      if (!calls_in_flight_) continue;
      if (some(3)) submit();
      if (some(6)) cancel();
      if (some(9)) engine_->clear_prefix_cache();
    }
    return engine_->collect();
  }

  void check_tokens(const StepReport& report) {
    std::set<RequestId> got;
    for (const TokenEvent& e : report.tokens) {
      ASSERT_TRUE(live_.contains(e.request));
      const bool first = got.insert(e.request).second;
      ASSERT_TRUE(first || drafter_ != nullptr) << "two tokens in one step without drafts";
      ASSERT_FALSE(cancelled_.contains(e.request));
      Live& live = live_.at(e.request);
      ASSERT_EQ(e.position, std::ssize(live.tokens)) << "a token lost or repeated";
      ASSERT_LT(e.position, std::ssize(live.expected.tokens));
      ASSERT_EQ(e.sampled.token, live.expected.tokens[live.tokens.size()])
          << "request " << e.request.value << ", position " << e.position;
      live.tokens.push_back(e.sampled.token);
    }
    for (auto& [id, live] : live_) {
      // E4: a decoding request has a row in every step. A preempted one may be admitted again in
      // the same step, to recompute.
      const bool decodes = live.token_last_step && report.preemptions == 0;
      if (decodes && engine_->state(id) == RequestState::running) {
        EXPECT_TRUE(got.contains(id)) << "request " << id.value;
      }
      live.token_last_step = got.contains(id);
    }
  }

  void check_finished(const StepReport& report) {
    for (const Finished& f : report.finished) {
      ASSERT_TRUE(live_.contains(f.request));
      const Live& live = live_.at(f.request);
      EXPECT_EQ(f.answer_tokens, std::ssize(live.tokens));
      EXPECT_EQ(f.prompt_tokens, std::ssize(live.request.prompt));
      EXPECT_LT(f.cached_tokens, f.prompt_tokens);
      EXPECT_EQ(f.error.has_value(), f.reason == FinishReason::error);
      EXPECT_EQ(f.reason == FinishReason::cancelled, cancelled_.contains(f.request));
      if (f.reason != FinishReason::cancelled) {
        EXPECT_EQ(f.reason, live.expected.reason);
        EXPECT_EQ(live.tokens, live.expected.tokens);
        ++finished;
        not_finite += f.reason == FinishReason::error;
      }
      cancelled_.erase(f.request);
      live_.erase(f.request);
    }
  }

  // E2: without priorities, a client's running requests are older than its waiting ones.
  void check_order() {
    if (options_.priorities) return;
    std::set<std::uint64_t> waiting;  // clients
    for (const auto& [id, live] : live_) {
      const RequestState state = engine_->state(id);
      if (state == RequestState::running) {
        EXPECT_FALSE(waiting.contains(live.client)) << id.value << " overtook a waiting one";
      } else if (state != RequestState::finished) {
        waiting.insert(live.client);
      }
    }
  }

  std::mt19937 rng_;
  std::uint32_t seed_;
  bool overlaps_ = false, loses_windows_ = false, ranked_ = false;  // draw_setup() sets them
  FakeSetup setup_;
  EngineOptions options_;
  std::unique_ptr<Drafter> drafter_;  // null: none
  ReadingDrafter* reading_ = nullptr;
  Draft* model_ = nullptr;
  std::optional<Engine> engine_;
  std::vector<std::vector<std::int32_t>> stems_;
  std::map<RequestId, Live> live_;
  std::set<RequestId> cancelled_;
  bool calls_in_flight_ = true;
  std::uint64_t clients_ = 1, drawn_ = 0;
  bool salted_ = false;       // clients share no cached prompts
  bool fails_later_ = false;  // the step in flight may have failed to start
  int ahead_ = 0;             // steps launched before the results of the step before
};

TEST(EngineProperty, AnyLifeGivesEachRequestItsOwnTokensAndLeaksNothing) {
  std::int64_t preemptions = 0, shared_preemptions = 0;
  std::int64_t cached = 0, cached_after_windows = 0, drafted = 0, accepted = 0,
               accepted_of_readers = 0;
  std::int64_t accepted_of_models = 0, ahead = 0;
  int finished = 0, refused = 0, failures = 0, not_finite = 0;
  const int lives = 300 * test_scale();
  for (int i = 0; i < lives; ++i) {
    const std::uint32_t seed = test_seed(static_cast<std::uint32_t>(1000 + i));
    SCOPED_TRACE("life " + std::to_string(i));
    Life life(seed);
    life.run(200);
    if (HasFailure()) return;
    preemptions += life.preemptions();
    if (life.several_clients()) shared_preemptions += life.preemptions();
    cached += life.cached();
    if (life.loses_windows()) cached_after_windows += life.cached();
    drafted += life.drafts().all_drafted();
    (life.reads() > 0     ? accepted_of_readers
     : life.draft_model() ? accepted_of_models
                          : accepted) += life.drafts().all_accepted();
    finished += life.finished;
    refused += life.refused;
    failures += life.failures;
    not_finite += life.not_finite;
    ahead += life.ahead();
  }
  std::printf(
      "%d lives: %d finished, %d refused, %ld preemptions, %ld cached tokens (%ld of them in small "
      "chunks with windows or states), %d failed "
      "steps, %d not finite, %ld of %ld drafts accepted, %ld steps ahead\n",
      lives, finished, refused, preemptions, cached, cached_after_windows, failures, not_finite,
      accepted + accepted_of_readers + accepted_of_models, drafted, ahead);
  EXPECT_GT(finished, 10 * lives);
  EXPECT_GT(preemptions, lives);
  EXPECT_GT(shared_preemptions, lives / 3);
  EXPECT_GT(cached, 10 * lives);
  // 10 in a life if no boundary were kept where prompts part.
  EXPECT_GT(cached_after_windows, 13 * lives);
  EXPECT_GT(refused, lives / 4);
  EXPECT_GT(failures, lives / 10);
  EXPECT_GT(not_finite, lives / 10);
  EXPECT_GT(ahead, lives);
  EXPECT_GT(accepted, 3 * lives);
  EXPECT_GT(accepted_of_readers, 2 * lives);
  EXPECT_GT(accepted_of_models, 2 * lives);
  EXPECT_GT(drafted - accepted - accepted_of_readers - accepted_of_models, 8 * lives);
}

}  // namespace
}  // namespace lathe
