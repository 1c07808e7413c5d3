// GpuRanks: a model on several ranks of the CUDA backend, a GPU for each, with what an engine
// needs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attn/draft_rows.h"
#include "engine/runner/ranked_runner.h"
#include "engine/test/gpu_engine_test_util.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/host_communicator.h"
#include "kernels/test/faulty_communicator_test_util.h"
#include "model/layers/draft_layer.h"
#include "plan/explain.h"

namespace lathe {

/// What differs from a healthy run.
struct GpuRanksOptions {
  cuda::ExchangeKind kind = cuda::ExchangeKind::peer;
  std::string split = "auto";                              // as PlanRequest::expert_split
  std::function<void(std::int32_t, Faults&)> change = {};  // what goes wrong on a rank
  RankGroupOptions group = {};
};

class GpuRanks {
 public:
  GpuRanks(const std::string& directory, const GpuSetup::Sizes& sizes, EngineOptions options,
           std::int32_t ranks, const GpuRanksOptions& own = {})
      : directory_(directory), sizes_(sizes) {
    plan(ranks, own.split);
    std::vector<int> gpus;
    for (int gpu = 0; gpu < ranks; ++gpu) {
      gpus.push_back(gpu);
      ranks_.push_back(std::make_unique<Rank>());
    }
    auto made = cuda::make_cuda_communicators(make_host_communicators(ranks), gpus, own.kind);
    EXPECT_TRUE(made.ok()) << made.error().message();
    std::vector<std::unique_ptr<Communicator>> communicators;
    for (auto& c : *made) {
      cuda_.push_back(c.get());
      communicators.push_back(std::move(c));
    }
    group_ = std::make_unique<RankGroup>(std::move(communicators), own.group);
    for (std::int32_t r = 0; r < ranks; ++r) {
      Faults faults;
      if (own.change) own.change(r, faults);
      ranks_[static_cast<std::size_t>(r)]->faulty =
          std::make_unique<FaultyCommunicator>(group_->communicator(r), faults);
    }
    const Result<void> ok = group_->run([this](std::int32_t r) {
      Communicator& peer = group_->communicator(r);
      if (auto started = peer.agree(start(r)); !started) return started;
      return peer.agree(peer.reserve(limits()));
    });
    EXPECT_TRUE(ok.ok()) << ok.error().message();
    others_.group = group_.get();
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      others_.models.push_back({ranks_[r]->model.get(), &*ranks_[r]->cache, ranks_[r]->ops});
    }
    options.ranks = &others_;
    Rank& first = *ranks_.front();
    if (sizes.mtp) {
      drafter_.emplace(MtpDrafter::create(*first.model, *first.cache, first.ops, &others_).value());
      options.drafter = &*drafter_;
      options.draft_tokens = sizes.draft_tokens;
    }
    engine_.emplace(Engine::create(*first.model, *first.cache, options, first.ops).value());
  }
  ~GpuRanks() {
    engine_.reset();
    drafter_.reset();
    // Memory that a peer may still access goes when all have come here.
    static_cast<void>(group_->run([this](std::int32_t r) -> Result<void> {
      static_cast<void>(ranks_[static_cast<std::size_t>(r)]->backend->wait());
      static_cast<void>(group_->communicator(r).barrier());
      ranks_[static_cast<std::size_t>(r)].reset();
      return {};
    }));
  }
  Engine& engine() { return *engine_; }
  const ModelConfig& config() const { return ranks_.front()->model->config(); }
  const ModelPlan& plan() const { return plan_; }
  RankGroup& group() { return *group_; }
  cuda::CudaCommunicator& communicator(std::int32_t r) {
    return *cuda_[static_cast<std::size_t>(r)];
  }

 private:
  struct Rank {
    std::unique_ptr<FaultyCommunicator> faulty;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Arena> control, tensors;
    std::unique_ptr<Model> model;
    std::optional<KvCache> cache;
    OpsContext ops;
  };

