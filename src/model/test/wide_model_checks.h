// Checks of a checkpoint of tools/check_wide_models.py: two layers of a model at its published
// widths, with transformers' f32 logits of every row.
#pragma once

#include <cstdlib>
#include <string>

#include "kernels/cpu/backend.h"
#include "model/test/choice_backend_test_util.h"
#include "model/test/test_util.h"

namespace lathe {

inline constexpr int kWidePrompt = 300;
/// Both sides compute in f32 and the CPU replays transformers' keys, so this covers the order of
/// summation, and elements of a bf16 cache that round differently because of it.
inline constexpr double kWideBound = 1e-3;
/// Share of the keys that the CPU's indexer would not have kept: it scores e4m3 numbers, a few of
/// which round differently.
inline constexpr double kWideOtherKeys = 1e-3;

/// The folder, or empty.
inline std::string given_checkpoint() {
  const char* directory = std::getenv("LATHE_CHECKPOINT");
  return directory == nullptr ? "" : directory;
}

/// Compares the CPU in f32 with transformers on every row. Skips the test without a checkpoint.
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
  // In place, as in the GPU's comparison: expanded attention reads every key.
  ModelRunner runner(**model, {.layout = config.is_mla() ? "mla_bf16" : "gqa_bf16",
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
