// Separate draft models with real targets: the pair of shipped checkpoints, and pairs of random
// models of every architecture, which draft wrong.
#include "engine/draft/check_draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/test_scale.h"
#include "engine/draft/model_drafter.h"
#include "engine/draft/test/drafted_test_util.h"
#include "engine/draft/test/mtp_test_util.h"
#include "engine/runtime.h"
#include "engine/test/real_model_test_util.h"
#include "io/files/read_file.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string shipped(const std::string& name) {
  return std::string(LATHE_TEST_DATA) + "/../../models/" + name;
}

std::unique_ptr<Model> load_shipped(const std::string& name) {
  auto model = load_model(shipped(name), {});
  EXPECT_TRUE(model) << model.error().message();
  return std::move(*model);
}

// A target and a draft model, each with its own plan and pools. times > 1: serves the requests
// again in the same engine.
Drafted serve_pair(const Model& target, const RealSetup::Options& target_options,
                   const Model& draft, const RealSetup::Options& draft_options,
                   EngineOptions options, const std::vector<Request>& requests, int times = 1) {
  RealSetup setup(target, target_options), own(draft, draft_options);
  auto drafter = ModelDrafter::create(
      draft, own.cache(),
      {.prefill_rows = options.chunked_prefill_size, .prefix_cache = options.prefix_cache},
      own.ops());
  EXPECT_TRUE(drafter) << drafter.error().message();
  options.drafter = &*drafter;
  Engine engine = setup.engine(options);
  Drafted out;
  for (int i = 0; i < times; ++i) out.answers = serve_real(engine, requests, 1);
  out.stats = engine.stats();
  EXPECT_EQ(drafter->held_pages(), 0);
  return out;
}

// Prompts of the tasks that both models were trained on, greedy and with every filter, shorter and
// longer than the indexer's top-k of 128.
std::vector<Request> draft_requests(const Golden& golden) {
  const std::vector<std::int32_t> words = golden.ids("long.prompt");
  std::vector<Request> out;
  for (const std::int64_t length : {std::int64_t{1}, std::int64_t{125}, std::ssize(words)}) {
    out.push_back(greedy({words.begin(), words.begin() + length}));
  }
  out.push_back(greedy(golden.ids("short.prompt")));
  return and_drawn(std::move(out));
}

TEST(DraftModel, DraftsChangeNoBit) {
  const Golden golden;
  const auto target = load_shipped("tiny-v32"), draft = load_shipped("tiny-gqa");
  const std::vector<Request> requests = draft_requests(golden);
  for (const char* layout : {"mla_bf16", "mla_fp8_block"}) {
    const RealSetup::Options options{.prefill = "inplace", .layout = layout, .tokens = 4096};
    const std::vector<RealAnswer> want = serve_alone(*target, options, requests);
    for (const std::int64_t d : {1, 2, 4, 8}) {
      const Drafted got = serve_pair(*target, options, *draft, {.tokens = 4096},
                                     {.chunked_prefill_size = 40 + d, .draft_tokens = d}, requests);
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(same(got.answers[i], want[i])) << layout << ", request " << i << ", d " << d;
        EXPECT_EQ(got.answers[i].finished->reason, want[i].finished->reason);
      }
      EXPECT_GT(got.stats.drafts.checks, 20);
      EXPECT_GT(got.stats.drafts.all_accepted(), 20);
    }
  }
}

// A model drafts for itself, so every draft is right: with verify, decode and extend kernels in one
// step, chunks, a prefix cache, and both kinds of window.
class DraftsForItself : public testing::TestWithParam<const char*> {};

TEST_P(DraftsForItself, AllAreRight) {
  const auto model = load_real(GetParam());
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 6; ++i) {
    requests.push_back(greedy(make_prompt(*model, 3 + 17 * i, i / 2, 20), 20));
    if (i % 2 == 1) {
      requests.back().sampling.temperature = 0.9f;
      requests.back().sampling.seed = 5;
    }
  }
  const RealSetup::Options options{.prefill = "inplace", .tokens = 1024};
  const std::vector<RealAnswer> want = serve_alone(*model, options, requests);
  for (const std::int64_t chunk : {7, 64}) {
    const Drafted got = serve_pair(*model, options, *model, options,
                                   {.chunked_prefill_size = chunk, .draft_tokens = 3}, requests, 2);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(same(got.answers[i], want[i])) << "request " << i;
    }
    const DraftStats& d = got.stats.drafts;
    EXPECT_GT(d.all_drafted(), 50);
    EXPECT_EQ(d.all_accepted(), d.all_drafted());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DraftsForItself,
                         testing::Values("llama", "mistral", "qwen2_window", "qwen3_moe",
                                         "gpt_oss_bf16", "gemma3_new", "deepseek_v3",
                                         "deepseek_v32", "glm_moe_dsa"),
                         [](const auto& test) { return std::string(test.param); });

// Many requests, in small chunks, in pools for a few: preempted and resumed, cached and not. The
// draft model's pool is smaller still.
TEST(DraftModel, CompanyAndPreemptionChangeNothing) {
  const Golden golden;
  const auto target = load_shipped("tiny-v32"), draft = load_shipped("tiny-gqa");
  const std::vector<Request> requests = company_of(golden.ids("long.prompt"), test_seed(34));
  RealSetup::Options options{.prefill = "inplace"};
  const std::vector<RealAnswer> want = serve_alone(*target, options, requests);
  for (const bool prefix_cache : {true, false}) {
    options.tokens = 256;
    const Drafted got = serve_pair(
        *target, options, *draft, {.tokens = 192},
        {.chunked_prefill_size = 19, .prefix_cache = prefix_cache, .draft_tokens = 3}, requests);
    expect_company_changed_nothing(got, want);
  }
}