  void plan(std::int32_t ranks, const std::string& split) {
    auto config = load_model_config(directory_);
    if (config && sizes_.mtp) config = add_draft_layer(std::move(*config));
    PlanRequest wanted;
    wanted.tp = ranks;
    wanted.expert_split = split;
    wanted.layout = config->is_mla() || config->is_compressed() ? "mla_bf16" : "gqa_bf16";
    if (!sizes_.layout.empty()) wanted.layout = sizes_.layout;
    wanted.page_size = config->is_compressed() ? 128 : 64;
    wanted.chunked_prefill_size = wanted.context_length = sizes_.context;
    wanted.max_running_requests = sizes_.requests;
    wanted.draft_tokens = sizes_.draft_tokens;
    const auto plan =
        fit_model(*config, std::nullopt, with_ranks(describe_machine(Device::sm90), ranks), wanted,
                  registry_);
    ASSERT_TRUE(plan.ok()) << explain(plan.error());
    plan_ = *plan;
  }
  ExchangeLimits limits() const {
    const std::int64_t rows =
        plan_.max_rows() + decoding_rows(plan_.max_requests(), plan_.draft_tokens());
    return {.rows = rows,
            .cols = config().hidden,
            .dtype = DType::bf16,
            .logit_rows = rows,
            .most_columns = plan_.ranks.most.vocab.count,
            .vocab = config().vocab};
  }

  // On the rank's thread: its backend, weights, memory and cache.
  Result<void> start(std::int32_t r) {
    Rank& rank = *ranks_[static_cast<std::size_t>(r)];
    auto backend = cuda::make_cuda_backend({.ordinal = r,
                                            .communicator = cuda_[static_cast<std::size_t>(r)],
                                            .plain_products = sizes_.plain_products});
    if (!backend) return backend.error();
    rank.backend = std::move(*backend);
    LoadOptions load;
    load.backend = rank.backend.get();
    load.expansion = false;
    load.drafts = sizes_.mtp;
    load.dummy = sizes_.dummy;
    load.parallel = plan_.ranks.parallel;
    load.rank = r;
    auto model = load_model(directory_, load);
    if (!model) return model.error();
    rank.model = std::move(*model);
    rank.tensors = std::make_unique<Arena>(rank.backend->memory());
    rank.control = std::make_unique<Arena>();
    rank.tensors->reserve(tensor_bytes(plan_));
    if (auto ok = rank.backend->reserve(shared_budgets(plan_, nullptr)); !ok) return ok;
    auto cache =
        KvCache::create(plan_, pool_sizes(plan_, sizes_.cache_tokens), rank.backend->memory());
    if (!cache) return cache.error();
    rank.cache.emplace(std::move(*cache));
    rank.ops.backend = rank.backend.get();
    rank.ops.precision = MatmulPrecision::bf16;
    rank.ops.communicator = rank.faulty.get();
    rank.ops.tensors = rank.tensors.get();
    rank.ops.control = rank.control.get();
    return {};
  }

  std::string directory_;
  GpuSetup::Sizes sizes_;
  Registry registry_ = gpu_kernels();  // the plan points to its kernels
  ModelPlan plan_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<cuda::CudaCommunicator*> cuda_;
  std::unique_ptr<RankGroup> group_;
  OtherRanks others_;
  std::optional<MtpDrafter> drafter_;
  std::optional<Engine> engine_;
};

/// answers_of() on several GPUs.
inline Answers answers_of_ranks(const std::string& directory, const GpuSetup::Sizes& sizes,
                                EngineOptions options, const std::vector<Prompt>& prompts,
                                std::int32_t ranks, const GpuRanksOptions& own = {}) {
  Answers run;
  options.on_logits = [&](RequestId id, std::span<const float> row) {
    run.logits[id.value].emplace_back(row.begin(), row.end());
  };
  GpuRanks setup(directory, sizes, options, ranks, own);
  submit_and_run(setup.engine(), setup.config(), prompts, run);
  return run;
}

}  // namespace lathe
