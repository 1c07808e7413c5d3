// The draft layer of models/tiny-v32 against a plain reference in double precision: what tests on
// the CPU, on a GPU and on the emulated one share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "model/draft_layer.h"
#include "model/tensor_file_test_util.h"
#include "model/test_util.h"

namespace lathe {

// Of tools/train/check_mtp.py --golden.
class Golden : public TensorFile {
 public:
  explicit Golden(const std::string& data = LATHE_TEST_DATA, const std::string& model = "tiny_v32")
      : TensorFile(data + "/mtp/" + model + ".safetensors") {}
  std::vector<std::int32_t> ids(const std::string& name) const {
    const auto wide = values<std::int64_t>(name);
    return {wide.begin(), wide.end()};
  }
};

/// Three uses of the layer behind a golden prompt, which comes in chunks: logits to a relative norm
/// of `tolerance`. The cache's first pages are used, 256 tokens of them.
inline void expect_golden_drafts(const Golden& golden, const std::string& name, std::int64_t chunk,
                                 double tolerance, const Model& model, KvCache& cache,
                                 const OpsContext& ops) {
  HiddenRows kept = HiddenRows::create(*ops.backend, model.config().hidden,
                                       HiddenRowSizes::of(cache.plan(), kDraftUses))
                        .value();
  const bool replays = ops.backend->replays();
  auto trunk = Runner::create(model, cache, replays, RunnerPass::forward_hidden, &kept);
  auto draft = Runner::create(model, cache, replays, RunnerPass::draft, &kept);
  ASSERT_TRUE(trunk);
  ASSERT_TRUE(draft);
  const std::vector<std::int32_t> prompt = golden.ids(name + ".prompt");
  const std::vector<std::int32_t> tokens = golden.ids(name + ".tokens");
  const std::vector<float> logits = golden.values<float>(name + ".logits");
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  const auto expect_logits = [&](std::size_t use) {
    const auto got = draft->logits(0, 0, ops);
    ASSERT_TRUE(got);
    const auto want = std::span(logits).subspan(use * vocab, vocab);
    EXPECT_LE(relative_error(*got, want), tolerance) << "use " << use + 1;
  };
  std::vector<std::vector<PageId>> pages(1);
  for (std::int32_t p = 0; p < 256 / cache.page_size(0); ++p) pages[0].push_back(PageId{p});
  std::vector<std::int32_t> all = prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());

  const std::int64_t n = std::ssize(prompt);
  for (std::int64_t first = 0; first < n; first += chunk) {
    const std::int64_t rows = std::min(chunk, n - first);
    const auto of = [&](std::int64_t begin) {
      return std::span(all).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(rows));
    };
    BatchItem item;
    item.phase = Phase::extend;
    item.pages = pages;
    item.cached = static_cast<std::int32_t>(first);
    item.tokens = of(first);
    item.logits = 1;
    ASSERT_TRUE(trunk->launch(std::span(&item, 1), ops, false));
    ASSERT_TRUE(trunk->collect());
    std::vector<std::int32_t> hidden;
    for (std::int64_t k = 0; k < rows; ++k) hidden.push_back(trunk->hidden(0, k));
    item.tokens = of(first + 1);
    item.before = hidden;
    ASSERT_TRUE(draft->launch(std::span(&item, 1), ops, false));
    ASSERT_TRUE(draft->collect());
  }
  expect_logits(0);
  for (std::int64_t use = 1; use < kDraftUses; ++use) {
    const std::int32_t before = draft->hidden(0, 0);
    BatchItem item;
    item.pages = pages;
    item.cached = static_cast<std::int32_t>(n + use - 1);
    item.tokens = std::span(all).subspan(static_cast<std::size_t>(n + use), 1);
    item.logits = 1;
    item.before = std::span(&before, 1);
    ASSERT_TRUE(draft->launch(std::span(&item, 1), ops, false));
    ASSERT_TRUE(draft->collect());
    expect_logits(static_cast<std::size_t>(use));
  }
}

}  // namespace lathe
