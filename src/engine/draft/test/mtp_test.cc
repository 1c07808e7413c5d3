// The draft layer of models/tiny-v32: its logits against a plain reference in double precision, and
// answers with it against answers without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/test_scale.h"
#include "engine/draft/test/drafted_test_util.h"
#include "engine/draft/test/mtp_test_util.h"
#include "model/layers/draft_layer.h"

namespace lathe {
namespace {

constexpr std::int64_t kTopK = 128;  // tiny-v32's indexers

std::unique_ptr<Model> load_from(const std::string& directory, bool drafts) {
  LoadOptions options;
  options.drafts = drafts;
  auto model = load_model(directory, options);
  EXPECT_TRUE(model) << model.error().message();
  return std::move(*model);
}

std::unique_ptr<Model> load_tiny(bool drafts) {
  return load_from(std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32", drafts);
}

// The layer after the trunk, then twice after itself. The test fails if halves of eh_proj are
// swapped, a state lacks its norm, tokens are not shifted, or a position is off by one.
TEST(Mtp, LogitsAreThoseOfAPlainReference) {
  const Golden golden;
  const auto model = load_tiny(true);
  for (const std::string name : {"short", "long"}) {
    for (const std::int64_t chunk : {256, 50}) {
      SCOPED_TRACE(name + ", chunks of " + std::to_string(chunk));
      RealSetup setup(*model, {.layout = "mla_bf16"});
      expect_golden_drafts(golden, name, chunk, 1e-3, *model, setup.cache(), setup.ops());
    }
  }
}

// Later uses read the keys that the first one chose for the prompt's last row, although their own
// index keys are written.
TEST(Mtp, LaterUsesMayShareAChoiceOfKeys) {
  const Golden golden;
  const SharedChoiceModel shared(std::string(LATHE_TEST_DATA) + "/../../models");
  const auto model = load_from(shared.dir(), true);
  ASSERT_EQ(model->config().shared_choice_width(), kTopK);
  for (const std::int64_t chunk : {256, 50}) {
    RealSetup setup(*model, {.layout = "mla_bf16"});
    expect_golden_drafts(golden, "long", chunk, 1e-3, *model, setup.cache(), setup.ops());
  }
}

// Rows that are read one by one and rows that have waited give the same drafts. The first draft is
// the reference's.
TEST(Mtp, DraftsBehindRowsThatWaited) {
  constexpr std::int64_t kWaited = 40;
  const Golden golden;
  const auto model = load_tiny(true);
  std::vector<std::int32_t> tokens = golden.ids("long.prompt");
  const std::int64_t n = std::ssize(tokens);
  tokens.push_back(golden.ids("long.tokens")[0]);
  const std::vector<float> logits = golden.values<float>("long.logits");
  const auto first_logits =
      std::span(logits).first(static_cast<std::size_t>(model->config().vocab));
  const auto likeliest = std::ranges::max_element(first_logits) - first_logits.begin();
  std::vector<std::vector<PageId>> pages(1);
  for (std::int32_t p = 0; p < 16; ++p) pages[0].push_back(PageId{p});
  SamplingParams greedy_params;
  greedy_params.temperature = 0;
  std::vector<std::vector<std::int32_t>> drafts;
  for (const std::int64_t each : {std::int64_t{1}, std::int64_t{7}, kWaited}) {
    RealSetup setup(*model, {.layout = "mla_bf16"});
    auto drafter = MtpDrafter::create(*model, setup.cache(), setup.ops());
    ASSERT_TRUE(drafter);
    auto trunk =
        Runner::create(*model, setup.cache(), false, RunnerPass::forward_hidden, drafter->hidden());
    ASSERT_TRUE(trunk);
    BatchItem item;
    item.phase = Phase::extend;
    item.pages = pages;
    item.tokens = std::span(tokens).first(static_cast<std::size_t>(n));
    ASSERT_TRUE(trunk->launch(std::span(&item, 1), setup.ops(), false));
    ASSERT_TRUE(trunk->collect());
    for (std::int64_t first = 0, rows = n - kWaited; first < n; first += rows, rows = each) {
      rows = std::min(rows, n - first);
      ComputedRows r;
      r.id = RequestId{1};
      r.tokens = tokens;
      r.first = first;
      for (std::int64_t k = 0; k < rows; ++k) r.hidden.push_back(trunk->hidden(0, first + k));
      r.pages = pages;
      r.prefill = first == 0;
      r.most = first + rows == n ? kDraftUses : 0;
      r.sampling.params = &greedy_params;
      ASSERT_TRUE(drafter->read(std::span(&r, 1)));
    }
    DraftRequest request{RequestId{1}, tokens, kDraftUses};
    drafter->propose(std::span(&request, 1));
    ASSERT_EQ(std::ssize(request.drafts), kDraftUses);
    EXPECT_EQ(request.drafts[0], likeliest);
    drafts.push_back(request.drafts);
  }
  EXPECT_EQ(drafts[0], drafts[1]);
  EXPECT_EQ(drafts[0], drafts[2]);
}

// Prompts shorter and longer than the indexer's top-k, and some that the answer extends beyond it;
// greedy and with every filter.
std::vector<Request> mtp_requests(const Golden& golden) {
  std::vector<std::int32_t> words = golden.ids("long.prompt");
  std::vector<Request> out;
  for (const std::int64_t length : {kTopK - 3, kTopK - 1, kTopK, kTopK + 1, std::ssize(words)}) {
    std::vector<std::int32_t> prompt(words.begin(), words.begin() + length);
    out.push_back(greedy(std::move(prompt)));
  }
  out.push_back(greedy(golden.ids("short.prompt")));
  out.push_back(greedy({words[0]}));
  return and_drawn(std::move(out));
}

TEST(Mtp, DraftsChangeNoBit) {
  const Golden golden;
  const auto plain = load_tiny(false), drafted = load_tiny(true);
  const std::vector<Request> requests = mtp_requests(golden);
  for (const char* layout : {"mla_bf16", "mla_fp8_block"}) {
    const RealSetup::Options options{.prefill = "inplace", .layout = layout, .tokens = 4096};
    const std::vector<RealAnswer> want = serve_alone(*plain, options, requests);
    for (const std::int64_t d : {1, 2, 3}) {
      const Drafted got = serve_drafted(
          *drafted, options, {.chunked_prefill_size = 40 + d, .draft_tokens = d}, requests);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got.answers[i], want[i])) << layout << ", request " << i << ", d " << d;
        EXPECT_EQ(got.answers[i].finished->reason, want[i].finished->reason);
      }
      EXPECT_GT(got.stats.drafts.checks, 50);
      EXPECT_GT(got.stats.drafts.rate(1), 0.4) << layout << ", d " << d;
      EXPECT_EQ(got.stats.drafts.places(), static_cast<std::size_t>(d));
    }
  }
}

