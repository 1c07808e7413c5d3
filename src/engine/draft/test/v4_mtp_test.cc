// The draft layer of models/tiny-v4, which reads a window of the model's four streams: its logits
// against a plain reference in double precision, and answers with it against answers without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "engine/draft/test/drafted_test_util.h"
#include "engine/draft/test/mtp_test_util.h"

namespace lathe {
namespace {

constexpr std::int64_t kV4Window = 128;  // also the page size

std::unique_ptr<Model> load_tiny_v4(bool drafts) {
  LoadOptions options;
  options.drafts = drafts;
  auto model = load_model(std::string(LATHE_TEST_DATA) + "/../../models/tiny-v4", options);
  EXPECT_TRUE(model) << model.error().message();
  return std::move(*model);
}

// An arithmetic prompt within the window, and a longer one of words to copy.
Golden golden_of_v4() { return Golden(LATHE_TEST_DATA, "tiny_v4"); }

RealSetup::Options setup_of(std::int64_t tokens, std::int32_t drafts,
                            const std::string& layout = "auto") {
  RealSetup::Options out;
  out.layout = layout;
  out.page_size = kV4Window;
  out.context = 640;
  out.tokens = tokens;
  out.draft_tokens = drafts;
  return out;
}

// The test fails if the order of e_proj and h_proj, a norm, a head or a position differs from the
// published model, or if the layer's window pages are released before it has read them.
TEST(V4Mtp, LogitsAreThoseOfAPlainReference) {
  const Golden golden = golden_of_v4();
  const auto model = load_tiny_v4(true);
  for (const std::string name : {"short", "long"}) {
    for (const std::int64_t chunk : {0, 50, 131}) {
      SCOPED_TRACE(name + ", chunks of " + std::to_string(chunk));
      RealSetup setup(*model, setup_of(0, 3, "mla_bf16"));
      expect_golden_drafts(golden, name, chunk, 2e-3, *model, setup.cache(), setup.ops());
    }
  }
}

// Asks the draft layer for the most drafts after every token, and passes on what the engine wants,
// or nothing.
class RecordingDrafter : public Drafter {
 public:
  RecordingDrafter(const Model& model, RealSetup& setup, bool gives)
      : inner_(MtpDrafter::create(model, setup.cache(), setup.ops()).value()), gives_(gives) {}
  HiddenRows* hidden() override { return inner_.hidden(); }
  Result<void> read(std::span<const ComputedRows> rows) override {
    std::vector<ComputedRows> all(rows.begin(), rows.end());
    for (ComputedRows& r : all) r.most = r.most > 0 ? kDraftUses : 0;
    return inner_.read(all);
  }
  void propose(std::span<DraftRequest> requests) override {
    for (DraftRequest& r : requests) {
      if (r.most == 0) continue;
      DraftRequest all = r;
      all.most = kDraftUses;
      inner_.propose(std::span(&all, 1));
      drafts[std::ssize(r.tokens)] = all.drafts;
      if (gives_) r.drafts.assign(all.drafts.begin(), all.drafts.begin() + r.most);
    }
  }
  std::map<std::int64_t, std::vector<std::int32_t>> drafts;  // by number of known tokens

