// A checkpoint of tools/check_wide_models.py: two layers of a model at its published widths, and
// the logits of every row as transformers computes them in f32.
#pragma once

#include <cstdlib>
#include <string>

#include "kernels/cpu/backend.h"
#include "model/choice_backend_test_util.h"
#include "model/test_util.h"

namespace lathe {

inline constexpr int kWidePrompt = 300;
/// Both sides compute in f32 and the CPU takes transformers' keys, so it holds what sums in another
/// order do, and elements of a bf16 cache that round the other way for them.
inline constexpr double kWideBound = 1e-3;
/// Of the keys those that the CPU's indexer would not have kept: its scores are of e4m3 numbers, a
/// few of which round the other way.
inline constexpr double kWideOtherKeys = 1e-3;

/// The folder; empty where none is given.
inline std::string given_checkpoint() {
  const char* directory = std::getenv("LATHE_CHECKPOINT");
  return directory == nullptr ? "" : directory;
}

/// The CPU in f32 against transformers, every row. Skips the test where no checkpoint is given.
inline void check_given_checkpoint(int threads) {
  const std::string directory = given_checkpoint();
  if (directory.empty()) GTEST_SKIP() << "no LATHE_CHECKPOINT";
  ThreadPool pool(threads);
  LoadOptions options;
  options.threads = &pool;
  options.expansion = false;
  const auto model = load_model(directory, options);
  ASSERT_TRUE(model.ok()) << model.error().message();
  const Reference reference = Reference::in_dir(directory);
  const ReferencePrompt want = reference.prompt(kWidePrompt);
  ASSERT_EQ(want.positions.size(), kWidePrompt);
  const ModelConfig& config = (*model)->config();
  const auto cpu = make_cpu_backend();
  Choices choices;
  ChoiceBackend takes(*cpu, ChoiceBackend::Mode::takes_keys, choices);
  // In place, as the GPU is compared: expanded attention reads every key.
  ModelRunner runner(**model, {.layout = config.latent() ? "mla_bf16" : "gqa_bf16",
                               .prefill = "inplace",
                               .decode = "inplace",
                               .threads = threads,
                               .backend = &takes});
  for (int layer = 0; config.groups.front().problem.sparse() && layer < config.layers; ++layer) {
    std::vector<std::int32_t> keys = reference.keys(kWidePrompt, layer);
    for (std::int32_t& key : keys) key = key < 0 ? key : runner.slot(0, key);
    choices.keys.push_back(std::move(keys));
  }
  const Logits got = runner.prompt(0, want.tokens);
  const std::size_t vocab = got.front().size();
  double worst = 0;
  for (std::size_t row = 0; row < got.size(); ++row) {
    const std::span theirs = std::span(want.logits_bf16_cache).subspan(row * vocab, vocab);
    const double error = relative_error(got[row], theirs);
    EXPECT_LT(error, kWideBound) << "row " << row;
    worst = std::max(worst, error);
  }
  EXPECT_LE(static_cast<double>(choices.others),
            kWideOtherKeys * static_cast<double>(choices.made));
  std::printf("worst of %zu rows of transformers: %.2e; %lld of %lld keys are not the CPU's\n",
              got.size(), worst, static_cast<long long>(choices.others),
              static_cast<long long>(choices.made));
}

}  // namespace lathe
