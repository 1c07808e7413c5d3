// The parts of a recorded step other than the model: schedules, tokens of the previous step, and
// sampling. All of them read lists on the device. So a replay must give the same as an unrecorded
// step, whatever is in the lists.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/runner/runner.h"
#include "engine/test/gpu_engine_test_util.h"
#include "io/files/read_file.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe {
namespace {

const std::string kModels = std::string(LATHE_TEST_DATA) + "/../../models/";

// Fills all pages of a layer with bytes that are small numbers in every layout.
void fill_pages(GpuSetup& setup, std::mt19937& rng) {
  for (std::int32_t l = 0; l < setup.config().layers; ++l) {
    for (const PoolView& pool : {setup.cache().main(l), setup.cache().index(l)}) {
      if (pool.data == nullptr) continue;
      std::vector<std::byte> bytes(static_cast<std::size_t>(pool.bytes()));
      for (std::byte& b : bytes) b = static_cast<std::byte>(0x3c + rng() % 4);
      EXPECT_TRUE(setup.ops().backend->upload(setup.ops(), bytes, pool.data).ok());
    }
  }
}

// Decode steps of three requests over made-up keys, at positions that make other requests long each
// time. With a new runner for each step, no step runs twice under one key, so none is recorded.
Logits decoded(const std::string& model, GpuSetup::Sizes sizes, bool recorded,
               std::int64_t& graph_launches) {
  sizes.context = 192;
  sizes.plain_products = true;
  GpuSetup setup(model, sizes, {});
  std::mt19937 rng(17);
  fill_pages(setup, rng);
  std::vector<Runner> runners;
  for (int i = 0; i < 3; ++i) {
    runners.push_back(Runner::create(setup.model(), setup.cache(), true).value());
  }
  const std::vector<std::int32_t> tokens = some_tokens(160, setup.config().vocab);
  std::vector<std::vector<std::vector<PageId>>> pages;
  for (std::int32_t r = 0; r < 3; ++r) {
    pages.push_back({{PageId(1 + 3 * r), PageId(2 + 3 * r), PageId(3 + 3 * r)}});
  }
  Logits out;
  const auto step = [&](Runner& runner, std::array<std::int32_t, 3> cached) {
    std::vector<BatchItem> items(3);
    for (std::size_t r = 0; r < 3; ++r) {
      items[r].pages = pages[r];
      items[r].cached = cached[r];
      items[r].tokens = std::span(tokens).subspan(static_cast<std::size_t>(cached[r]), 1);
      items[r].logits = 1;
    }
    ASSERT_TRUE(runner.launch(items, setup.ops(), false).ok());
    ASSERT_TRUE(runner.collect().ok());
    for (std::size_t r = 0; r < 3; ++r) {
      const auto row = runner.logits(r, 0, setup.ops());
      ASSERT_TRUE(row.ok());
      out.emplace_back(row->begin(), row->end());
    }
  };
  const std::int64_t before = cuda::fake::counts().graph_launches;
  step(runners[0], {150, 10, 70});
  step(runners[recorded ? 0 : 1], {20, 140, 100});
  step(runners[recorded ? 0 : 2], {60, 30, 155});
  graph_launches = cuda::fake::counts().graph_launches - before;
  return out;
}

void expect_schedules_of_each_step(const std::string& model, const GpuSetup::Sizes& sizes) {
  SCOPED_TRACE(model);
  std::int64_t launches = 0;
  const Logits plain = decoded(model, sizes, false, launches);
  EXPECT_EQ(launches, 0);
  const Logits recorded = decoded(model, sizes, true, launches);
  EXPECT_EQ(launches, 2);
  ASSERT_EQ(plain.size(), 9u);
  ASSERT_EQ(recorded.size(), 9u);
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(recorded[i], plain[i]) << "row " << i;
    EXPECT_TRUE(std::ranges::all_of(plain[i], [](float x) { return std::isfinite(x); }));
  }
}

TEST(GpuRecordedSteps, SchedulesFollowTheLengths) {
  expect_schedules_of_each_step(kModels + "tiny-gqa", {});
  expect_schedules_of_each_step(kModels + "tiny-v32", {});
  auto dense = nlohmann::json::parse(*read_file(kModels + "tiny-v32/config.json"));
  for (const char* key : {"index_n_heads", "index_head_dim", "index_topk"}) dense.erase(key);
  dense["model_type"] = "deepseek_v3";
  dense["architectures"] = {"DeepseekV3ForCausalLM"};
  const auto dir = std::filesystem::path(::testing::TempDir()) /
                   ("lathe_recorded_steps_" + std::to_string(getpid()));
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << dense.dump();
  for (const bool invariant : {false, true}) {
    expect_schedules_of_each_step(dir, {.batch_invariant = invariant, .dummy = true});
  }
  std::filesystem::remove_all(dir);
}

struct Answer {
  std::vector<std::int32_t> tokens, top, asked;
  std::vector<double> logprobs;
  bool operator==(const Answer&) const = default;
};

