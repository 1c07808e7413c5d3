// Models with states in the engine: DeepSeek V4's windows, compressed entries and compressor
// states, and states of a delta rule. Answers are the same for all chunk sizes, batches, prefix
// cache hits and preemptions anywhere in a block or a group of tokens.
#include <gmock/gmock.h>

#include "engine/draft/test/draft_test_util.h"
#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

struct StateCase {
  const char* model;
  // Tokens of a page and a block. V4: 32 entries of 4 tokens, one of 128.
  std::int32_t page;
  std::int64_t few_tokens;  // too few for four requests of 163 tokens
  // Of prefill and decode: keys of Kimi-Linear that are expanded round differently from absorbed
  // ones, so a preempted request would have other bits.
  const char* kind = "auto";
  const char* layout = "auto";
  bool dense = false;  // without experts, with random weights
};

std::string name_of(const StateCase& c) {
  return std::string(c.model) + (c.dense ? "_dense" : "") +
         (std::string(c.layout) == "auto" ? "" : std::string("_") + c.layout);
}
void PrintTo(const StateCase& c, std::ostream* out) { *out << name_of(c); }

std::unique_ptr<Model> load(const StateCase& c) {
  if (!c.dense) return load_real(c.model);
  LoadOptions options;
  options.overrides.values = {"first_k_dense_replace=3"};
  options.dummy = true;
  options.seed = 4;
  auto model = load_model(std::string(LATHE_TEST_DATA) + "/models/" + c.model, options);
  EXPECT_TRUE(model) << model.error().message();
  EXPECT_EQ((*model)->config().moe.experts, 0);
  return std::move(*model);
}

RealSetup::Options options(const StateCase& c, std::int64_t tokens = 0) {
  RealSetup::Options out;
  out.page_size = c.page;
  out.context = 512;
  out.tokens = tokens;
  out.prefill = out.decode = c.kind;
  out.layout = c.layout;
  return out;
}

EngineOptions state_chunks(std::int64_t rows, bool prefix_cache = false) {
  EngineOptions out;
  out.chunked_prefill_size = rows;
  out.prefix_cache = prefix_cache;
  return out;
}

class StateEngine : public testing::TestWithParam<StateCase> {
 protected:
  std::unique_ptr<Model> model_ = load(GetParam());

  static RealSetup::Options options(std::int64_t tokens = 0) {
    return lathe::options(GetParam(), tokens);
  }
  RealAnswer alone(const Request& request, std::int64_t chunk = 0) {
    RealSetup setup(*model_, options());
    Engine engine = setup.engine(state_chunks(chunk));
    return serve_real(engine, {request})[0];
  }
};

TEST(V4Engine, HasAPageKindForEveryLifetime) {
  const auto model = load_real("deepseek_v4");
  RealSetup setup(*model, options({"deepseek_v4", 128, 0}));
  const ModelPlan& plan = setup.model_plan();
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_EQ(plan.entry_groups(), 2u);
  EXPECT_EQ(plan.block_tokens, 128);
  EXPECT_TRUE(plan.has_state());
  EXPECT_EQ(setup.cache().entries(0), nullptr);
  EXPECT_EQ(setup.cache().state(0), nullptr);
  for (const std::size_t g : {1u, 2u}) {
    ASSERT_NE(setup.cache().entries(g), nullptr);
    EXPECT_EQ(setup.cache().entries(g)->pages(), setup.cache().pools(g).pages());
    EXPECT_NE(setup.cache().state(g), nullptr);
  }
}

