// Text and bits of log-probabilities do not depend on the chunk size, the prefix cache, other
// requests in the batch or, with a bf16 cache, the kernels.
#include <gmock/gmock.h>

#include <cmath>
#include <span>

#include "engine/test/real_model_test_util.h"
#include "plan/budget.h"

namespace lathe {
namespace {

using Options = RealSetup::Options;

EngineOptions chunks_of(std::int64_t rows, bool prefix_cache = false) {
  EngineOptions out;
  out.chunked_prefill_size = rows;
  out.prefix_cache = prefix_cache;
  return out;
}

RealAnswer alone(const Model& model, const Options& options, const Request& request,
                 std::int64_t chunk = 0) {
  RealSetup setup(model, options);
  Engine engine = setup.engine(chunks_of(chunk));
  RealAnswer out = serve_real(engine, {request})[0];
  EXPECT_EQ(std::ssize(out.tokens), *request.sampling.max_tokens);
  return out;
}

std::string kinds(const Plan& plan, Phase phase) {
  std::string out;
  for (const Route& r : plan.phase(phase).routes) {
    out += (out.empty() ? "" : " ") + std::string(name(r.kind));
    if (r.max_context > 0) out += "<=" + std::to_string(r.max_context);
  }
  return out;
}

/// A model with a plan.
struct Case {
  std::string model;
  Options options;
};

std::string label(const Case& c) {
  std::string out = c.model;
  for (const std::string& s : {c.options.prefill, c.options.decode, c.options.layout}) {
    if (s != "auto") out += "_" + s;
  }
  if (c.options.gather_budget < 1 << 22) out += "_tiled";
  return out;
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* model :
       {"llama", "llama_bias", "qwen2", "qwen2_window", "qwen3", "qwen3_moe", "deepseek_v3",
        "deepseek_v3_dense", "deepseek_v3_fp8", "deepseek_v32", "glm_moe_dsa", "gpt_oss_bf16",
        "gemma3_new", "gemma4_moe", "gemma4_shared", "hy_v4", "axk2", "llama4_chunks"}) {
    out.push_back({model, {}});
  }
  const auto add = [&](const char* model, const char* layout, const char* prefill = "auto",
                       const char* decode = "auto") {
    out.push_back({model, {.prefill = prefill, .decode = decode, .layout = layout}});
  };
  add("deepseek_v3", "auto", "ragged", "inplace");
  for (const char* layout : {"mla_fp8", "mla_fp8_block", "mla_fp4"}) {
    add("deepseek_v3", layout);
    add("deepseek_v3", layout, "gather", "inplace");
  }
  add("deepseek_v3", "mla_fp8", "inplace", "native");
  add("deepseek_v3", "mla_fp8", "native", "gather");
  for (const char* model : {"deepseek_v32", "glm_moe_dsa"}) {
    for (const char* layout : {"mla_fp8", "mla_fp4"}) add(model, layout);
    add(model, "mla_fp8", "gather", "native");
  }
  for (const char* model : {"llama", "qwen3_moe", "qwen2_window"}) add(model, "gqa_fp8");
  add("qwen3", "gqa_fp8", "gather", "native");
  add("qwen2_window", "gqa_fp8", "gather", "gather");
  add("qwen2_window", "gqa_bf16", "gather", "inplace");
  // The compact buffer has room for one context, so a batch is cut into segments.
  add("deepseek_v3", "mla_fp8", "gather", "inplace");
  out.back().options.gather_budget = 256 * 2 * (128 + 32);
  return out;
}

class Greedy : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    model_ = load_real(GetParam().model);
    const Plan plan = RealSetup(*model_, GetParam().options).plan();
    RecordProperty("extend", kinds(plan, Phase::extend));
    RecordProperty("decode", kinds(plan, Phase::decode));
  }
  const Model& model() const { return *model_; }
  Options options(std::int64_t tokens = 0, int threads = 1) const {
    Options out = GetParam().options;
    out.tokens = tokens;
    out.threads = threads;
    return out;
  }

 private:
  std::unique_ptr<Model> model_;
};

TEST_P(Greedy, ChunkSizesChangeNothing) {
  const Options& o = GetParam().options;
  const bool automatic = o.prefill == "auto" && o.layout == "auto";
  for (const std::int32_t length : {1, 7, 64, 150}) {
    const Request request = greedy(make_prompt(model(), length));
    const RealAnswer whole = alone(model(), options(), request);
    std::vector<std::int64_t> sizes = {1, 7, 64};
    if (automatic && length == 150) sizes = {1, 2, 3, 7, 16, 63, 64, 65};
    if (length == 7 || (automatic && length == 64)) {
      sizes.clear();
      for (std::int64_t n = 1; n < length; ++n) sizes.push_back(n);
    }
    for (const std::int64_t size : sizes) {
      ASSERT_TRUE(same(alone(model(), options(), request, size), whole))
          << "prompt of " << length << " in chunks of " << size;
    }
  }
}

