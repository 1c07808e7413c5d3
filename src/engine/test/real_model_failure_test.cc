// Impossible requests, and small checkpoints with NaN written into their weights.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "engine/test/real_model_test_util.h"
#include "io/checkpoint/safetensors.h"
#include "io/files/read_file.h"

namespace lathe {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(Engine& engine, const Request& request) {
  const auto id = engine.submit(request);
  return id ? "accepted" : id.error().message();
}

RealAnswer clean_answer(const Model& model, const Request& request,
                        const RealSetup::Options& options = {}) {
  RealSetup setup(model, options);
  Engine engine = setup.engine({});
  return serve_real(engine, {request})[0];
}

TEST(RealModelInput, IsRefusedWithNumbersAndLeavesTheEngineAsItWas) {
  for (const char* name : {"qwen3", "deepseek_v32"}) {
    const auto model = load_real(name);
    // A pool smaller than the context.
    RealSetup setup(*model, {.context = 128, .tokens = 100});
    Engine engine = setup.engine({});
    EXPECT_EQ(refusal(engine, greedy({})), "prompt: wanted at least one token, got none");
    EXPECT_EQ(refusal(engine, greedy({3, 211})),
              "prompt[1]: wanted a token from 0 to 210, got 211");
    EXPECT_EQ(refusal(engine, greedy({-1})), "prompt[0]: wanted a token from 0 to 210, got -1");
    EXPECT_EQ(refusal(engine, greedy(make_prompt(*model, 200))),
              "--context-length: wanted at most 128 tokens, got 200 of the prompt + 24 of the "
              "answer = 224; --context-length 224, a shorter prompt or a smaller max_new_tokens");
    // No flag extends the model's own context.
    EXPECT_EQ(refusal(engine, greedy(make_prompt(*model, 600))),
              "--context-length: wanted at most 128 tokens, got 600 of the prompt + 24 of the "
              "answer = 624; a shorter prompt or a smaller max_new_tokens");
    EXPECT_EQ(refusal(engine, greedy(make_prompt(*model, 100))),
              "--max-total-tokens: wanted at most 112 tokens, which is what the cache's 7 pages of "
              "16 hold, got 100 of the prompt + 24 of the answer = 124; --max-total-tokens 124, a "
              "smaller --kv-layout or --kv-cache-dtype, or a smaller max_new_tokens");
    Request endless = greedy(make_prompt(*model, 112));
    endless.sampling.max_tokens.reset();
    EXPECT_THAT(refusal(engine, endless), HasSubstr("112 of the prompt + 1 of the answer = 113"));
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(engine.stats().held_pages, 0);

    // The largest request that fits.
    const Request largest = greedy(make_prompt(*model, 88));
    const auto got = serve_real(engine, {largest});
    EXPECT_TRUE(same(got[0], clean_answer(*model, largest, {.context = 128})));
    EXPECT_EQ(got[0].finished->reason, FinishReason::length);
  }
}

class PoisonedModel : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::path(testing::TempDir()) / (std::string("lathe_poisoned_") + test->name());
    fs::remove_all(dir_);
    clean_ = load_real("qwen3_moe");
  }
  void TearDown() override { fs::remove_all(dir_); }

  /// Loads the checkpoint with NaN as element `at` of a bf16 tensor.
  std::unique_ptr<Model> load_with_nan(const std::string& tensor, std::size_t at) {
    // Weights stay memory-mapped, so each model needs a directory of its own.
    const fs::path copy = dir_ / tensor;
    fs::create_directories(dir_);
    fs::copy(checkpoint_dir(std::string(LATHE_TEST_DATA) + "/models/qwen3_moe"), copy);
    std::string bytes = *read_file(copy / "model.safetensors");
    const auto header = parse_safetensors_header(std::as_bytes(std::span(bytes)));
    EXPECT_TRUE(header);
    bool found = false;
    for (const SafetensorsEntry& t : header->tensors) {
      if (t.name != tensor) continue;
      EXPECT_EQ(t.dtype, SafetensorsDType::BF16);
      bytes.replace(static_cast<std::size_t>(t.begin) + 2 * at, 2, "\xff\xff");
      found = true;
    }
    EXPECT_TRUE(found) << tensor;
    std::ofstream(copy / "model.safetensors", std::ios::binary) << bytes;
    auto model = load_model(copy.string(), {});
    EXPECT_TRUE(model) << model.error().message();
    return std::move(*model);
  }
  const Model& clean() const { return *clean_; }

 private:
  fs::path dir_;
  std::unique_ptr<Model> clean_;
};

std::string error_of(const RealAnswer& a) {
  if (!a.finished || a.finished->reason != FinishReason::error) return "no error";
  return a.finished->error->message();
}