std::string draft_refusal(const RuntimeOptions& o) {
  const auto runtime = Runtime::create(o);
  if (runtime) return "";
  if (const Error* e = std::get_if<Error>(&runtime.error())) return e->message();
  const Refusal& r = std::get<Refusal>(runtime.error());
  return r.headline + ": " + r.reasons.front().wanted + ", " + r.reasons.front().offered;
}

RuntimeOptions options_of(const std::string& target, const std::string& draft) {
  RuntimeOptions o;
  o.model = shipped(target);
  o.draft = draft;
  o.device = "cpu";
  o.threads = 1;
  o.plan_request.context_length = 512;
  o.plan_request.chunked_prefill_size = 128;
  o.plan_request.max_running_requests = 4;
  return o;
}

TEST(DraftModel, RefusesAModelThatDoesNotFit) {
  EXPECT_THAT(draft_refusal(options_of("tiny-v32", std::string(LATHE_TEST_DATA) + "/models/llama")),
              AllOf(HasSubstr("--draft: wanted a draft model with the model's vocabulary, 2048 "),
                    HasSubstr("models/llama with "), HasSubstr("the same tokenizer")));
  EXPECT_THAT(draft_refusal(options_of("tiny-v32", shipped("tiny-v4"))),
              AllOf(HasSubstr("--draft: wanted a draft model without a state between tokens"),
                    HasSubstr("tiny-v4, DeepseekV4ForCausalLM"), HasSubstr("--draft ngram")));
  EXPECT_THAT(draft_refusal(options_of("tiny-v32", "no/such/model")), HasSubstr("no/such/model"));
  RuntimeOptions o = options_of("tiny-v32", shipped("tiny-gqa"));
  o.plan_request.draft_tokens = 16;
  EXPECT_THAT(draft_refusal(o), HasSubstr("--draft-tokens: wanted 1 to 15, got 16"));
  // The target alone fits with this many tokens, the pair does not.
  o.plan_request.draft_tokens = 0;
  o.plan_request.context_length = 8192;
  o.plan_request.max_total_tokens =
      describe_machine(Device::cpu).memory_bytes / (5136 + 4096 / 2);  // bytes per token
  EXPECT_THAT(draft_refusal(o),
              AllOf(HasSubstr("does not fit"), HasSubstr(", beside the draft model "),
                    HasSubstr("tiny-gqa"), HasSubstr("tokens next to")));
}

// Two tokens are swapped: the error names the first, with both texts.
TEST(DraftModel, RefusesAnotherTokenizer) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "lathe_draft_model_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const char* file : {"config.json", "model.safetensors", "generation_config.json"}) {
    std::filesystem::create_symlink(std::filesystem::absolute(shipped("tiny-gqa")) / file,
                                    folder / file);
  }
  EXPECT_THAT(draft_refusal(options_of("tiny-v32", folder.string())), HasSubstr("tokenizer.json"));
  const std::string text = *read_file(shipped("tiny-gqa") + "/tokenizer.json");
  // A file with other bytes but the same tokens is accepted.
  std::ofstream(folder / "tokenizer.json") << text + "\n";
  EXPECT_EQ(draft_refusal(options_of("tiny-v32", folder.string())), "");
  auto json = nlohmann::json::parse(text);
  std::swap(json["model"]["vocab"]["Start"], json["model"]["vocab"]["otal"]);
  std::ofstream(folder / "tokenizer.json") << json.dump();
  EXPECT_THAT(draft_refusal(options_of("tiny-v32", folder.string())),
              AllOf(HasSubstr("--draft: wanted a draft model with the tokens of "),
                    HasSubstr("tiny-v32: 349 is \"Start\", got \"otal\" in"),
                    HasSubstr("lathe_draft_model_test")));
  std::filesystem::remove_all(folder);
}

// The plan has weights, pools and buffers of both models. The flags are spelled as SGLang does.
TEST(DraftModel, IsInTheRuntimesBudgets) {
  RuntimeOptions o = options_of("tiny-v32", "none");
  const auto plain = Runtime::create(o);
  o.draft = "STANDALONE";
  o.draft_model = shipped("tiny-gqa");
  const auto drafts = Runtime::create(o);
  ASSERT_TRUE(plain);
  ASSERT_TRUE(drafts) << draft_refusal(o);
  EXPECT_EQ((*plain)->draft_memory().plan, nullptr);
  const DraftMemory draft = (*drafts)->draft_memory();
  ASSERT_NE(draft.plan, nullptr);
  EXPECT_EQ((*drafts)->draft().text(), o.draft_model);
  EXPECT_EQ((*drafts)->plan().draft_tokens(), 4);
  // Four layers of 2 heads of 128 keys and values in bf16.
  const std::int64_t tokens = (*drafts)->cache().tokens();
  EXPECT_EQ(tokens, (*plain)->cache().tokens());
  EXPECT_EQ(draft.pool_bytes(tokens), 4.0 * 1024 * static_cast<double>(tokens));
  EXPECT_GT(draft.weight_bytes, 10'000'000);
  EXPECT_GT(draft.buffer_bytes(), 0);
  const Machine& machine = (*drafts)->machine();
  EXPECT_EQ(beside_draft(machine, draft, {}).memory_bytes,
            machine.memory_bytes - draft.weight_bytes - draft.buffer_bytes() -
                static_cast<std::int64_t>(draft.pool_bytes(draft.plan->block_tokens)));
  Engine& engine = (*drafts)->engine();
  ASSERT_TRUE(engine.submit(greedy({1, 2, 3, 4, 1, 2, 3, 4}, 12)));
  while (!engine.idle()) ASSERT_TRUE(engine.step());
  EXPECT_GT(engine.stats().drafts.checks, 0);
}

}  // namespace
}  // namespace lathe
