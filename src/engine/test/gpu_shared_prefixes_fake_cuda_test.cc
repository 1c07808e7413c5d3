// Steps that read shared prefixes once, on the emulated GPU: through the prefix cache, recorded,
// and with drafts. Their logits are those of steps that read every request's keys, but for
// rounding.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "base/float_formats.h"
#include "engine/runner/runner.h"
#include "engine/test/gpu_engine_test_util.h"
#include "kernels/cuda/fake/fake_cuda.h"

namespace lathe {
namespace {

const std::string kGqa = std::string(LATHE_TEST_DATA) + "/../../models/tiny-gqa";

void expect_close(const Logits& a, const Logits& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    double error = 0, norm = 0;
    for (std::size_t t = 0; t < a[i].size(); ++t) {
      error += std::pow(a[i][t] - b[i][t], 2);
      norm += std::pow(b[i][t], 2);
    }
    // bf16 activations differ in their last bits. With another request's keys this is about 1.
    EXPECT_LT(std::sqrt(error / norm), 0.03) << "row " << i;
  }
}

/// Rows of requests over made-up keys, in steps that share other pages each time.
class Steps {
 public:
  Steps(bool shared, bool recorded, Phase phase) : phase_(phase), setup_(kGqa, sizes(shared), {}) {
    std::mt19937 rng(17);
    std::normal_distribution<float> normal;
    for (std::int32_t l = 0; l < setup_.config().layers; ++l) {
      const PoolView pool = setup_.cache().main(l);
      std::vector<bf16> keys(static_cast<std::size_t>(pool.bytes() / 2));
      for (bf16& key : keys) key = to_bf16(normal(rng));
      const auto bytes = std::as_bytes(std::span(keys));
      EXPECT_TRUE(setup_.ops().backend->upload(setup_.ops(), bytes, pool.data).ok());
    }
    // With a new runner for each step, none is recorded.
    for (int i = 0; i < 4; ++i) {
      if (i > 0 && recorded) continue;
      runners_.push_back(Runner::create(setup_.model(), setup_.cache(), true).value());
    }
    tokens_ = some_tokens(200, setup_.config().vocab);
    const std::int64_t before = cuda::fake::counts().graph_launches;
    run({{{1, 2, 3}, {1, 2, 4}, {1, 5, 6}}}, {150, 130, 140});
    run({{{7, 8, 9}, {7, 8, 10}, {7, 8, 11}}}, {128, 129, 180});
    run({{{1, 2, 3}, {4, 5, 6}, {4, 5, 7}}}, {64, 70, 131});
    run({{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}}, {64, 70, 131});  // nothing shared
    launches = cuda::fake::counts().graph_launches - before;
    shared_keys = 0;
    for (const Runner& r : runners_) shared_keys += r.key_reads().shared;
  }
  Logits logits;
  std::int64_t launches = 0, shared_keys = 0;

 private:
  static GpuSetup::Sizes sizes(bool shared) {
    return {.context = 256, .plain_products = true, .draft_tokens = 3, .shared_prefixes = shared};
  }
  void run(const std::array<std::vector<int>, 3>& pages, std::array<std::int32_t, 3> cached) {
    Runner& runner = runners_[std::min(runners_.size() - 1, step_++)];
    std::vector<std::vector<std::vector<PageId>>> lists(3);
    std::vector<BatchItem> items(3);
    for (std::size_t r = 0; r < 3; ++r) {
      lists[r].emplace_back(pages[r].begin(), pages[r].end());
      items[r].phase = phase_;
      items[r].pages = lists[r];
      items[r].cached = cached[r];
      const std::size_t rows = phase_ == Phase::verify ? 1 + r : 1;
      items[r].tokens = std::span(tokens_).subspan(static_cast<std::size_t>(r), rows);
      items[r].logits = static_cast<std::int64_t>(rows);
    }
    ASSERT_TRUE(runner.launch(items, setup_.ops(), false).ok());
    ASSERT_TRUE(runner.collect().ok());
    for (std::size_t r = 0; r < 3; ++r) {
      for (std::int64_t k = 0; k < items[r].logits; ++k) {
        const auto row = runner.logits(r, k, setup_.ops());
        ASSERT_TRUE(row.ok());
        logits.emplace_back(row->begin(), row->end());
      }
    }
  }

  Phase phase_;
  GpuSetup setup_;
  std::vector<Runner> runners_;
  std::vector<std::int32_t> tokens_;
  std::size_t step_ = 0;
};

TEST(GpuSharedPrefixes, StepsOfOtherGroups) {
  for (const Phase phase : {Phase::decode, Phase::verify}) {
    SCOPED_TRACE(name(phase));
    const Steps off(false, false, phase), on(true, false, phase), recorded(true, true, phase);
    EXPECT_EQ(off.shared_keys, 0);
    EXPECT_GT(on.shared_keys, 0);
    EXPECT_EQ(on.shared_keys, recorded.shared_keys);
    EXPECT_EQ(on.launches, 0);
    // Three steps of one recording, of which the first is not replayed, and one without groups.
    EXPECT_EQ(recorded.launches, 2);
    expect_close(on.logits, off.logits);
    EXPECT_EQ(on.logits, recorded.logits);
  }
}

// Prompts with the same beginning, which the prefix cache has: the same tokens on and off.
TEST(GpuSharedPrefixes, PromptsBehindTheSamePages) {
  std::vector<Prompt> prompts;
  std::vector<std::int32_t> common = some_tokens(140, 200);
  for (int r = 0; r < 5; ++r) {
    Prompt p{.answer = 5, .text = common};
    for (int i = 0; i <= 3 * r; ++i) p.text.push_back(7 * r + i);
    prompts.push_back(p);
  }
  const auto run = [&](bool shared) {
    GpuSetup setup(kGqa,
                   {.context = 256,
                    .cache_tokens = 32 * 64,
                    .plain_products = true,
                    .shared_prefixes = shared},
                   {.prefix_cache = true});
    Answers first, out;
    submit_and_run(setup.engine(), setup.config(), {{.answer = 1, .text = common}}, first);
    submit_and_run(setup.engine(), setup.config(), prompts, out);
    return out;
  };
  const Answers off = run(false), on = run(true);
  EXPECT_EQ(off.stats.key_reads.shared, 0);
  EXPECT_GT(on.stats.key_reads.shared, 2 * 128 * 4);  // layers, keys, requests
  EXPECT_EQ(on.stats.key_reads.attended, off.stats.key_reads.attended);
  ASSERT_EQ(on.logprobs.size(), off.logprobs.size());
  for (const auto& [id, logprobs] : off.logprobs) {
    const auto& others = on.logprobs.at(id);
    ASSERT_EQ(others.size(), logprobs.size());
    // The first token is the prefill's; the second one is the first that groups have computed.
    EXPECT_NEAR(others[1], logprobs[1], 0.02);
  }
  EXPECT_EQ(on.tokens, off.tokens);
}

}  // namespace
}  // namespace lathe