// A group of attention layers carries the states of the others. A slot is for a block.
TEST(DeltaEngine, HasSlotsOfStates) {
  const auto model = load_real("qwen3_5_moe");
  RealSetup setup(*model, options({"qwen3_5_moe", 16, 0}));
  const ModelPlan& plan = setup.model_plan();
  ASSERT_EQ(plan.groups.size(), 1u);
  const GroupPlan& group = plan.groups.front();
  EXPECT_EQ(group.group.layers, std::vector{1});
  EXPECT_EQ(group.group.state_layers(), (std::vector{0, 2}));
  EXPECT_EQ(plan.block_tokens, 64);
  // f32 [4, 16, 32], and three inputs of 2 * 32 + 128 channels.
  EXPECT_EQ(group.group.state_bytes, 4 * (4 * 16 * 32 + 3 * 192));
  EXPECT_EQ(plan.state_slots, 4 * 32 + plan.kept_boundaries());
  EXPECT_EQ(plan.budget(BudgetKind::delta_states)->bytes,
            plan.state_slots * 2 * group.group.state_bytes);
  EXPECT_EQ(setup.cache().state(0)->bytes(), plan.budget(BudgetKind::delta_states)->bytes);
  EXPECT_EQ(plan.boundary_bytes, plan.kept_boundaries() * 2 * group.group.state_bytes);
}

TEST_P(StateEngine, ChunkSizesChangeNothing) {
  for (const std::int32_t length : {3, 130, 258}) {
    const Request request = greedy(make_prompt(*model_, length), 12);
    const RealAnswer whole = alone(request);
    EXPECT_EQ(whole.tokens.size(), 12u);
    for (const std::int64_t size : {1, 2, 3, 63, 127, 128, 129}) {
      if (size < 63 && length > 200) continue;
      ASSERT_TRUE(same(alone(request, size), whole)) << length << " in chunks of " << size;
    }
  }
}

TEST_P(StateEngine, PrefixCacheChangesNothing) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  // Prompts part after 256 shared tokens, where the first request leaves a state; and after 130,
  // where it leaves one only if a step ended between 128 and 255 tokens.
  for (const auto& [length, salt, shared] :
       {std::tuple{300, 0, 0}, {300, 0, 0}, {270, 1, 256}, {140, 2, 130}, {257, 3, 256}}) {
    requests.push_back(greedy(make_prompt(*model_, length, salt, shared), 8));
    want.push_back(alone(requests.back()));
  }
  constexpr std::int64_t kFound[] = {0, 256, 256, -1, 256};
  for (const auto& [chunk, steps_between] : {std::pair{0, 100}, {50, 100}, {50, 3}, {0, 0}}) {
    RealSetup setup(*model_, options(4096));
    Engine engine = setup.engine(state_chunks(chunk, true));
    const std::vector<RealAnswer> got = serve_real(engine, requests, steps_between);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(same(got[i], want[i])) << "request " << i << " in chunks of " << chunk << ", "
                                         << steps_between << " steps apart";
      if (steps_between == 100) {
        const std::int64_t found = got[i].finished->cached_tokens;
        if (kFound[i] < 0) {
          EXPECT_TRUE(found <= 128 && found % 64 == 0) << found;
        } else {
          EXPECT_EQ(found, kFound[i]) << i;
        }
      }
    }
  }
}

// There are too few pages for all requests, so the youngest are preempted, at every residue of a
// group of 4.
TEST_P(StateEngine, PreemptionChangesNothing) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  for (std::int32_t i = 0; i < 4; ++i) {
    requests.push_back(greedy(make_prompt(*model_, 100 + i, i), 60));
    want.push_back(alone(requests.back()));
  }
  for (const bool prefix_cache : {false, true}) {
    for (const std::int64_t chunk : {0, 33}) {
      RealSetup setup(*model_, options(GetParam().few_tokens));
      Engine engine = setup.engine(state_chunks(chunk, prefix_cache));
      const std::vector<RealAnswer> got = serve_real(engine, requests);
      std::int64_t preempted = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(same(got[i], want[i])) << "request " << i << " in chunks of " << chunk;
        preempted += got[i].finished->preemptions;
      }
      EXPECT_GT(preempted, 0);
    }
  }
}