// The same prompt again, and prompts that share 48 tokens with it, in one engine: one after
// another, and in one batch.
TEST_P(Greedy, PrefixCacheChangesNothing) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  for (const auto& [length, salt] : {std::pair{64, 0}, {64, 0}, {70, 1}, {150, 2}, {49, 3}}) {
    requests.push_back(greedy(make_prompt(model(), length, salt, 48)));
    want.push_back(alone(model(), options(), requests.back()));
  }
  EXPECT_NE(want[0].text(), want[2].text());
  for (const auto& [chunk, steps_between] : {std::pair{0, 100}, {7, 100}, {7, 12}, {0, 0}}) {
    RealSetup setup(model(), options(2048));
    Engine engine = setup.engine(chunks_of(chunk, true));
    const std::vector<RealAnswer> got = serve_real(engine, requests, steps_between);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(same(got[i], want[i])) << "request " << i << " in chunks of " << chunk << ", "
                                         << steps_between << " steps apart";
      if (steps_between < 100) continue;
      // 48 tokens are three full pages. Sent again, the first prompt has all tokens cached but its
      // last, which is always computed; with states only whole blocks.
      const std::int64_t again = setup.model_plan().has_state() ? 48 : 63;
      EXPECT_EQ(got[i].finished->cached_tokens, i == 0 ? 0 : i == 1 ? again : 48);
    }
  }
}