 private:
  MtpDrafter inner_;
  bool gives_;
};

// Drafts along an answer, as its rows come one by one or as right and wrong drafts. A later draft
// is compared with the reference only if the drafts before it are the answer's tokens.
TEST(V4Mtp, DraftsBehindEveryTokenAreThoseOfAPlainReference) {
  constexpr float kMargin = 0.1f;  // the largest logits are 10 to 20
  const Golden golden = golden_of_v4();
  const auto model = load_tiny_v4(true);
  const std::vector<std::int32_t> prompt = golden.ids("answer.prompt");
  const std::vector<std::int32_t> answer = golden.ids("answer.tokens");
  const std::vector<std::int32_t> want = golden.ids("answer.drafts");
  const std::vector<float> margins = golden.values<float>("answer.margins");
  const std::size_t length = answer.size();
  for (const bool gives : {false, true}) {
    RealSetup setup(*model, setup_of(0, kDraftUses, "mla_bf16"));
    RecordingDrafter drafter(*model, setup, gives);
    Engine engine = setup.engine({.drafter = &drafter, .draft_tokens = kDraftUses});
    const RealAnswer got =
        serve_real(engine, {greedy(prompt, static_cast<std::int32_t>(length))}).front();
    ASSERT_EQ(got.text(), answer);
    std::array<int, kDraftUses> compared{};
    for (const auto& [known, drafts] : drafter.drafts) {
      const auto row = static_cast<std::size_t>(known) - prompt.size() - 1;
      // Fewer if the next page is missing, because the engine wants fewer drafts.
      for (std::size_t use = 0; use < drafts.size() && row + use + 1 < length; ++use) {
        const std::size_t at = row * kDraftUses + use;
        if (margins[at] > kMargin) {
          EXPECT_EQ(drafts[use], want[at]) << "use " << use + 1 << " behind token " << row;
          ++compared[use];
        }
        if (want[at] != answer[row + use + 1]) break;
      }
    }
    EXPECT_GT(compared[0], gives ? 50 : 120);
    EXPECT_GT(compared[1], gives ? 50 : 100);
    EXPECT_GT(compared[2], gives ? 0 : 15);
    EXPECT_EQ(engine.stats().drafts.all_accepted() > 50, gives);
  }
}

// Prompts that end just before and just after the end of a window, a group and a page; greedy and
// sampled.
std::vector<Request> requests_of(const Golden& golden) {
  std::vector<std::int32_t> words = golden.ids("long.prompt");
  std::vector<Request> out;
  for (const std::int64_t length : {std::int64_t{1}, kV4Window - 3, kV4Window - 2, kV4Window - 1,
                                    kV4Window, kV4Window + 1, std::ssize(words)}) {
    out.push_back(greedy({words.begin(), words.begin() + length}));
  }
  out.push_back(greedy(golden.ids("short.prompt"), 40));
  return and_drawn(std::move(out));
}

TEST(V4Mtp, DraftsChangeNoBit) {
  const Golden golden = golden_of_v4();
  const auto plain = load_tiny_v4(false), drafted = load_tiny_v4(true);
  const std::vector<Request> requests = requests_of(golden);
  for (const char* layout : {"mla_bf16", "v4_fp8"}) {
    const std::vector<RealAnswer> want = serve_alone(*plain, setup_of(0, 0, layout), requests);
    for (const std::int32_t d : {1, 3}) {
      const Drafted got =
          serve_drafted(*drafted, setup_of(4096, d, layout),
                        {.chunked_prefill_size = 40 + d, .draft_tokens = d}, requests);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got.answers[i], want[i])) << layout << ", request " << i << ", d " << d;
        EXPECT_EQ(got.answers[i].finished->reason, want[i].finished->reason);
      }
      EXPECT_GT(got.stats.drafts.checks, 50);
      EXPECT_GT(got.stats.drafts.rate(1), 0.4) << layout << ", d " << d;
    }
  }
}

// The layer's acceptance after training: models/tiny-v4/README.md.
TEST(V4Mtp, GuessesTheTasksItWasTrainedOn) {
  const Golden golden = golden_of_v4();
  const auto model = load_tiny_v4(true);
  for (const std::string name : {"short", "long"}) {
    const Drafted got = serve_drafted(*model, setup_of(0, 1), {.draft_tokens = 1},
                                      {greedy(golden.ids(name + ".prompt"), 36)});
    EXPECT_GT(got.stats.drafts.checks, 10) << name;
    EXPECT_GE(got.stats.drafts.rate(1), 0.85) << name;
  }
}

// Pages before the window are released while a prompt is prefilled, but not before the layer has
// read its rows: the same drafts are right for all chunk sizes. Every page without a token is NaN.
TEST(V4Mtp, ChunksChangeNoDraft) {
  const Golden golden = golden_of_v4();
  const auto model = load_tiny_v4(true);
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < 3; ++i) {
    const std::vector<std::int32_t> words = golden.ids("long.prompt");
    prompt.insert(prompt.end(), words.begin(), words.end());
  }
  const std::vector<Request> requests = {greedy(prompt, 60)};
  std::vector<std::int64_t> accepted;
  for (const std::int64_t chunk : {0, 33, 127, 129, 300}) {
    const Drafted got = serve_drafted(*model, setup_of(0, 2),
                                      {.chunked_prefill_size = chunk, .draft_tokens = 2}, requests);
    accepted.push_back(got.stats.drafts.all_accepted());
    EXPECT_GT(accepted.back(), 10) << "chunks of " << chunk;
    EXPECT_EQ(accepted.back(), accepted.front()) << "chunks of " << chunk;
    EXPECT_EQ(got.stats.held_pages, 0);
  }
}