// Cancelled at every step of its life, a request leaves no trace in the others' answers.
TEST_P(StateEngine, CancellationChangesNothing) {
  const Request kept = greedy(make_prompt(*model_, 150), 20);
  const RealAnswer want = alone(kept);
  for (const bool prefix_cache : {false, true}) {
    RealSetup setup(*model_, options(2048));
    Engine engine = setup.engine(state_chunks(50, prefix_cache));
    for (std::int64_t steps = 0; steps < 12; ++steps) {
      const auto id = engine.submit(kept);
      const auto other = engine.submit(greedy(make_prompt(*model_, 170, 1, 140), 20));
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
      EXPECT_TRUE(same(got, want)) << "cancelled after " << steps << " steps";
      EXPECT_EQ(engine.stats().held_pages, 0);
    }
  }
}

// Before every step, every page and slot without an owner is filled with NaN.
TEST_P(StateEngine, WhatNobodyHoldsIsNotRead) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  for (std::int32_t i = 0; i < 5; ++i) {
    requests.push_back(greedy(make_prompt(*model_, 90 + 37 * i, i, 60), 30));
    want.push_back(alone(requests.back()));
  }
  for (const auto& [chunk, prefix_cache] : {std::pair{0, false}, {0, true}, {41, true}}) {
    RealSetup setup(*model_, options(896));
    Engine e = setup.engine(state_chunks(chunk, prefix_cache));
    std::map<RequestId, RealAnswer> got;
    std::vector<RequestId> ids;
    for (const Request& r : requests) ids.push_back(*e.submit(r));
    while (!e.idle()) {
      setup.cache().poison_free();
      auto report = e.step();
      ASSERT_TRUE(report) << report.error().message();
      for (TokenEvent& t : report->tokens) got[t.request].tokens.push_back(std::move(t.sampled));
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(same(got[ids[i]], want[i])) << "request " << i << ", chunks " << chunk;
    }
  }
}

// Answers begin at every residue of a group of 4, and cross the ends of the window, a group of 128,
// a page and a block. Drafts are right up to a position that differs by request and step. Rejected
// ones have written keys, entries and states.
class StateDrafts : public StateEngine {
 protected:
  static constexpr std::int32_t kDrafts = 5;

  StateDrafts() {
    for (std::int32_t i = 0; i < 8; ++i) {
      Request r = greedy(make_prompt(*model_, i < 6 ? 112 + 3 * i : 241 + i, i), 20 + i);
      if (i % 2 == 1) {
        r.sampling.temperature = 0.9f;
        r.sampling.seed = 70 + static_cast<std::uint64_t>(i);
      }
      requests_.push_back(std::move(r));
      want_.push_back(alone(requests_.back()));
    }
  }
  // Drafts of which every `period`th is wrong, from an offset that depends on the request; 0: none
  // is.
  ScriptedDrafter drafter(std::int64_t period) const {
    return ScriptedDrafter([this, period](const DraftRequest& r, std::int64_t known) {
      const auto i = static_cast<std::size_t>(r.id.value - 1) % requests_.size();
      const std::size_t at = static_cast<std::size_t>(known) - requests_[i].prompt.size();
      const std::int32_t right = at < want_[i].tokens.size() ? want_[i].tokens[at].token : 0;
      const bool wrong = period > 0 && (known + static_cast<std::int64_t>(i)) % period == 0;
      return wrong ? (right + 1) % model_->config().vocab : right;
    });
  }
  RealSetup::Options drafted(std::int64_t tokens) const {
    RealSetup::Options out = options(tokens);
    out.draft_tokens = kDrafts;
    return out;
  }
  DraftStats check(RealSetup& setup, Drafter& drafter, EngineOptions o, std::int64_t draft_tokens,
                   int times = 1) {
    o.drafter = &drafter;
    o.draft_tokens = draft_tokens;
    Engine engine = setup.engine(o);
    for (int t = 0; t < times; ++t) {
      const std::vector<RealAnswer> got = serve_real(engine, requests_, times > 1 ? 0 : 1);
      for (std::size_t i = 0; i < want_.size(); ++i) {
        EXPECT_TRUE(same(got[i], want_[i])) << "request " << i << ", " << draft_tokens << " drafts";
      }
    }
    EXPECT_EQ(engine.stats().held_pages, 0);
    stats_ = engine.stats();
    return engine.stats().drafts;
  }

