// Models with a sliding window in some or all layers, or with chunks. Pages before the window are
// released while a request runs, and are overwritten with NaN or by other requests, which changes
// nothing.
#include <gmock/gmock.h>

#include "engine/test/real_model_test_util.h"

namespace lathe {
namespace {

constexpr std::int32_t kWindow = 40;

// Random weights; layers 1 and 3 of four, or all, have a window, which may be the row's chunk.
std::unique_ptr<Model> windowed_model(bool in_all_layers, bool chunked) {
  auto config = parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 211,
      "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512})");
  EXPECT_TRUE(config) << config.error().message();
  if (in_all_layers) {
    config->groups[0].problem.window = kWindow;
    config->groups[0].problem.chunked = chunked;
  } else {
    config->groups[0].name = "full";
    config->groups[0].layers = {0, 2};
    LayerGroupConfig window = config->groups[0];
    window.name = "window";
    window.problem.window = kWindow;
    window.problem.chunked = chunked;
    window.layers = {1, 3};
    window.rope.theta = 500;  // and other rope angles
    config->groups.push_back(window);
  }
  LoadOptions options;
  options.seed = 7;
  auto model = make_dummy_model(*config, options);
  EXPECT_TRUE(model) << model.error().message();
  return std::move(*model);
}

// The answer by the runner alone, over pages that are never released: the prompt in one step, then
// token by token.
std::vector<std::int32_t> answer_over_all_pages(const Model& model,
                                                const RealSetup::Options& options,
                                                std::vector<std::int32_t> tokens, int answer) {
  RealSetup setup(model, options);
  auto runner = Runner::create(model, setup.cache());
  EXPECT_TRUE(runner);
  std::vector<std::vector<PageId>> pages;
  for (std::size_t g = 0; g < setup.cache().groups(); ++g) {
    pages.push_back(*setup.cache().ledger(g).allocate(setup.cache().ledger(g).total()));
  }
  std::vector<std::int32_t> out;
  std::size_t computed = 0;
  while (std::ssize(out) < answer) {
    const BatchItem item{computed == 0 ? Phase::extend : Phase::decode, pages,
                         static_cast<std::int32_t>(computed), std::span(tokens).subspan(computed),
                         1};
    EXPECT_TRUE(runner->launch({&item, 1}, setup.ops(), false) && runner->collect());
    computed = tokens.size();
    const auto logits = *runner->logits(0, 0, setup.ops());
    out.push_back(
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(out.back());
  }
  return out;
}

struct WindowCase {
  bool chunked;
  const char* layout;
  const char* prefill;
  const char* decode;
};

class Windows : public testing::TestWithParam<WindowCase> {
 protected:
  RealSetup::Options options() const {
    return {.prefill = GetParam().prefill,
            .decode = GetParam().decode,
            .layout = GetParam().layout,
            .page_size = 16};
  }
};

TEST_P(Windows, PagesThatAreGivenBackChangeNothing) {
  for (const bool all : {false, true}) {
    const auto model = windowed_model(all, GetParam().chunked);
    std::vector<Request> requests;
    std::vector<std::vector<std::int32_t>> want;
    for (std::int32_t i = 0; i < 4; ++i) {
      requests.push_back(greedy(make_prompt(*model, 60 + 31 * i, i, 40), 60));
      want.push_back(answer_over_all_pages(*model, options(), requests.back().prompt, 60));
    }
    for (const std::int64_t chunk : {7, 64, 256}) {
      for (const bool prefix_cache : {true, false}) {
        RealSetup::Options small = options();
        small.tokens = 320;  // one and a half of the longest answers
        RealSetup setup(*model, small);
        Engine engine = setup.engine({.chunked_prefill_size = chunk, .prefix_cache = prefix_cache});
        std::map<RequestId, std::size_t> index;
        std::vector<std::vector<std::int32_t>> got(requests.size());
        for (const Request& r : requests) index.emplace(*engine.submit(r), index.size());
        while (!engine.idle()) {
          setup.cache().poison_free();
          const auto report = engine.step();
          ASSERT_TRUE(report) << report.error().message();
          for (const TokenEvent& e : report->tokens) {
            got[index.at(e.request)].push_back(e.sampled.token);
          }
        }
        EXPECT_EQ(got, want) << (all ? "all layers" : "some layers") << ", chunks of " << chunk
                             << (prefix_cache ? ", prefix cache" : "");
        EXPECT_EQ(engine.stats().held_pages, 0);
        if (!all) {
          EXPECT_GT(engine.stats().preemptions, 0);
        }
      }
    }
  }
}

TEST_P(Windows, ALongRequestHoldsItsWindowOnly) {
  const auto model = windowed_model(true, GetParam().chunked);
  RealSetup::Options few = options();
  few.tokens = 144;  // nine pages; the request grows to 250 tokens
  RealSetup setup(*model, few);
  Engine engine = setup.engine({.chunked_prefill_size = 32, .prefix_cache = false});
  EXPECT_EQ(engine.capacity(), 256);
  const Request request = greedy(make_prompt(*model, 200), 50);
  const auto id = engine.submit(request);
  ASSERT_TRUE(id) << id.error().message();
  std::vector<std::int32_t> got;
  while (!engine.idle()) {
    setup.cache().poison_free();
    const auto report = engine.step();
    ASSERT_TRUE(report);
    for (const TokenEvent& e : report->tokens) got.push_back(e.sampled.token);
    // At most 39 tokens before a boundary, up to 16 after it.
    EXPECT_LE(engine.stats().held_pages, 4);
  }
  EXPECT_EQ(got, answer_over_all_pages(*model, options(), request.prompt, 50));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Windows,
                         testing::Values(WindowCase{false, "gqa_bf16", "inplace", "inplace"},
                                         WindowCase{false, "gqa_fp8", "inplace", "inplace"},
                                         WindowCase{false, "gqa_fp8", "gather", "gather"},
                                         WindowCase{true, "gqa_bf16", "inplace", "inplace"},
                                         WindowCase{true, "gqa_fp8", "gather", "gather"}),
                         [](const auto& test) {
                           return std::string(test.param.layout) + "_" + test.param.prefill +
                                  (test.param.chunked ? "_chunks" : "");
                         });

// A shared system prompt is reused in layers with a window, too.
TEST(WindowsPrefix, IsFoundWhereTheWindowIsWhole) {
  for (const bool chunked : {false, true}) {
    const auto model = windowed_model(false, chunked);
    // The last page of 161 tokens begins with a chunk.
    for (const std::int32_t length : {150, 161}) {
      SCOPED_TRACE(std::to_string(length) + (chunked ? " chunks" : ""));
      RealSetup setup(*model, {.tokens = 1024});
      Engine engine = setup.engine({});
      const auto prompt = make_prompt(*model, length);
      serve_real(engine, {greedy(prompt, 20)});
      const RealAnswer again = serve_real(engine, {greedy(prompt, 20)})[0];
      EXPECT_EQ(again.finished->cached_tokens, length - 1);
      EXPECT_EQ(again.text(), answer_over_all_pages(*model, {}, prompt, 20));
    }
  }
}

}  // namespace
}  // namespace lathe