// Window pages in the prefix cache have the layer's keys, too.
TEST(V4Mtp, PagesOfThePrefixCacheHaveItsKeys) {
  const Golden golden = golden_of_v4();
  const auto model = load_tiny_v4(true);
  const std::vector<Request> requests = {greedy(golden.ids("long.prompt"), 20)};
  const EngineOptions engine{.draft_tokens = 2};
  const EngineStats once = serve_drafted(*model, setup_of(1024, 2), engine, requests).stats;
  const EngineStats thrice = serve_drafted(*model, setup_of(1024, 2), engine, requests, 3).stats;
  EXPECT_GT(once.drafts.all_accepted(), 5);
  EXPECT_GE(thrice.cached_tokens, 2 * kV4Window);
  EXPECT_GE(thrice.drafts.all_accepted(), 3 * once.drafts.all_accepted() - 4);
}

// Window pages at the boundary where prompts part have the layer's keys, too: every page without a
// token is NaN, and about as many drafts are right as without the prefix cache.
TEST(V4Mtp, C1SharedPromptsKeepItsKeys) {
  const auto model = load_tiny_v4(true);
  const std::vector<std::int32_t> words = golden_of_v4().ids("long.prompt");
  RealSetup setup(*model, setup_of(4096, 2));
  auto drafter = MtpDrafter::create(*model, setup.cache(), setup.ops());
  ASSERT_TRUE(drafter);
  Engine engine =
      setup.engine({.chunked_prefill_size = 33, .drafter = &*drafter, .draft_tokens = 2});
  std::int64_t accepted = 0;
  for (std::int32_t i = 0; i < 4; ++i) {
    std::vector<std::int32_t> prompt;
    for (std::size_t k = 0; k < 300; ++k) prompt.push_back(words[k % words.size()]);
    prompt.push_back(3 + i);
    for (std::size_t k = 0; k < 150; ++k) prompt.push_back(words[k % words.size()]);
    const std::vector<Request> request = {greedy(prompt, 40)};
    const Drafted cold =
        serve_drafted(*model, setup_of(0, 2), {.prefix_cache = false, .draft_tokens = 2}, request);
    accepted += cold.stats.drafts.all_accepted();
    const RealAnswer got = serve_real(engine, request)[0];
    EXPECT_TRUE(same(got, cold.answers[0])) << "request " << i;
    EXPECT_EQ(got.finished->cached_tokens, i < 2 ? 0 : 2 * kV4Window) << "request " << i;
  }
  EXPECT_GT(accepted, 20);
  EXPECT_NEAR(static_cast<double>(engine.stats().drafts.all_accepted()),
              static_cast<double>(accepted), 4);
}

// Many requests with shared beginnings, in small chunks, in a pool for a few: preempted and
// resumed.
TEST(V4Mtp, CompanyAndPreemptionChangeNothing) {
  const Golden golden = golden_of_v4();
  const auto plain = load_tiny_v4(false), drafted = load_tiny_v4(true);
  const std::vector<std::int32_t> words = golden.ids("long.prompt");
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 8; ++i) {
    std::vector<std::int32_t> prompt(words.begin(), words.begin() + 90 + 9 * i);
    Request r = greedy(std::move(prompt), 40 + 3 * i);
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    r.sampling.seed = 7 + static_cast<std::uint64_t>(i);
    requests.push_back(std::move(r));
  }
  const std::vector<RealAnswer> want = serve_alone(*plain, setup_of(0, 0), requests);
  for (const bool prefix_cache : {true, false}) {
    const Drafted got = serve_drafted(
        *drafted, setup_of(768, 3),
        {.chunked_prefill_size = 19, .prefix_cache = prefix_cache, .draft_tokens = 3}, requests);
    expect_company_changed_nothing(got, want);
  }
}

}  // namespace
}  // namespace lathe