  std::vector<Request> requests_;
  std::vector<RealAnswer> want_;
  EngineStats stats_;
};

TEST_P(StateDrafts, ChangeNoBit) {
  for (const std::int64_t period : {0, 1, 2, 3, 4}) {
    for (const std::int64_t d : {1, 2, 4, 5}) {
      if (period > d) continue;
      RealSetup setup(*model_, drafted(4096));
      ScriptedDrafter scripted = drafter(period);
      const DraftStats stats = check(setup, scripted, state_chunks(0), d);
      EXPECT_GT(stats.all_drafted(), 20) << "period " << period;
      if (period == 0) {
        EXPECT_EQ(stats.all_accepted(), stats.all_drafted());
      } else if (period == 1) {
        EXPECT_EQ(stats.all_accepted(), 0);
      } else {
        EXPECT_GT(stats.all_accepted(), 0);
        EXPECT_LT(stats.all_accepted(), stats.all_drafted());
      }
    }
  }
}

// With the prefix cache, where a burst of drafts may complete a block; with small chunks and bursts
// in one step; and in a small pool, where the youngest requests are preempted.
TEST_P(StateDrafts, CompanyChangesNothing) {
  for (const auto& [tokens, chunk, prefix_cache] :
       {std::tuple{4096, 0, true}, {4096, 13, true}, {640, 0, false}, {640, 33, true}}) {
    RealSetup setup(*model_, drafted(tokens));
    ScriptedDrafter scripted = drafter(3);
    // The second run finds in the prefix cache what the first one computed.
    const DraftStats stats = check(setup, scripted, state_chunks(chunk, prefix_cache), 4, 2);
    EXPECT_GT(stats.all_accepted(), 0);
    EXPECT_EQ(stats_.preemptions > 0, tokens == 640 && chunk == 0) << chunk;
    if (tokens == 4096) {
      EXPECT_GT(stats_.cached_tokens, 0) << chunk;
    }
  }
}

TEST_P(StateDrafts, NeedAPlanWithRoomForTheirStates) {
  RealSetup setup(*model_, options());
  EngineOptions o = state_chunks(0);
  ScriptedDrafter scripted = drafter(0);
  o.drafter = &scripted;
  const auto made = Engine::create(*model_, setup.cache(), o, setup.ops());
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), testing::HasSubstr("--draft-tokens: wanted at most 0"));
}

// GDN and KDA, dense and with experts; KDA with a bounded decay; states next to an fp8 cache.
constexpr StateCase kStateCases[] = {{"deepseek_v4", 128, 768},
                                     {"qwen3_5_moe", 64, 512},
                                     {"qwen3_5", 64, 512},
                                     {"qwen3_5", 64, 512, "auto", "gqa_fp8"},
                                     {"kimi_linear", 64, 512, "inplace"},
                                     {"kimi_linear", 64, 512, "inplace", "auto", true},
                                     {"bailing_hybrid", 64, 512, "inplace"},
                                     {"glm5_next", 64, 512, "inplace"}};
const auto state_case_name = [](const auto& c) { return name_of(c.param); };

INSTANTIATE_TEST_SUITE_P(Models, StateEngine, testing::ValuesIn(kStateCases), state_case_name);
INSTANTIATE_TEST_SUITE_P(Models, StateDrafts, testing::ValuesIn(kStateCases), state_case_name);

}  // namespace
}  // namespace lathe
