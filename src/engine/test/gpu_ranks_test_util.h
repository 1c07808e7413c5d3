// GpuRanks: a model on several ranks of the CUDA backend, a GPU for each, with what an engine
// needs.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner/ranked_runner.h"
#include "engine/test/gpu_engine_test_util.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/host_communicator.h"

namespace lathe {

class GpuRanks {
 public:
  GpuRanks(const std::string& directory, const GpuSetup::Sizes& sizes, EngineOptions options,
           std::int32_t ranks, cuda::ExchangeKind kind = cuda::ExchangeKind::peer)
      : directory_(directory), sizes_(sizes), ranks_(static_cast<std::size_t>(ranks)) {
    std::vector<int> gpus;
    for (int gpu = 0; gpu < ranks; ++gpu) gpus.push_back(gpu);
    auto made = cuda::make_cuda_communicators(make_host_communicators(ranks), gpus, kind);
    EXPECT_TRUE(made.ok()) << made.error().message();
    std::vector<std::unique_ptr<Communicator>> communicators;
    for (auto& c : *made) {
      cuda_.push_back(c.get());
      communicators.push_back(std::move(c));
    }
    group_ = std::make_unique<RankGroup>(std::move(communicators));
    const Result<void> ok = group_->run([this](std::int32_t r) { return start(r); });
    EXPECT_TRUE(ok.ok()) << ok.error().message();
    others_.group = group_.get();
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      others_.models.push_back({ranks_[r].model.get(), &*ranks_[r].cache, ranks_[r].ops});
    }
    options.ranks = &others_;
    engine_.emplace(
        Engine::create(*ranks_[0].model, *ranks_[0].cache, options, ranks_[0].ops).value());
  }
  ~GpuRanks() {
    engine_.reset();
    // Memory that a peer may still access goes when all have come here.
    static_cast<void>(group_->run([this](std::int32_t r) -> Result<void> {
      static_cast<void>(ranks_[static_cast<std::size_t>(r)].backend->wait());
      static_cast<void>(group_->communicator(r).barrier());
      ranks_[static_cast<std::size_t>(r)] = {};
      return {};
    }));
  }
  Engine& engine() { return *engine_; }
  const ModelConfig& config() const { return ranks_[0].model->config(); }
  RankGroup& group() { return *group_; }
  cuda::CudaCommunicator& communicator(std::int32_t r) {
    return *cuda_[static_cast<std::size_t>(r)];
  }

 private:
  struct Rank {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Arena> control, tensors;
    std::unique_ptr<Model> model;
    ModelPlan plan;
    std::optional<KvCache> cache;
    OpsContext ops;
  };

  // On the rank's thread: its backend, weights, memory and cache.
  Result<void> start(std::int32_t r) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    auto backend = cuda::make_cuda_backend({.ordinal = r,
                                            .communicator = cuda_[static_cast<std::size_t>(r)],
                                            .plain_products = sizes_.plain_products});
    if (!backend) return backend.error();
    rank.backend = std::move(*backend);
    LoadOptions load;
    load.backend = rank.backend.get();
    load.expansion = false;
    load.dummy = sizes_.dummy;
    const auto size = static_cast<std::int32_t>(ranks_.size());
    load.parallel = {size, size, 1};
    load.rank = r;
    auto model = load_model(directory_, load);
    if (!model) return model.error();
    rank.model = std::move(*model);
    const ModelConfig& config = rank.model->config();
    PlanRequest wanted;
    wanted.layout = config.is_mla() || config.is_compressed() ? "mla_bf16" : "gqa_bf16";
    wanted.page_size = config.is_compressed() ? 128 : 64;
    wanted.chunked_prefill_size = wanted.context_length = sizes_.context;
    wanted.max_running_requests = sizes_.requests;
    const auto plan =
        fit_model(config, std::nullopt, describe_machine(Device::sm90), wanted, registry_);
    EXPECT_TRUE(plan.ok());
    rank.plan = *plan;
    rank.tensors = std::make_unique<Arena>(rank.backend->memory());
    rank.control = std::make_unique<Arena>();
    rank.tensors->reserve(tensor_bytes(rank.plan));
    if (auto ok = rank.backend->reserve(shared_budgets(rank.plan, nullptr)); !ok) return ok;
    rank.cache.emplace(KvCache::create(rank.plan, pool_sizes(rank.plan, sizes_.cache_tokens),
                                       rank.backend->memory())
                           .value());
    rank.ops.backend = rank.backend.get();
    rank.ops.precision = MatmulPrecision::bf16;
    rank.ops.communicator = &group_->communicator(r);
    rank.ops.tensors = rank.tensors.get();
    rank.ops.control = rank.control.get();
    return group_->communicator(r).reserve({.rows = sizes_.context,
                                            .cols = config.hidden,
                                            .dtype = DType::bf16,
                                            .logit_rows = sizes_.requests,
                                            .vocab = config.vocab});
  }

  std::string directory_;
  GpuSetup::Sizes sizes_;
  Registry registry_ = gpu_kernels();  // plans point to its kernels
  std::vector<Rank> ranks_;
  std::vector<cuda::CudaCommunicator*> cuda_;
  std::unique_ptr<RankGroup> group_;
  OtherRanks others_;
  std::optional<Engine> engine_;
};

/// answers_of() on several GPUs.
inline Answers answers_of_ranks(const std::string& directory, const GpuSetup::Sizes& sizes,
                                EngineOptions options, const std::vector<Prompt>& prompts,
                                std::int32_t ranks,
                                cuda::ExchangeKind kind = cuda::ExchangeKind::peer) {
  Answers run;
  options.on_logits = [&](RequestId id, std::span<const float> row) {
    run.logits[id.value].emplace_back(row.begin(), row.end());
  };
  GpuRanks setup(directory, sizes, options, ranks, kind);
  submit_and_run(setup.engine(), setup.config(), prompts, run);
  return run;
}

}  // namespace lathe
