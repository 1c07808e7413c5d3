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
#include "base/result.h"
#include "base/threads.h"
#include "engine/draft/draft_kind.h"
#include "engine/engine.h"
#include "engine/runner/memory_plan.h"
#include "model/cache.h"
#include "model/model.h"
#include "plan/model_plan.h"
#include "plan/plan_request.h"
#include "plan/reason.h"
#include "plan/registry.h"

namespace lathe {

struct RuntimeOptions {
  std::string model;        // directory of a checkpoint
  std::string config_file;  // instead of a directory's config.json; with dummy weights only
  bool dummy = false;       // --load-format dummy
  std::function<std::unique_ptr<Model>()> make_model;  // instead of any checkpoint; may be empty
  std::string device = "auto";
  // float32, bfloat16, fp8 (see MatmulPrecision) or auto: bfloat16 on a GPU and where the CPU has
  // dot products of bf16 pairs. float32 and bfloat16 are of bf16 and e4m3 weights only; fp8 needs a
  // checkpoint of e4m3 weights.
  std::string dtype = "auto";
  int threads = 0;  // 0: one per core
  // Of per-tensor caches; empty: the checkpoint's scales, or 1 where it gives none.
  std::string kv_scales;
  // Count what is written to the cache whatever its layout; per-tensor caches are always counted.
  bool count_values = false;
  // context_length 0 is the model's own; layers is the model's. max_total_tokens 0: what all
  // running requests can hold, within half of the memory that weights and buffers leave.
  // draft_tokens 0 is what suits the drafter.
  PlanRequest plan_request{.context_length = 0};
  std::string draft = "none";  // --draft: a DraftKind, or a draft model's directory
  std::string draft_model;     // --speculative-draft-model-path
  // Puts another drafter before that one; may be empty.
  std::function<std::unique_ptr<Drafter>(std::unique_ptr<Drafter>)> wrap_drafter;
  // Its drafter and draft_tokens are the runtime's.
  EngineOptions engine;
  // Bytes of weights loaded and in all; may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
};

/// Why there is no runtime: an error, or a plan that was refused with reasons.
using StartError = std::variant<Error, Refusal>;

class Runtime {
 public:
  /// Errors: those of the configuration, the planner, the checkpoint, the pools, the drafter and
  /// the engine; a context length beyond the model's; a device that models don't run on, or that is
  /// not there or unfit; a dtype that the device does not multiply in. Device "auto": the GPU where
  /// there is one that serves the model, else the CPU.
  static Result<std::unique_ptr<Runtime>, StartError> create(const RuntimeOptions& options);
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
  KvCache& cache() { return *cache_; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  ThreadPool& threads() { return threads_; }
  Backend& backend() { return *backend_; }
  double load_seconds() const { return load_seconds_; }
  /// Of the cache's layers, [layers]; empty where no cache has scales of its own.
  const std::vector<TensorScales>& kv_scales() const { return kv_scales_; }
  /// What has been written to each layer's cache, [layers]; empty where nothing is counted. Not
  /// while a step is in flight. Errors: the device's.
  Result<std::vector<ValueCounts>> stored_values();
  /// Why `--device auto` runs the model on the CPU of a computer with a GPU; else empty.
  const std::string& device_note() const { return device_note_; }

 private:
  struct Planned {};
  explicit Runtime(int threads) : threads_(threads) {}
  Result<Planned, StartError> plan_on(const Machine& machine, const RuntimeOptions& options,
                                      const ModelConfig& config, const PlanRequest& request,
                                      std::optional<std::int64_t> stored);
  Result<void> describe_draft_model(const RuntimeOptions& options, const ModelConfig& target);
  Result<void> load_draft_model(const RuntimeOptions& options, LoadOptions load);
  Result<void> make_drafter(const RuntimeOptions& options, const PlanRequest& request,
                            std::int64_t tokens, const OpsContext& ops);

  // A separate draft model, with the pools that it keeps its keys in.
  struct DraftModel {
    ModelConfig config;
    std::optional<std::int64_t> stored;
    ModelPlan plan;
    std::unique_ptr<Model> model;
    std::optional<KvCache> cache;
  };

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
  std::unique_ptr<Drafter> drafter_;
  std::optional<Engine> engine_;
  std::vector<TensorScales> kv_scales_;
  double load_seconds_ = 0;
  std::string device_note_;
};

}  // namespace lathe