// Each of 17 requests that come and go has the same answer as alone. Two threads give the same bits
// as one.
TEST_P(Greedy, CompanyChangesNothing) {
  std::vector<Request> requests;
  for (const int length : {7, 64, 1, 150, 3, 39, 40, 41, 16, 17, 100, 2, 65, 31, 90, 1, 120}) {
    const auto i = static_cast<std::int32_t>(requests.size());
    requests.push_back(greedy(make_prompt(model(), length, i), 24 - 4 * (i % 5)));
  }
  std::vector<RealAnswer> want;
  for (const Request& r : requests) want.push_back(alone(model(), options(), r));
  for (const auto& [chunk, steps_between] : {std::pair{48, 0}, {33, 2}}) {
    RealSetup setup(model(), options(17 * 192, 2));
    Engine engine = setup.engine(chunks_of(chunk));
    const std::vector<RealAnswer> got = serve_real(engine, requests, steps_between);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(same(got[i], want[i])) << "request " << i << " in chunks of " << chunk << ", "
                                         << steps_between << " steps apart";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, Greedy, testing::ValuesIn(cases()),
                         [](const auto& c) { return label(c.param); });

// Prompts that end before, at and after the context up to which every key is selected, and answers
// that cross it. There `auto` changes from the expanded form to the absorbed one inside a prompt.
TEST(SparseBound, ChunkSizesChangeNothing) {
  for (const char* name : {"deepseek_v32", "glm_moe_dsa"}) {
    const auto model = load_real(name);
    const std::int32_t top_k = model->config().groups.front().problem.top_k;
    ASSERT_EQ(top_k, 40);
    EXPECT_EQ(kinds(RealSetup(*model, {}).plan(), Phase::extend), "ragged<=40 inplace");
    for (const std::int32_t length : {top_k - 1, top_k, top_k + 1, top_k + 2}) {
      const Request request = greedy(make_prompt(*model, length));
      const RealAnswer whole = alone(*model, {}, request);
      for (std::int64_t size = 1; size < length; ++size) {
        ASSERT_TRUE(same(alone(*model, {}, request, size), whole))
            << name << ", prompt of " << length << " in chunks of " << size;
      }
    }
  }
}

// Gathered rows of a window are tiled from its first key, pages from a multiple of the tile. So the
// text is equal, but not the last bits.
TEST(Pairs, EveryPairOverOneLayoutGivesTheSameText) {
  for (const char* name : {"deepseek_v3", "deepseek_v3_dense", "deepseek_v3_fp8", "deepseek_v32",
                           "glm_moe_dsa", "hy_v4", "llama", "qwen3", "qwen2_window"}) {
    const auto model = load_real(name);
    const AttentionProblem& problem = model->config().groups.front().problem;
    const bool latent = problem.kind != ProblemKind::grouped_query;
    for (const std::int32_t length : {1, 7, 64, 150}) {
      const Request request = greedy(make_prompt(*model, length));
      std::optional<RealAnswer> want;
      for (const std::string prefill : {"inplace", "gather", "native"}) {
        for (const std::string decode : {"inplace", "gather", "native"}) {
          const RealAnswer got = alone(
              *model,
              {.prefill = prefill, .decode = decode, .layout = latent ? "mla_bf16" : "gqa_bf16"},
              request);
          if (!want) want = got;
          const std::string what = std::string(name) + ", prompt of " + std::to_string(length) +
                                   ", " + prefill + " and " + decode;
          ASSERT_EQ(got.text(), want->text()) << what;
          if (problem.window > 0 && (prefill == "gather" || decode == "gather")) continue;
          ASSERT_TRUE(same(got, *want)) << what;
        }
      }
    }
  }
}

// A request with more keys than the compact buffer holds is gathered tile by tile.
TEST(Pairs, TilesOfACompactBufferGiveTheBitsOfPages) {
  const auto model = load_real("deepseek_v3_dense");
  Options options{.prefill = "inplace", .decode = "inplace", .layout = "mla_fp8", .context = 2048};
  const Request request = greedy(make_prompt(*model, 1100));
  const RealAnswer want = alone(*model, options, request);
  options.prefill = options.decode = "gather";
  options.gather_budget = kGatherTileKeys * 2 * (64 + 16);
  EXPECT_EQ(step_bound(RealSetup(*model, options).plan()).gather_rows, kGatherTileKeys);
  for (const std::int64_t size : {0, 500, 64}) {
    ASSERT_TRUE(same(alone(*model, options, request, size), want)) << size;
  }
}

// A second turn repeats the first answer. Its keys are in cached pages, written by decode; without
// the prefix cache extend writes them. If both round alike, the turns agree.
TEST(Turns, KeysOfAnAnswerServeTheNextPrompt) {
  for (const char* name : {"llama", "qwen2_window", "deepseek_v3", "deepseek_v32"}) {
    const auto model = load_real(name);
    for (const char* kind : {"inplace", "auto"}) {
      const Options options{.prefill = kind, .decode = kind, .tokens = 1024};
      RealSetup setup(*model, options);
      Engine engine = setup.engine(chunks_of(0, true));
      Request turn = greedy(make_prompt(*model, 50));
      for (int i = 0; i < 3; ++i) {
        const RealAnswer got = serve_real(engine, {turn})[0];
        const RealAnswer want = alone(*model, options, turn);
        // The answer's last token has no keys.
        const std::int64_t kept = i == 0 ? 0 : (std::ssize(turn.prompt) - 11) / 16 * 16;
        EXPECT_EQ(got.finished->cached_tokens, kept);
        EXPECT_EQ(got.text(), want.text()) << name << " " << kind << ", turn " << i;
        if (kinds(setup.plan(), Phase::extend) == kinds(setup.plan(), Phase::decode)) {
          EXPECT_TRUE(same(got, want)) << name << " " << kind << ", turn " << i;
        }
        for (const std::int32_t t : got.text()) turn.prompt.push_back(t);
        for (std::int32_t t = 0; t < 10; ++t) turn.prompt.push_back(7 * t + i);
      }
    }
  }
}

// Logits after every tenth token of a prompt, by the engine's runner.
std::vector<std::vector<float>> logits_of(const Model& model, const Options& options,
                                          std::span<const std::int32_t> prompt) {
  RealSetup setup(model, options);
  auto runner = Runner::create(model, setup.cache());
  EXPECT_TRUE(runner);
  const std::vector<std::vector<PageId>> pages{
      *setup.cache().ledger().allocate(setup.cache().ledger().total())};
  std::vector<std::vector<float>> out;
  for (std::size_t at = 0; at + 10 <= prompt.size(); at += 10) {
    const BatchItem item{Phase::extend, pages, static_cast<std::int32_t>(at),
                         prompt.subspan(at, 10), 1};
    EXPECT_TRUE(runner->launch({&item, 1}, setup.ops(), false) && runner->collect());
    const auto row = *runner->logits(0, 0, setup.ops());
    out.emplace_back(row.begin(), row.end());
  }
  return out;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = double{a[i]} - b[i];
    difference += d * d;
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

// The two forms round differently; `auto` takes the expanded one for some rows or all.
TEST(Pairs, ExpandedLogitsAreTheAbsorbedOnesWithinRounding) {
  double worst = 0;
  for (const char* name :
       {"deepseek_v3", "deepseek_v3_dense", "deepseek_v3_fp8", "deepseek_v32", "glm_moe_dsa"}) {
    const auto model = load_real(name);
    const auto prompt = make_prompt(*model, 150);
    const auto want = logits_of(*model, {.prefill = "inplace"}, prompt);
    for (const char* prefill : {"auto", "ragged"}) {
      const bool sparse = model->config().groups.front().problem.sparse();
      if (sparse && prefill == std::string("ragged")) continue;
      const auto got = logits_of(*model, {.prefill = prefill}, prompt);
      ASSERT_EQ(got.size(), 15u);
      EXPECT_NE(got[0], want[0]) << name << " " << prefill << ": no row was expanded";
      for (std::size_t i = 0; i < got.size(); ++i) {
        worst = std::max(worst, relative_error(got[i], want[i]));
        EXPECT_LE(relative_error(got[i], want[i]), 2e-3) << name << " " << prefill << ", " << i;
      }
    }
  }
  RecordProperty("worst_relative_error", std::to_string(worst));
}

}  // namespace
}  // namespace lathe
