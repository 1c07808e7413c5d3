// Runtime: everything that one process needs to run one model, made in the order in which it can
// fail cheaply: configuration, plan, weights, pools, engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "attn/machine.h"
#include "base/arena.h"
#include "base/execution.h"
#include "base/process.h"
#include "base/result.h"
#include "base/threads.h"
#include "engine/draft/draft_kind.h"
#include "engine/engine.h"
#include "engine/runner/memory_plan.h"
#include "engine/runner/rank_group.h"
#include "engine/runner/ranked_runner.h"
#include "model/cache.h"
#include "model/model.h"
#include "plan/model_plan.h"
#include "plan/plan_request.h"
#include "plan/reason.h"
#include "plan/registry.h"

namespace lathe {

struct RuntimeOptions {
  std::string model;          // directory of a checkpoint
  std::string config_file;    // instead of a directory's config.json; with dummy weights only
  ConfigOverrides overrides;  // --override, --rope-scaling: of the configuration's text model
  bool dummy = false;         // --load-format dummy
  std::function<std::unique_ptr<Model>()> make_model;  // instead of any checkpoint; may be empty
  std::string device = "auto";
  std::string gpus;  // --gpus: numbers of the ranks' GPUs, "0,1"; empty: the first ones
  // float32, bfloat16, fp8, int8 (see MatmulPrecision) or auto: bfloat16 on a GPU and on a CPU with
  // dot products of bf16 pairs. fp8 needs a checkpoint with e4m3 weights, and int8 one with int4 or
  // e4m3 weights and a CPU.
  std::string dtype = "auto";
  int threads = 0;  // 0: one per core; several ranks divide them
  // File with scales of per-tensor caches; empty: the checkpoint's scales, or 1 without any.
  std::string kv_scales;
  // Counts the values written to the cache. Per-tensor caches are always counted.
  bool count_values = false;
  // context_length 0: the model's own. `layers` is not read. max_total_tokens 0: as many tokens as
  // all running requests can hold and the memory next to weights and buffers allows (half of it on
  // a CPU). draft_tokens 0: the drafter's default.
  PlanRequest plan_request{.context_length = 0};
  std::string draft = "none";  // --draft: a DraftKind, or a draft model's directory
  std::string draft_model;     // --speculative-draft-model-path
  // Wraps that drafter in another; may be empty.
  std::function<std::unique_ptr<Drafter>(std::unique_ptr<Drafter>)> wrap_drafter;
  // The runtime sets drafter and draft_tokens.
  EngineOptions engine;
  bool check_ranks = false;  // make_checked_communicator() on every rank
  // May refuse what is planned, before memory is taken and weights are read; may be empty.
  std::function<Result<void>(const ModelConfig&, const ModelPlan&)> check_plan;
  // Called with the bytes of weights loaded so far and in total; may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
};

/// Why there is no runtime: an error, or a plan that was refused with reasons.
using StartError = std::variant<Error, Refusal>;

class Runtime {
 public:
  /// Device "auto" is a GPU that serves the model, else, without `gpus`, the CPU. Errors: from the
  /// configuration, the planner, the checkpoint, the pools, the drafter and the engine; a context
  /// length beyond the model's; a device that models don't run on, or that is missing or unfit; a
  /// dtype that the device does not multiply in.
  static Result<std::unique_ptr<Runtime>, StartError> create(const RuntimeOptions& options);
  /// In a fork of the process, the ranks' threads are left alone: nobody there could join them.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Model& model() const { return *model_; }
  const ModelConfig& config() const { return model_->config(); }
  const Machine& machine() const { return machine_; }
  const ModelPlan& plan() const { return plan_; }
  const DraftChoice& draft() const { return draft_; }
  /// Plan and weights of a draft model; a null plan: there is none.
  DraftMemory draft_memory() const;
  MatmulPrecision precision() const { return precision_; }
  /// Of the rank with most weights.
  std::int64_t weight_bytes() const;
  KvCache& cache() { return *cache_; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  ThreadPool& threads() { return threads_; }
  Backend& backend() { return *backend_; }
  double load_seconds() const { return load_seconds_; }
  /// Scales of the cache's layers, [layers]; empty if no cache has scales of its own.
  const std::vector<TensorScales>& kv_scales() const { return kv_scales_; }
  /// Counts of the values written to each layer's cache, [layers]; empty if nothing is counted. Not
  /// to be called while a step is in flight. Errors: the device's.
  Result<std::vector<ValueCounts>> stored_values();
  /// Why `--device auto` chose the CPU although there is a GPU; else empty.
  const std::string& device_note() const { return device_note_; }

 private:
  // What a rank after the first has. Its thread makes all of it.
  struct Rank {
    explicit Rank(int count) : threads(count) {}
    RankModel target();
    RankModel draft();

    ThreadPool threads;
    Scratch scratch;
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Communicator> checked;  // null: exchanges are not checked
    Arena tensors, control;
    OpsContext ops;
    std::unique_ptr<Model> model, draft_model;
    std::optional<KvCache> cache, draft_cache;
  };
  using LoadModel = std::function<Result<std::unique_ptr<Model>>(const LoadOptions&)>;

  struct Planned {};
  // threads: of all ranks; 0: one per core.
  Runtime(int threads, std::int32_t ranks);
  Result<Planned, StartError> plan_on(const Machine& machine, const RuntimeOptions& options,
                                      const ModelConfig& config, const PlanRequest& request,
                                      std::optional<std::int64_t> stored);
  Result<void> start(const RuntimeOptions& options, const ModelConfig& config,
                     const PlanRequest& request, std::unique_ptr<Model> made);
  Result<void> reserve_memory();
  OpsContext ops_of(const PlanRequest& request);
  Result<void> load_models(const RuntimeOptions& options, const ModelConfig& config,
                           std::unique_ptr<Model> made);
  Result<void> make_caches(const ModelConfig& config, std::int64_t tokens, bool count_values);
  Result<void> make_engine(const RuntimeOptions& options, const PlanRequest& request,
                           const OpsContext& ops);
  Result<void> describe_draft_model(const RuntimeOptions& options, const ModelConfig& target);
  Result<void> load_draft_model(const RuntimeOptions& options, LoadOptions load);
  std::int32_t gpu_of(std::int32_t rank) const {
    return gpus_.empty() ? 0 : gpus_[static_cast<std::size_t>(rank)];
  }
  Rank& rank(std::int32_t r) { return *ranks_[static_cast<std::size_t>(r - 1)]; }
  Result<void> make_ranks(const RuntimeOptions& options);
  Result<void> reserve_ranks(OpsContext& first, bool check);
  Result<std::unique_ptr<Model>> load_shares(const LoadModel& load, LoadOptions options,
                                             const Parallel& parallel, bool draft);
  Result<void> make_rank_caches(std::int64_t tokens, bool counts);
  Result<void> reserve_exchanges();
  const OtherRanks* other_ranks();
  const OtherRanks* draft_ranks();
  Result<void> make_drafter(const RuntimeOptions& options, const PlanRequest& request,
                            std::int64_t tokens, const OpsContext& ops);

  // A separate draft model, with its own pools.
  struct DraftModel {
    ModelConfig config;
    std::optional<std::int64_t> stored;
    ModelPlan plan;
    std::unique_ptr<Model> model;
    std::optional<KvCache> cache;
  };

  MakersProcess process_;
  // Null: there is one rank. First, because backends use its communicators until they are freed.
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<Communicator> checked_;  // of rank 0, as Rank::checked
  ThreadPool threads_;
  Scratch scratch_;
  std::unique_ptr<Backend> backend_;
  Arena tensors_, control_;
  Registry registry_;
  Machine machine_;
  ModelPlan plan_;
  MatmulPrecision precision_ = MatmulPrecision::f32;
  std::unique_ptr<Model> model_;
  std::optional<KvCache> cache_;
  DraftChoice draft_;
  std::optional<DraftModel> draft_model_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // 1, 2, ..
  std::vector<std::int32_t> gpus_;            // [ranks] their GPUs; empty: a CPU
  OtherRanks other_ranks_, draft_ranks_;
  std::unique_ptr<Drafter> drafter_;
  std::optional<Engine> engine_;
  std::vector<TensorScales> kv_scales_;
  double load_seconds_ = 0;
  std::string device_note_;
};

}  // namespace lathe