// One choice of keys for all uses of the layer: prompts shorter and longer than the indexer's
// top-k, and drafts that cross it.
TEST(Mtp, DraftsOfOneChoiceChangeNoBit) {
  const Golden golden;
  const SharedChoiceModel shared(std::string(LATHE_TEST_DATA) + "/../../models");
  const auto plain = load_tiny(false), own = load_tiny(true), one = load_from(shared.dir(), true);
  const std::vector<Request> requests = mtp_requests(golden);
  const RealSetup::Options options{.prefill = "inplace", .tokens = 4096};
  const EngineOptions engine{.chunked_prefill_size = 43, .draft_tokens = 3};
  const std::vector<RealAnswer> want = serve_alone(*plain, options, requests);
  const Drafted each = serve_drafted(*own, options, engine, requests);
  const Drafted got = serve_drafted(*one, options, engine, requests);
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(same(got.answers[i], want[i])) << "request " << i;
  }
  std::printf("%.3f %.3f of second and third drafts accepted, %.3f %.3f with one choice\n",
              each.stats.drafts.rate(2), each.stats.drafts.rate(3), got.stats.drafts.rate(2),
              got.stats.drafts.rate(3));
  EXPECT_NEAR(got.stats.drafts.rate(2), each.stats.drafts.rate(2), 0.1);
  EXPECT_NEAR(got.stats.drafts.rate(3), each.stats.drafts.rate(3), 0.1);
}