struct ServedRun {
  std::map<std::uint64_t, Answer> answers;
  std::int64_t graph_launches = 0, steps_behind = 0;
  std::vector<double> idle;  // idle seconds before each recorded step that follows another
};

// Requests that sample by all rules, and end one after another.
ServedRun run(bool recorded) {
  EngineOptions options;
  options.debug_nan = !recorded;  // its steps are neither padded nor recorded
  GpuSetup setup(kModels + "tiny-v32",
                 {.context = 64, .requests = 8, .plain_products = true, .batch_invariant = true},
                 options);
  std::vector<SamplingParams> all(7);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].temperature = i % 3 == 0 ? 0 : 0.7f + 0.2f * static_cast<float>(i);
    all[i].seed = 100 + i;
    all[i].ignore_eos = true;
    all[i].max_tokens = i < 6 ? static_cast<std::int32_t>(4 + i) : 13;
  }
  all[0].temperature = 0;  // the last request left uses no rule
  all[6].temperature = 0;
  all[1].top_p = 0.8f;
  all[2].logit_bias = {{3, 4.5f}, {9, 2.0f}, {30, 6.0f}};
  all[3].logprobs = 3;
  all[3].logprob_ids = {17, 40};
  all[4].stop_token_ids = {7};  // ruled out until the answer has min_tokens
  all[4].min_tokens = 5;
  all[4].top_k = 20;
  all[5].logprobs = 0;
  all[1].repetition_penalty = 1.3f;  // until it ends, every step waits for the results before
  // Four more requests when those have ended. Their steps are recorded when three are left.
  for (std::int32_t i = 0; i < 4; ++i) {
    SamplingParams& p = all.emplace_back(all[6]);
    p.temperature = 0.6f * static_cast<float>(i);
    p.max_tokens = 4 + i;
  }
  ServedRun out;
  const auto submit = [&](std::size_t i) {
    Request r;
    r.prompt = some_tokens(static_cast<std::int64_t>(3 + i), setup.config().vocab);
    r.sampling = all[i];
    EXPECT_TRUE(setup.engine().submit(std::move(r)).ok());
  };
  const auto step = [&] {
    const auto report = setup.engine().step();
    ASSERT_TRUE(report.ok());
    out.steps_behind += setup.engine().in_flight();
    for (const TokenEvent& t : report->tokens) {
      Answer& a = out.answers[t.request.value];
      a.tokens.push_back(t.sampled.token);
      if (t.sampled.logprob) a.logprobs.push_back(*t.sampled.logprob);
      for (const TokenLogprob& p : t.sampled.top) {
        a.top.push_back(p.token);
        a.logprobs.push_back(p.logprob);
      }
      for (const TokenLogprob& p : t.sampled.asked) {
        a.asked.push_back(p.token);
        a.logprobs.push_back(p.logprob);
      }
    }
  };
  EXPECT_TRUE(setup.ops().backend->measure_idle(true).ok());
  const std::int64_t before = cuda::fake::counts().graph_launches;
  for (std::size_t i = 0; i < 7; ++i) submit(i);
  while (!setup.engine().idle() && !::testing::Test::HasFatalFailure()) step();
  for (std::size_t i = 7; i < 11; ++i) submit(i);
  while (!setup.engine().idle() && !::testing::Test::HasFatalFailure()) step();
  out.graph_launches = cuda::fake::counts().graph_launches - before;
  out.idle = setup.ops().backend->idle_seconds();
  return out;
}

TEST(GpuRecordedSteps, DrawsFollowTheirParameters) {
  const ServedRun plain = run(false), recorded = run(true);
  EXPECT_EQ(plain.graph_launches, 0);
  EXPECT_GT(recorded.graph_launches, 8);
  EXPECT_GT(recorded.steps_behind, 8);
  // Between two steps there is only the copy of the lists, a millisecond in the fake.
  EXPECT_TRUE(plain.idle.empty());
  EXPECT_GT(std::ssize(recorded.idle), 8);
  EXPECT_LE(std::ssize(recorded.idle), recorded.steps_behind);
  for (const double seconds : recorded.idle) EXPECT_NEAR(seconds, 1e-3, 1e-9);
  ASSERT_EQ(plain.answers.size(), 11u);
  ASSERT_EQ(recorded.answers.size(), 11u);
  for (const auto& [id, answer] : plain.answers) {
    EXPECT_EQ(answer.tokens.size(), id < 7 ? 3 + id : id == 7 ? 13 : id - 4) << id;
    EXPECT_TRUE(recorded.answers.at(id) == answer) << id;
  }
  EXPECT_EQ(plain.answers.at(4).top.size(), 3 * plain.answers.at(4).tokens.size());
  EXPECT_EQ(plain.answers.at(4).asked.size(), 2 * plain.answers.at(4).tokens.size());
}

}  // namespace
}  // namespace lathe
