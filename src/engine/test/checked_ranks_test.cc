// Servers with --check-ranks on a CPU's ranks: requests come and are cancelled at random, share
// beginnings, are preempted, and have drafts. After every exchange of every step all ranks have the
// same rows. LATHE_TEST_SCALE=12 runs more than 10,000 steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <random>

#include "base/test_scale.h"
#include "engine/runtime.h"
#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

struct CheckedCase {
  const char* model;  // a shipped model, or a fixture
  std::int32_t tp;
  std::vector<std::string> drafts;
  std::vector<std::string> splits = {"auto"};  // --expert-split
};

// Grouped queries with KV heads on one or several ranks, windows and sinks, latents, V3.2's sparse
// latents, V4's compressed ones, a delta rule, and experts.
const std::vector<CheckedCase>& checked_cases() {
  static const std::vector<CheckedCase> all = {
      {"tiny-gqa", 2, {"none", "ngram", "tiny-gqa"}},
      {"tiny-gqa", 4, {"none", "ngram"}},
      {"tiny-gqa", 8, {"none", "ngram"}},
      {"tiny-v32", 2, {"ngram", "mtp"}, {"auto", "width", "number"}},
      {"tiny-v32", 4, {"ngram", "mtp"}, {"auto", "width", "number", "2x2"}},
      {"tiny-v32", 8, {"ngram", "mtp"}, {"auto", "number", "4x2"}},
      {"tiny-v4", 2, {"ngram", "mtp"}, {"width", "number"}},
      {"deepseek_v4_wide", 2, {"none", "ngram"}, {"width", "number"}},
      {"qwen3_5_moe", 2, {"none", "ngram"}, {"width", "number"}},
      {"qwen3_next", 2, {"none", "ngram"}, {"width", "number"}},
      {"gpt_oss_bf16", 4, {"none", "ngram"}, {"width", "number", "2x2"}},
      {"gpt_oss", 8, {"none", "ngram"}, {"auto", "number", "2x4"}},
      {"formats_experts", 8, {"none", "ngram"}, {"auto", "4x2", "2x4"}},
      {"qwen3_moe", 4, {"none", "ngram"}, {"width"}},
      {"gemma3_new", 4, {"none", "ngram"}},
  };
  return all;
}

std::string checked_directory(const std::string& model) {
  const std::string data = LATHE_TEST_DATA;
  if (model.starts_with("tiny-")) return data + "/../../models/" + model;
  return checkpoint_dir(data + "/models/" + model);
}

struct CheckedCounts {
  std::int64_t steps = 0, finished = 0, cancelled = 0, preemptions = 0, cached = 0, accepted = 0,
               compared = 0;
};

// Whether a prompt's kernels give the bits of a decode step's, so that a preempted request's answer
// has the bits of another's (docs/engine.md, E1).
bool recomputes_exactly(const ModelPlan& plan) {
  for (const GroupPlan& g : plan.groups) {
    for (const PhasePlan& phase : g.plan.phases) {
      for (const Route& route : phase.routes) {
        const bool windows = route.kind == KernelKind::gather && g.plan.problem.window > 0;
        if (route.kind == KernelKind::ragged || windows) return false;
      }
    }
  }
  return true;
}

// One server. Its requests are of a few kinds; those of one kind get the same bits, whatever else
// is in their steps, if the plan promises it.
class CheckedLife {
 public:
  CheckedLife(const CheckedCase& c, std::uint32_t seed) : random_(seed) {
    RuntimeOptions o;
    o.model = checked_directory(c.model);
    o.device = "cpu";
    o.threads = c.tp;
    o.check_ranks = true;
    o.draft = c.drafts[below(c.drafts.size())];
    o.plan_request.expert_split = c.splits[below(c.splits.size())];
    text_ = fmt::format("{} --tp {} --draft {} --expert-split {}", c.model, c.tp, o.draft,
                        o.plan_request.expert_split);
    if (o.draft.starts_with("tiny-")) o.draft = checked_directory(o.draft);
    o.plan_request.tp = c.tp;
    const bool latent =
        std::string_view(c.model) == "tiny-v32" || std::string_view(c.model) == "formats_experts";
    if (latent && one_in(2)) o.plan_request.prefill = "inplace";
    o.plan_request.context_length = kContext;
    o.plan_request.max_running_requests = 4;
    o.plan_request.chunked_prefill_size = 64;
    // Less than four requests need, unless a page is larger.
    o.plan_request.max_total_tokens = kContext + 64;
    o.engine.chunked_prefill_size = 1 + static_cast<std::int64_t>(below(45));
    o.engine.prefix_cache = !one_in(5);
    auto made = Runtime::create(o);
    if (!made) {
      const auto* error = std::get_if<Error>(&made.error());
      ADD_FAILURE() << text_ << ": "
                    << (error != nullptr ? error->message()
                                         : std::get<Refusal>(made.error()).reasons[0].wanted);
      return;
    }
    runtime_ = std::move(*made);
    exact_ = recomputes_exactly(runtime_->plan());
    for (std::int32_t i = 0; i < kKinds; ++i) {
      const auto prompt = static_cast<std::int32_t>(1 + below(75));
      Request r = greedy(make_prompt(runtime_->model(), prompt, i, 20),
                         static_cast<std::int32_t>(1 + below(kContext - 80)));
      if (one_in(2)) {
        r.sampling.temperature = 0.8f;
        r.sampling.seed = random_();
      }
      kinds_.push_back(std::move(r));
    }
    first_.resize(kKinds);
  }

