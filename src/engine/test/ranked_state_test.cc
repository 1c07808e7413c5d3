// Models with states on several ranks, each of which has the states of its heads: answers are those
// of a request alone on the same ranks, whatever chunks, prefix hits, preemptions, cancelled
// requests and drafts there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/draft/test/draft_test_util.h"
#include "engine/test/fake_model_test_util.h"
#include "engine/test/real_ranks_test_util.h"

namespace lathe {
namespace {

struct StatesCase {
  const char* model;
  std::int32_t ranks;
  std::int32_t page;
  std::int64_t few_tokens;    // too few for all requests, which have 740 in all
  const char* kind = "auto";  // of prefill and decode
};

void PrintTo(const StatesCase& c, std::ostream* out) { *out << c.model << " on " << c.ranks; }

class RankedStates : public testing::TestWithParam<StatesCase> {
 protected:
  static constexpr std::int32_t kDrafts = 3;

  RankedStates() {
    for (std::int32_t i = 0; i < 4; ++i) {
      requests_.push_back(greedy(make_prompt(model(), 100 + 30 * i, i, i < 2 ? 0 : 70), 40));
      want_.push_back(alone(requests_.back()));
    }
  }
  static RealSetup::Options options(std::int64_t tokens) {
    return {.prefill = GetParam().kind,
            .decode = GetParam().kind,
            .page_size = GetParam().page,
            .context = 512,
            .tokens = tokens,
            .draft_tokens = kDrafts};
  }
  static std::unique_ptr<RealRanks> ranks(std::int64_t tokens) {
    const std::string folder = std::string(LATHE_TEST_DATA) + "/models/" + GetParam().model;
    return std::make_unique<RealRanks>(checkpoint_dir(folder), GetParam().ranks, options(tokens));
  }
  const Model& model() const { return probe_->model(); }
  static RealAnswer alone(const Request& request) {
    const auto setup = ranks(512);
    Engine engine = setup->engine({.prefix_cache = false});
    return serve_real(engine, {request})[0];
  }
  // Serves all requests, twice if they may find each other's prefixes.
  EngineStats serve(EngineOptions o, std::int64_t tokens) {
    const auto setup = ranks(tokens);
    Engine engine = setup->engine(o);
    for (int times = o.prefix_cache ? 2 : 1; times > 0; --times) {
      const std::vector<RealAnswer> got = serve_real(engine, requests_, 1);
      for (std::size_t i = 0; i < want_.size(); ++i) {
        EXPECT_TRUE(same(got[i], want_[i])) << "request " << i;
      }
    }
    setup->expect_equal_rows();
    EXPECT_EQ(engine.stats().held_pages, 0);
    return engine.stats();
  }

  std::unique_ptr<RealRanks> probe_ = ranks(512);
  std::vector<Request> requests_;
  std::vector<RealAnswer> want_;
};

TEST_P(RankedStates, ChunksAndPrefixHitsChangeNothing) {
  for (const std::int64_t chunk : {0, 1, 50}) {
    const bool hits = chunk != 1;
    const EngineStats stats =
        serve({.chunked_prefill_size = chunk, .prefix_cache = hits}, /*tokens=*/4096);
    EXPECT_EQ(stats.cached_tokens > 0, hits) << "chunks of " << chunk;
    EXPECT_EQ(stats.cached_tokens % GetParam().page, 0);
  }
}

TEST_P(RankedStates, PreemptionChangesNothing) {
  for (const bool hits : {false, true}) {
    const EngineStats stats =
        serve({.chunked_prefill_size = 33, .prefix_cache = hits}, GetParam().few_tokens);
    EXPECT_GT(stats.preemptions, 0);
  }
}

TEST_P(RankedStates, CancellationChangesNothing) {
  const auto setup = ranks(2048);
  Engine engine = setup->engine({.chunked_prefill_size = 50});
  for (std::int64_t steps = 0; steps < 8; ++steps) {
    const auto id = engine.submit(requests_[2]);
    const auto other = engine.submit(requests_[3]);
    ASSERT_TRUE(id && other);
    RealAnswer got;
    for (std::int64_t s = 0; !engine.idle(); ++s) {
      if (s == steps) engine.cancel(*other);
      auto report = engine.step();
      ASSERT_TRUE(report) << report.error().message();
      for (TokenEvent& e : report->tokens) {
        if (e.request == *id) got.tokens.push_back(std::move(e.sampled));
      }
    }
    EXPECT_TRUE(same(got, want_[2])) << "cancelled after " << steps << " steps";
  }
  setup->expect_equal_rows();
}

// A rejected draft has left its state on every rank.
TEST_P(RankedStates, DraftsChangeNothing) {
  ScriptedDrafter drafter([this](const DraftRequest& r, std::int64_t known) {
    const auto i = static_cast<std::size_t>(r.id.value - 1) % requests_.size();
    const std::size_t at = static_cast<std::size_t>(known) - requests_[i].prompt.size();
    const std::int32_t right = at < want_[i].tokens.size() ? want_[i].tokens[at].token : 0;
    const bool wrong = (known + static_cast<std::int64_t>(i)) % 3 == 0;
    return wrong ? (right + 1) % model().config().vocab : right;
  });
  for (const bool hits : {false, true}) {
    const DraftStats drafts =
        serve({.prefix_cache = hits, .drafter = &drafter, .draft_tokens = kDrafts}, 4096).drafts;
    EXPECT_GT(drafts.all_accepted(), 0);
    EXPECT_LT(drafts.all_accepted(), drafts.all_drafted());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RankedStates,
                         testing::Values(StatesCase{"deepseek_v4", 2, 128, 640},
                                         StatesCase{"qwen3_5", 2, 64, 512},
                                         StatesCase{"qwen3_5_moe", 2, 64, 512},
                                         StatesCase{"kimi_linear", 3, 64, 512, "inplace"},
                                         StatesCase{"bailing_hybrid", 2, 64, 512, "inplace"},
                                         StatesCase{"glm5_next", 3, 64, 512, "inplace"}),
                         [](const auto& c) { return std::string(c.param.model); });

}  // namespace
}  // namespace lathe
