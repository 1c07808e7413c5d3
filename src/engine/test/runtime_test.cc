// Runtime: refusals, defaults, and answers equal to those of transformers.
#include "engine/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/checkpoint/safetensors.h"
#include "io/files/mapped_file.h"
#include "model/test/generated_checkpoint.h"

namespace lathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string directory(const std::string& name) {
  return std::string(LATHE_TEST_DATA) + "/models/" + name;
}

RuntimeOptions small(const std::string& name) {
  RuntimeOptions o;
  o.model = checkpoint_dir(directory(name));
  o.device = "cpu";
  o.threads = 1;
  o.plan_request.max_running_requests = 4;
  o.plan_request.chunked_prefill_size = 128;
  return o;
}

std::string refusal(const RuntimeOptions& options) {
  const auto runtime = Runtime::create(options);
  if (runtime) return "created";
  if (const auto* e = std::get_if<Error>(&runtime.error())) return e->message();
  return "a refused plan";
}

TEST(Runtime, RefusesWhatItCannotRun) {
  RuntimeOptions o = small("qwen3");
  EXPECT_EQ(refusal(o), "created");
  o.device = "tpu";
  EXPECT_THAT(refusal(o), AllOf(HasSubstr("--device: wanted one of auto, cuda, ref, cpu"),
                                HasSubstr("got \"tpu\"")));
  o.device = "sm100";
  EXPECT_THAT(refusal(o), AllOf(HasSubstr("--device: wanted a device that runs whole models"),
                                HasSubstr("got sm100"), HasSubstr("--device cpu")));
  o = small("qwen3");
  o.plan_request.context_length = 512;
  EXPECT_EQ(refusal(o), "created");
  o.plan_request.context_length = 513;
  EXPECT_THAT(
      refusal(o),
      HasSubstr("--context-length: wanted at most 512 tokens, the model's context, got 513; "
                "--context-length 512"));
  o = small("qwen3");
  o.engine.max_running_requests = 5;
  EXPECT_THAT(refusal(o), HasSubstr("--max-running-requests: wanted 1 to 4"));
}

TEST(Runtime, RefusesWhatItCannotRead) {
  RuntimeOptions o = small("nowhere");
  EXPECT_THAT(refusal(o), HasSubstr("nowhere"));
  o.model.clear();
  EXPECT_NE(refusal(o), "created");
  o.dummy = true;
  o.config_file = directory("nowhere") + "/config.json";
  EXPECT_THAT(refusal(o), HasSubstr("nowhere/config.json"));
  // The plan would be for one model and the weights from another.
  o = small("qwen3");
  o.config_file = directory("deepseek_v3") + "/config.json";
  EXPECT_THAT(refusal(o), AllOf(HasSubstr("--config"), HasSubstr("--load-format dummy")));
}

TEST(Runtime, APlanThatIsRefusedGivesItsReasons) {
  RuntimeOptions o = small("deepseek_v3");
  o.plan_request.decode = "ragged";
  auto runtime = Runtime::create(o);
  ASSERT_FALSE(runtime);
  const auto* refused = std::get_if<Refusal>(&runtime.error());
  ASSERT_NE(refused, nullptr);
  EXPECT_THAT(refused->headline, HasSubstr("decode ragged"));
  ASSERT_FALSE(refused->reasons.empty());
  EXPECT_EQ(refused->reasons[0].rule, Rule::phase);

  o = small("deepseek_v3");
  o.plan_request.prefill = "nonsense";
  runtime = Runtime::create(o);
  ASSERT_FALSE(runtime);
  refused = std::get_if<Refusal>(&runtime.error());
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->reasons[0].rule, Rule::request);
  EXPECT_EQ(refused->reasons[0].field, "--prefill-attention-backend");
}

TEST(Runtime, Defaults) {
  RuntimeOptions o = small("deepseek_v3");
  o.device = "auto";
  o.plan_request.layers = 61;
  auto runtime = Runtime::create(o);
  ASSERT_TRUE(runtime);
  Runtime& r = **runtime;
  EXPECT_EQ(r.machine().device, Device::cpu);
  EXPECT_EQ(r.plan().layers(), 3);
  EXPECT_EQ(r.plan().context_length(), 512);
  // Room for all running requests, each as long as the context.
  EXPECT_EQ(r.cache().tokens(), 4 * 512);
  EXPECT_EQ(r.engine().capacity(), 512);
  EXPECT_EQ(r.engine().stats().total_pages, 4 * 512 / r.cache().page_size());

  o.plan_request.context_length = 100;
  o.plan_request.page_size = 16;
  o.plan_request.max_total_tokens = 70;
  runtime = Runtime::create(o);
  ASSERT_TRUE(runtime);
  EXPECT_EQ((*runtime)->plan().context_length(), 100);
  EXPECT_EQ((*runtime)->cache().tokens(), 80);
  EXPECT_EQ((*runtime)->engine().capacity(), 80);
}