// Every page without a token is NaN, so a key that the layer has not written ends its drafts.
TEST(Mtp, PagesOfThePrefixCacheHaveItsKeys) {
  const Golden golden;
  const auto model = load_tiny(true);
  std::vector<Request> requests = {greedy(golden.ids("long.prompt"), 20)};
  const RealSetup::Options options{.tokens = 1024};
  const EngineOptions engine{.draft_tokens = 2};
  const EngineStats once = serve_drafted(*model, options, engine, requests).stats;
  const EngineStats thrice = serve_drafted(*model, options, engine, requests, 3).stats;
  EXPECT_GT(once.drafts.all_accepted(), 8);
  EXPECT_GE(thrice.cached_tokens, 2 * 160);
  EXPECT_GE(thrice.drafts.all_accepted(), 3 * once.drafts.all_accepted() - 4);
  // An answer of one token leaves pages without the layer's keys, which are not shared.
  requests = {greedy(golden.ids("long.prompt"), 1)};
  EXPECT_EQ(serve_drafted(*model, options, engine, requests, 2).stats.cached_tokens, 0);
}

// Many requests with shared beginnings, in small chunks, in a pool for a few: preempted and
// resumed.
TEST(Mtp, CompanyAndPreemptionChangeNothing) {
  const Golden golden;
  const auto plain = load_tiny(false), drafted = load_tiny(true);
  const std::vector<Request> requests = company_of(golden.ids("long.prompt"), test_seed(33));
  RealSetup::Options options{.prefill = "inplace"};
  const std::vector<RealAnswer> want = serve_alone(*plain, options, requests);
  for (const bool prefix_cache : {true, false}) {
    options.tokens = 256;
    const Drafted got = serve_drafted(
        *drafted, options,
        {.chunked_prefill_size = 19, .prefix_cache = prefix_cache, .draft_tokens = 3}, requests);
    expect_company_changed_nothing(got, want);
  }
}

// GLM-4.5: the layer's keys and values have heads of their own. Qwen 3.5: the model has states,
// which the layer has not, and attention with a gate. Random weights.
class MtpGrouped : public testing::TestWithParam<const char*> {};

TEST_P(MtpGrouped, DraftLayersChangeNoBit) {
  ModelConfig config = *load_model_config(std::string(LATHE_TEST_DATA) + "/models/" + GetParam());
  config.draft_layers = 1;
  const auto made = make_dummy_model(*add_draft_layer(config), {});
  ASSERT_TRUE(made) << made.error().message();
  const Model& model = **made;
  std::vector<Request> requests;
  for (const std::int32_t length : {1, 7, 40, 70}) {
    std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < length; ++i) {
      prompt[static_cast<std::size_t>(i)] = (3 + i) % config.vocab;
    }
    requests.push_back(greedy(std::move(prompt), 30));
  }
  requests = and_drawn(std::move(requests));
  const RealSetup::Options options{
      .prefill = "inplace", .layout = "gqa_bf16", .tokens = 4096, .draft_tokens = 3};
  const std::vector<RealAnswer> want = serve_alone(model, options, requests);
  for (const std::int64_t d : {1, 3}) {
    const Drafted got =
        serve_drafted(model, options, {.chunked_prefill_size = 16, .draft_tokens = d}, requests);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(same(got.answers[i], want[i])) << "request " << i << ", d " << d;
    }
    EXPECT_GT(got.stats.drafts.all_drafted(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MtpGrouped, testing::Values("glm4_moe", "qwen3_5_moe"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace lathe