  const std::string& text() const { return text_; }

  void run(std::int64_t steps, CheckedCounts& counts) {
    if (!runtime_) return;
    Engine& engine = runtime_->engine();
    while (engine.stats().steps < steps || !engine.idle()) {
      if (engine.stats().steps < steps && engine.stats().waiting < 5 && one_in(3)) submit();
      if (one_in(40)) cancel();
      if (engine.idle()) continue;
      const auto report = engine.step();
      ASSERT_TRUE(report) << report.error().message();
      keep(*report, counts);
    }
    EXPECT_EQ(engine.stats().held_pages, 0);
    counts.steps += engine.stats().steps;
    counts.preemptions += engine.stats().preemptions;
    counts.cached += engine.stats().cached_tokens;
    counts.accepted += engine.stats().drafts.all_accepted();
  }

 private:
  static constexpr std::int32_t kContext = 128, kKinds = 6;

  std::size_t below(std::size_t n) { return random_() % n; }
  bool one_in(std::size_t n) { return below(n) == 0; }

  void submit() {
    const std::size_t kind = below(kKinds);
    const auto id = runtime_->engine().submit(kinds_[kind]);
    ASSERT_TRUE(id) << id.error().message();
    live_[*id].kind = kind;
  }

  void cancel() {
    if (live_.empty()) return;
    auto at = live_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(live_.size())));
    runtime_->engine().cancel(at->first);
  }

  void keep(const StepReport& report, CheckedCounts& counts) {
    for (const TokenEvent& e : report.tokens) live_[e.request].answer.tokens.push_back(e.sampled);
    for (const Finished& f : report.finished) {
      const Live live = std::move(live_[f.request]);
      live_.erase(f.request);
      if (f.reason == FinishReason::cancelled) {
        ++counts.cancelled;
        continue;
      }
      ++counts.finished;
      EXPECT_EQ(std::ssize(live.answer.tokens), kinds_[live.kind].sampling.max_tokens);
      auto& first = first_[live.kind];
      if (!first) first = live.answer;
      if (!exact_) continue;
      ++counts.compared;
      EXPECT_TRUE(same(live.answer, *first)) << "request of kind " << live.kind;
    }
  }

  struct Live {
    std::size_t kind = 0;
    RealAnswer answer;
  };
  std::mt19937 random_;
  std::string text_;
  bool exact_ = true;
  std::unique_ptr<Runtime> runtime_;
  std::vector<Request> kinds_;
  std::vector<std::optional<RealAnswer>> first_;  // [kinds] the first answer
  std::map<RequestId, Live> live_;
};

TEST(CheckedRanks, HaveEqualRowsUnderRandomArrivals) {
  constexpr std::int64_t kSteps = 16;  // while requests come; then the last ones are answered
  const std::uint32_t first = test_seed(8000);
  const auto cases = scaled(checked_cases());
  CheckedCounts counts;
  for (std::size_t i = 0; i < cases.size() && !HasFailure(); ++i) {
    const std::uint32_t seed = first + static_cast<std::uint32_t>(i);
    CheckedLife life(cases[i], seed);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, life.text()));
    life.run(kSteps, counts);
  }
  std::printf(
      "seeds from %u: %ld steps, %ld requests finished, %ld cancelled, %ld preemptions, %ld cached "
      "tokens, %ld drafts accepted\n",
      first, static_cast<long>(counts.steps), static_cast<long>(counts.finished),
      static_cast<long>(counts.cancelled), static_cast<long>(counts.preemptions),
      static_cast<long>(counts.cached), static_cast<long>(counts.accepted));
  EXPECT_GT(counts.steps, kSteps * std::ssize(cases));
  EXPECT_GT(counts.compared, counts.finished / 4);
  for (const std::int64_t count :
       {counts.finished, counts.cancelled, counts.preemptions, counts.cached, counts.accepted}) {
    EXPECT_GT(count, 0);
  }
}

}  // namespace
}  // namespace lathe