// What transformers computes for the fixture's prompt of 64 tokens.
struct Expected {
  std::vector<std::int32_t> prompt;
  std::vector<float> logits;  // after the last token
};

Expected expected_of(const std::string& name) {
  const auto file = MappedFile::open(directory(name) + "/reference.safetensors");
  EXPECT_TRUE(file);
  const auto header = parse_safetensors_header(file->bytes());
  EXPECT_TRUE(header);
  Expected out;
  const auto read = [&](const SafetensorsEntry& t, auto& to) {
    to.resize(static_cast<std::size_t>(t.end - t.begin) / 4);
    std::memcpy(to.data(), file->bytes().data() + t.begin, 4 * to.size());
  };
  for (const SafetensorsEntry& t : header->tensors) {
    if (t.name == "prompt.64.tokens") read(t, out.prompt);
    if (t.name != "prompt.64.logits_bf16_cache") continue;
    std::vector<float> rows;
    read(t, rows);
    out.logits.assign(rows.end() - static_cast<std::ptrdiff_t>(t.shape[1]), rows.end());
  }
  return out;
}

// A chunk has the size that was asked for, even if more requests may decode in one step.
TEST(Runtime, ChunksAreNoLargerThanAskedFor) {
  RuntimeOptions o = small("qwen3");
  o.plan_request.chunked_prefill_size = 3;
  o.plan_request.max_running_requests = 16;
  auto runtime = Runtime::create(o);
  ASSERT_TRUE(runtime);
  Engine& engine = (*runtime)->engine();
  Request request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_TRUE(engine.submit(request));
  const auto step = engine.step();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->prefill_rows, 3);
}

TEST(Runtime, AnswersAsTransformersDoes) {
  for (const char* name :
       {"llama", "llama_bias", "qwen2", "qwen2_window", "qwen3", "qwen3_moe", "deepseek_v3",
        "deepseek_v3_dense", "deepseek_v3_fp8", "deepseek_v32", "glm_moe_dsa"}) {
    const Expected expected = expected_of(name);
    ASSERT_EQ(expected.prompt.size(), 64u) << name;
    RuntimeOptions o = small(name);
    o.engine.chunked_prefill_size = 24;
    o.dtype = "float32";  // the reference rounds no activation
    auto runtime = Runtime::create(o);
    ASSERT_TRUE(runtime) << name << ": " << refusal(o);
    Engine& engine = (*runtime)->engine();
    Request request;
    request.prompt = expected.prompt;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 1;
    request.sampling.logprobs = 211;
    ASSERT_TRUE(engine.submit(request)) << name;
    std::vector<TokenLogprob> got;
    std::int32_t token = -1;
    while (!engine.idle()) {
      const auto report = engine.step();
      ASSERT_TRUE(report) << name;
      for (const TokenEvent& e : report->tokens) {
        token = e.sampled.token;
        got = e.sampled.top;
      }
    }
    const auto best = std::max_element(expected.logits.begin(), expected.logits.end());
    EXPECT_EQ(token, best - expected.logits.begin()) << name;
    double sum = 0;
    for (const float x : expected.logits) sum += std::exp(double{x} - *best);
    ASSERT_EQ(got.size(), expected.logits.size()) << name;
    double worst = 0;
    for (const TokenLogprob& t : got) {
      const double want =
          expected.logits[static_cast<std::size_t>(t.token)] - double{*best} - std::log(sum);
      worst = std::max(worst, std::abs(t.logprob - want));
    }
    RecordProperty(name, std::to_string(worst));
    EXPECT_LE(worst, 1e-2) << name;
  }
}

TEST(Runtime, DraftsByTheirFlags) {
  RuntimeOptions o = small("qwen3");
  o.plan_request.draft_tokens = 3;
  EXPECT_THAT(refusal(o), HasSubstr("--draft-tokens: wanted a drafter with it"));
  o.draft = "eagle";
  EXPECT_THAT(
      refusal(o),
      HasSubstr("--draft: wanted none, ngram, mtp or a draft model's directory, got \"eagle\""));
  o.draft = "ngram";
  o.plan_request.draft_tokens = 16;
  EXPECT_THAT(refusal(o), HasSubstr("--draft-tokens: wanted 1 to 15, got 16"));
  o.plan_request.draft_tokens = 0;
  const auto plain = Runtime::create(small("qwen3"));
  const auto drafts = Runtime::create(o);
  ASSERT_TRUE(plain);
  ASSERT_TRUE(drafts);
  EXPECT_EQ((*plain)->plan().draft_tokens(), 0);
  EXPECT_EQ((*drafts)->plan().draft_tokens(), 4);
  EXPECT_EQ((*drafts)->draft().kind, DraftKind::ngram);
  // The kernels are the same, and so are the bits.
  const Plan& a = (*plain)->plan().groups.front().plan;
  const Plan& b = (*drafts)->plan().groups.front().plan;
  for (const Phase phase : {Phase::extend, Phase::decode}) {
    ASSERT_EQ(a.phase(phase).routes.size(), b.phase(phase).routes.size());
    for (std::size_t i = 0; i < a.phase(phase).routes.size(); ++i) {
      EXPECT_EQ(a.phase(phase).routes[i].kernel, b.phase(phase).routes[i].kernel);
    }
  }
  EXPECT_EQ(a.caches, b.caches);
  EXPECT_GT((*drafts)->plan().budget(BudgetKind::activations)->bytes,
            (*plain)->plan().budget(BudgetKind::activations)->bytes);
}

