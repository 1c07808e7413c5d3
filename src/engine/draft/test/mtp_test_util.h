// Compares draft layers of the shipped checkpoints with a plain reference in double precision.
// Shared by the tests on the CPU, on a GPU and on the emulated one.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/draft/drafter.h"
#include "engine/runner/runner.h"
#include "engine/test/real_model_test_util.h"
#include "io/files/read_file.h"
#include "model/layers/draft_layer.h"
#include "model/test/tensor_file_test_util.h"
#include "model/test/test_util.h"

namespace lathe {

// Made by tools/train/check_mtp.py --golden.
class Golden : public TensorFile {
 public:
  explicit Golden(const std::string& data = LATHE_TEST_DATA, const std::string& model = "tiny_v32")
      : TensorFile(data + "/mtp/" + model + ".safetensors") {}
  std::vector<std::int32_t> ids(const std::string& name) const {
    const auto wide = values<std::int64_t>(name);
    return {wide.begin(), wide.end()};
  }
};

/// models/tiny-v32, changed so that later uses of its draft layer share the first one's choice of
/// keys.
class SharedChoiceModel {
 public:
  explicit SharedChoiceModel(const std::string& models) {
    namespace fs = std::filesystem;
    const fs::path from = fs::canonical(models + "/tiny-v32");
    folder_ = fs::path(testing::TempDir()) / ("lathe_shared_choice_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    for (const char* file : {"model.safetensors", "mtp.safetensors", "tokenizer.json"}) {
      fs::create_symlink(from / file, folder_ / file);
    }
    auto config = nlohmann::json::parse(*read_file((from / "config.json").string()));
    config["index_share_for_mtp_iteration"] = true;
    std::ofstream(folder_ / "config.json") << config.dump();
  }
  ~SharedChoiceModel() { std::filesystem::remove_all(folder_); }
  SharedChoiceModel(const SharedChoiceModel&) = delete;
  std::string dir() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

/// Runs the layer over every row that an engine's steps compute. After the first sampled token it
/// runs the layer after itself, with the reference's tokens.
class DraftProbe : public Drafter {
 public:
  DraftProbe(const Model& model, KvCache& cache, const OpsContext& ops,
             std::vector<std::int32_t> tokens)
      : ops_(ops),
        shared_keys_(model.config().shared_choice_width()),
        tokens_(std::move(tokens)),
        rows_(HiddenRows::create(*ops.backend, model.config().state_width(),
                                 HiddenRowSizes::of(cache.plan(), kDraftUses,
                                                    model.config().shared_choice_width()))
                  .value()),
        runner_(Runner::create(model, cache, ops.backend->replays(), RunnerPass::draft, &rows_)
                    .value()) {}
  void propose(std::span<DraftRequest>) override {}
  HiddenRows* hidden() override { return &rows_; }
  Result<void> read(std::span<const ComputedRows> rows) override {
    const ComputedRows& r = rows.front();
    const std::int64_t end = r.first + std::ssize(r.hidden);
    const bool drawn = r.most > 0 && logits.empty();
    if (drawn) {
      EXPECT_EQ(r.tokens.back(), tokens_[0]) << "the model's own token";
    }
    run(Phase::extend, r, r.first,
        r.tokens.subspan(static_cast<std::size_t>(r.first) + 1, r.hidden.size()), r.hidden);
    const bool chose = drawn && shared_keys_ > 0 && end > shared_keys_;
    const std::int32_t choice = chose ? runner_.choice(0, 0) : -1;
    for (std::size_t use = 1; drawn && use + 1 < tokens_.size(); ++use) {
      keep();
      const std::int32_t before = runner_.hidden(0, 0);
      run(Phase::decode, r, end + static_cast<std::int64_t>(use) - 1,
          std::span(tokens_).subspan(use, 1), std::span(&before, 1),
          std::span(&choice, shared_keys_ > 0 ? 1 : 0));
    }
    if (drawn) keep();
    return {};
  }
  std::vector<std::vector<float>> logits;  // [uses]

 private:
  void run(Phase phase, const ComputedRows& r, std::int64_t first,
           std::span<const std::int32_t> tokens, std::span<const std::int32_t> before,
           std::span<const std::int32_t> choices = {}) {
    BatchItem item;
    item.phase = phase;
    item.pages = r.pages;
    item.cached = static_cast<std::int32_t>(first);
    item.tokens = tokens;
    item.before = before;
    item.choices = choices;
    item.logits = 1;
    ASSERT_TRUE(runner_.launch(std::span(&item, 1), ops_, false));
    ASSERT_TRUE(runner_.collect());
  }
  void keep() {
    const auto row = runner_.logits(0, 0, ops_);
    ASSERT_TRUE(row);
    logits.emplace_back(row->begin(), row->end());
  }

  OpsContext ops_;
  std::int64_t shared_keys_;
  std::vector<std::int32_t> tokens_;
  HiddenRows rows_;
  Runner runner_;
};

/// Runs the layer three times after a golden prompt in chunks of `chunk` rows (0: all at once), and
/// compares the logits to a relative norm of `tolerance`. Precondition: no page of the cache is in
/// use.
inline void expect_golden_drafts(const Golden& golden, const std::string& name, std::int64_t chunk,
                                 double tolerance, const Model& model, KvCache& cache,
                                 const OpsContext& ops) {
  const bool shared = model.config().shared_choice_width() > 0;
  const std::vector<float> want =
      golden.values<float>(name + (shared ? ".shared.logits" : ".logits"));
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  DraftProbe probe(model, cache, ops, golden.ids(name + ".tokens"));
  auto engine = Engine::create(
      model, cache, {.chunked_prefill_size = chunk, .drafter = &probe, .draft_tokens = kDraftUses},
      ops);
  ASSERT_TRUE(engine) << engine.error().message();
  serve_real(*engine, {greedy(golden.ids(name + ".prompt"), 3)});
  ASSERT_EQ(probe.logits.size(), want.size() / vocab);
  for (std::size_t use = 0; use < probe.logits.size(); ++use) {
    EXPECT_LE(relative_error(probe.logits[use], std::span(want).subspan(use * vocab, vocab)),
              tolerance)
        << "use " << use + 1;
  }
}

}  // namespace lathe