TEST_F(PoisonedModel, ErrorNamesLayerAndStep) {
  const std::size_t hidden = 80;
  const auto bad_layer = load_with_nan("model.layers.1.mlp.down_proj.weight", 5);
  const auto bad_head = load_with_nan("lm_head.weight", 17 * hidden);
  // A prompt in three chunks; only the last one computes logits.
  const Request request = greedy(make_prompt(clean(), 20));
  for (const auto& [model, where, step] :
       {std::tuple{bad_layer.get(), "after layer 1", 1}, {bad_head.get(), "in the logits", 3}}) {
    for (const bool debug_nan : {true, false}) {
      RealSetup setup(*model, {});
      Engine engine = setup.engine({.chunked_prefill_size = 8, .debug_nan = debug_nan});
      const RealAnswer got = serve_real(engine, {request})[0];
      EXPECT_TRUE(got.tokens.empty());
      EXPECT_EQ(error_of(got),
                debug_nan ? "logits of request 1: wanted finite numbers, got NaN or Inf in step " +
                                std::to_string(step) + ", " + where
                          : "logits of request 1: wanted finite numbers, got NaN or Inf in step 3; "
                            "--debug-nan names the layer");
      EXPECT_EQ(engine.stats().held_pages, 0);
      EXPECT_EQ(engine.stats().prefix_cache_tokens, 0);
    }
  }
}

// NaN in one token's embedding ends the request with that token in its prompt. Others in the batch,
// and one that shares the prompt up to that token, get the answers of the intact model.
TEST_F(PoisonedModel, OthersGoOn) {
  std::vector<Request> requests;
  std::vector<RealAnswer> want;
  for (std::int32_t i = 0; i < 5; ++i) {
    requests.push_back(greedy(make_prompt(clean(), 40 - 5 * i, i, 20), 8));
    want.push_back(clean_answer(clean(), requests.back()));
  }
  const auto used = [&](std::int32_t token) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto text = want[i].text();
      if (std::count(requests[i].prompt.begin(), requests[i].prompt.end(), token) > 0 ||
          std::count(text.begin(), text.end(), token) > 0) {
        return true;
      }
    }
    return false;
  };
  std::int32_t token = 0;
  while (used(token)) ++token;
  Request bad = requests[0];
  bad.prompt[30] = token;
  const std::size_t hidden = 80;
  const auto model =
      load_with_nan("model.embed_tokens.weight", static_cast<std::size_t>(token) * hidden + 3);
  for (const bool debug_nan : {true, false}) {
    RealSetup setup(*model, {.tokens = 1024});
    Engine engine = setup.engine({.chunked_prefill_size = 16, .debug_nan = debug_nan});
    std::vector<Request> all = requests;
    all.insert(all.begin() + 1, bad);
    for (int round = 0; round < 2; ++round) {
      std::vector<RealAnswer> got = serve_real(engine, all);
      EXPECT_THAT(error_of(got[1]),
                  AllOf(HasSubstr(round == 0 ? "logits of request 2:" : "logits of request 8:"),
                        HasSubstr(debug_nan ? ", in the embedding" : "; --debug-nan names")));
      got.erase(got.begin() + 1);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got[i], want[i])) << i << ", round " << round;
      }
    }
    EXPECT_EQ(engine.stats().held_pages, 0);
  }
}

// NaN in one expert ends the requests with a token routed to it, wherever in their answers.
TEST_F(PoisonedModel, ExpertsThatARequestDoesNotTakeDoNotMatter) {
  const auto model = load_with_nan("model.layers.2.mlp.experts.3.down_proj.weight", 7);
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 16; ++i) requests.push_back(greedy({11 * i + 5}, 3));
  RealSetup setup(*model, {.tokens = 1024});
  Engine engine = setup.engine({.debug_nan = true});
  const auto got = serve_real(engine, requests);
  std::int64_t sound = 0, at_once = 0, later = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    RealAnswer want = clean_answer(clean(), requests[i]);
    if (got[i].finished->reason == FinishReason::length) {
      ++sound;
    } else {
      EXPECT_THAT(error_of(got[i]), HasSubstr("step " + std::to_string(got[i].tokens.size() + 1) +
                                              ", after layer 2"));
      ++(got[i].tokens.empty() ? at_once : later);
      want.tokens.resize(got[i].tokens.size());
    }
    EXPECT_TRUE(same(got[i], want)) << i;
  }
  EXPECT_GT(sound, 0);
  EXPECT_GT(at_once, 0);
  EXPECT_GT(later, 0);
}

}  // namespace
}  // namespace lathe