// The error for a model without a draft layer says what the model has, and what to do.
TEST(Runtime, RefusesADraftLayerThatIsNotThere) {
  RuntimeOptions o = small("qwen3");
  o.draft = "mtp";
  EXPECT_THAT(refusal(o), AllOf(HasSubstr("--draft: wanted a model whose draft layer runs"),
                                HasSubstr("got Qwen3ForCausalLM"), HasSubstr("--draft ngram")));
  o = small("deepseek_v32");
  o.draft = "mtp";
  EXPECT_THAT(refusal(o), AllOf(HasSubstr("--draft: wanted a draft layer: model.layers.2.* among"),
                                HasSubstr("mtp.safetensors"), HasSubstr("got neither in "),
                                HasSubstr("--draft ngram")));
  o = small("deepseek_v3");  // its draft layer has two tensors of a wrong shape
  o.draft = "mtp";
  EXPECT_THAT(refusal(o),
              AllOf(HasSubstr("missing: model.layers.3.input_layernorm.weight"),
                    HasSubstr("of another shape"), HasSubstr("model.layers.3.eh_proj.weight")));
}

// A draft layer is one more layer of weights and of pools, in every sum.
TEST(Runtime, PlansForTheDraftLayer) {
  RuntimeOptions o = small("");
  o.model = std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32";
  o.plan_request.layout = "mla_fp8";
  o.plan_request.max_total_tokens = 1024;
  const auto plain = Runtime::create(o);
  o.draft = "mtp";
  const auto drafts = Runtime::create(o);
  ASSERT_TRUE(plain);
  ASSERT_TRUE(drafts) << refusal(o);
  EXPECT_EQ((*drafts)->plan().layers(), (*plain)->plan().layers() + 1);
  EXPECT_EQ((*drafts)->config().layers, (*plain)->config().layers);
  EXPECT_EQ((*drafts)->cache().bytes() * 4, (*plain)->cache().bytes() * 5);
  EXPECT_EQ((*drafts)->plan().bytes_per_token() * 4, (*plain)->plan().bytes_per_token() * 5);
  // The file's tensors, and copies of its kv_b.
  EXPECT_GT((*drafts)->model().weight_bytes(), (*plain)->model().weight_bytes() + 2'900'000);
  EXPECT_EQ((*drafts)->model().step_weights(1).bytes, (*plain)->model().step_weights(1).bytes);
  EXPECT_GT((*drafts)->plan().budget(BudgetKind::activations)->bytes,
            (*plain)->plan().budget(BudgetKind::activations)->bytes);
  Engine& engine = (*drafts)->engine();
  Request request;
  request.prompt = {3, 5, 8};
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(engine.submit(request));
  while (!engine.idle()) ASSERT_TRUE(engine.step());
  EXPECT_GT(engine.stats().drafts.checks, 0);
}

TEST(Runtime, RandomWeightsFromAConfigurationAlone) {
  RuntimeOptions o = small("");
  o.model.clear();
  o.config_file = directory("glm_moe_dsa") + "/config.json";
  o.dummy = true;
  std::int64_t done = 0, all = 0;
  o.on_progress = [&](std::int64_t d, std::int64_t a) {
    EXPECT_GE(d, done);
    done = d;
    all = a;
  };
  auto runtime = Runtime::create(o);
  ASSERT_TRUE(runtime) << refusal(o);
  EXPECT_GT(all, 0);
  EXPECT_EQ(done, all);
  EXPECT_EQ((*runtime)->config().architecture, "GlmMoeDsaForCausalLM");
  Engine& engine = (*runtime)->engine();
  Request request;
  request.prompt = {3, 5, 8};
  request.sampling.max_tokens = 4;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(engine.submit(request));
  std::size_t tokens = 0;
  while (!engine.idle()) {
    const auto report = engine.step();
    ASSERT_TRUE(report);
    tokens += report->tokens.size();
    for (const Finished& f : report->finished) EXPECT_EQ(f.reason, FinishReason::length);
  }
  EXPECT_EQ(tokens, 4u);
}

}  // namespace
}  // namespace lathe
