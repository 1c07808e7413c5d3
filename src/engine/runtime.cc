#include "engine/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/draft/check_draft_model.h"
#include "engine/draft/model_drafter.h"
#include "engine/draft/mtp_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/runner/memory_plan.h"
#include "io/files/read_file.h"
#include "kernels/devices/all.h"
#include "kernels/devices/find_machine.h"
#include "kernels/devices/query_gpu.h"
#include "model/layers/draft_layer.h"
#include "model/load/open_checkpoint.h"
#include "model/memory/fit_model.h"
#include "model/weights/kv_scales.h"
#include "plan/budget.h"
#include "plan/budget_flags.h"
#include "plan/model_plan.h"

namespace lathe {
namespace {

Result<MatmulPrecision> precision_of(const std::string& dtype, const Backend& backend,
                                     const ModelConfig& config) {
  const bool has_bf16 = backend.multiplies_in(MatmulPrecision::bf16);
  const auto fp8 = config.fp8_pow2 ? MatmulPrecision::fp8_pow2 : MatmulPrecision::fp8;
  if (dtype == "fp8" && !config.has_fp8()) {
    return Error{ErrorCode::unsupported, "--dtype", "fp8 with a checkpoint of fp8 weights",
                 "fp8 with other weights", "--dtype auto"};
  }
  if (dtype == "fp8" && !backend.multiplies_in(fp8)) {
    return Error{ErrorCode::unsupported, "--dtype", "fp8 on a GPU or a CPU",
                 "fp8 on the ref device", "--dtype float32, or auto"};
  }
  if (dtype == "fp8") return fp8;
  if (dtype == "int8" && config.quantization != Quantization::int4 && !config.has_fp8()) {
    return Error{ErrorCode::unsupported, "--dtype", "int8 with a checkpoint of int4 or fp8 weights",
                 "int8 with other weights", "--dtype auto"};
  }
  if (dtype == "int8" && !backend.multiplies_in(MatmulPrecision::int8)) {
    return Error{ErrorCode::unsupported, "--dtype", "int8 on a CPU with AVX512_VNNI",
                 fmt::format("int8 on {}", backend.device() == Device::cpu ? "a CPU without it"
                                           : is_gpu(backend.device())      ? "a GPU"
                                                                           : "the ref device"),
                 "--dtype auto"};
  }
  if (dtype == "int8") return MatmulPrecision::int8;
  if (dtype == "auto") return has_bf16 ? MatmulPrecision::bf16 : MatmulPrecision::f32;
  if (dtype == "float32" && !backend.multiplies_in(MatmulPrecision::f32)) {
    return Error{ErrorCode::unsupported, "--dtype", "bfloat16, fp8 or auto on a GPU", dtype,
                 "--device cpu multiplies in f32"};
  }
  if (dtype == "float32") return MatmulPrecision::f32;
  if (dtype != "bfloat16") {
    return Error{ErrorCode::invalid_argument, "--dtype", "auto, float32, bfloat16, fp8 or int8",
                 dtype, ""};
  }
  if (has_bf16) return MatmulPrecision::bf16;
  return Error{ErrorCode::unsupported, "--dtype",
               "bfloat16 on a GPU or on a CPU with AVX512_BF16 and AVX512_VBMI",
               backend.device() == Device::cpu ? "bfloat16 on a CPU without them"
                                               : "bfloat16 on the ref device",
               "--dtype float32, or auto"};
}

Result<ModelConfig> config_of(const RuntimeOptions& options) {
  if (options.config_file.empty()) return load_model_config(options.model, options.overrides);
  if (!options.dummy) {
    // Otherwise the plan would not be for the checkpoint's model.
    return Error{ErrorCode::invalid_argument, "--config", "--load-format dummy with it",
                 "a checkpoint's weights", "--load-format dummy, or --model alone"};
  }
  const auto text = read_file(options.config_file);
  if (!text) return text.error();
  return parse_model_config(*text, {}, options.overrides);
}

Result<void> check_context(const PlanRequest& request, const ModelConfig& config) {
  if (request.context_length <= config.max_context) return {};
  return Error{ErrorCode::invalid_argument, "--context-length",
               fmt::format("at most {} tokens, the model's context", config.max_context),
               fmt::format("{}", request.context_length),
               fmt::format("--context-length {}", config.max_context)};
}

// Bytes of the checkpoint's files; nothing for dummy weights. open_checkpoint() may untie the
// embeddings in `config`.
Result<std::optional<std::int64_t>> stored_bytes(const RuntimeOptions& options,
                                                 const std::string& directory,
                                                 ModelConfig& config) {
  if (options.dummy || options.make_model) return std::optional<std::int64_t>();
  const auto checkpoint = open_checkpoint(directory, config);
  if (!checkpoint) return checkpoint.error();
  return std::optional(checkpoint->total_bytes());
}

// The first reason, in one line.
std::string text_of(const StartError& error) {
  if (const Error* e = std::get_if<Error>(&error)) return e->message();
  const Refusal& refusal = std::get<Refusal>(error);
  if (refusal.reasons.empty()) return refusal.headline;
  const Reason& r = refusal.reasons.front();
  return fmt::format("{}: {} {}: wanted {}, got {}", refusal.headline, r.subject, r.field, r.wanted,
                     r.offered);
}

}  // namespace

Result<Runtime::Planned, StartError> Runtime::plan_on(const Machine& machine,
                                                      const RuntimeOptions& options,
                                                      const ModelConfig& config,
                                                      const PlanRequest& request,
                                                      std::optional<std::int64_t> stored) {
  auto backend = make_backend(machine.device, gpu_of(0));
  if (!backend) return StartError(backend.error());
  const auto precision = precision_of(options.dtype, **backend, config);
  if (!precision) return StartError(precision.error());
  machine_ = machine;
  registry_ = model_kernels(machine.device);
  // Memory that other processes or the backend hold is not available to the plan.
  if (is_gpu(machine.device)) machine_.memory_bytes = free_gpu_bytes(gpu_of(0));
  Machine left = machine_;
  if (draft_model_) {
    DraftModel& d = *draft_model_;
    auto plan =
        plan_draft_model(draft_.directory, d.config, d.stored, machine_, request, registry_);
    if (!plan) return StartError(plan.error());
    d.plan = std::move(*plan);
    left = beside_draft(machine_, draft_memory(), request);
  }
  ModelPlanResult plan = fit_model(config, stored, left, request, registry_);
  if (!plan && draft_model_) {
    return StartError(beside_draft_model(plan.error(), draft_.directory));
  }
  if (!plan) return StartError(plan.error());
  if (auto ok = check_separate_prefixes(*plan, request); !ok) {
    return StartError(ok.error());
  }
  if (auto ok = check_budget_flags(*plan, request); !ok && !draft_model_) {  // it has them, too
    return StartError(ok.error());
  }
  backend_ = std::move(*backend);
  precision_ = *precision;
  plan_ = std::move(*plan);
  return Planned();
}

Result<std::unique_ptr<Runtime>, StartError> Runtime::create(const RuntimeOptions& options) {
  if (const auto ok = check_ranks(options.plan_request); !ok) return StartError(ok.error());
  if (options.check_ranks && options.plan_request.tp == 1) {
    return StartError(Error{ErrorCode::invalid_argument, "--check-ranks", "--tp 2, 4 or 8 with it",
                            "--tp 1", ""});
  }
  if (const std::int32_t tp = options.plan_request.tp;
      options.threads > 0 && options.threads < tp) {
    return StartError(Error{ErrorCode::invalid_argument, "--threads",
                            fmt::format("one for each of {} ranks, or more", tp),
                            fmt::format("{}", options.threads), ""});
  }
  auto machine = find_machine(options.device, {options.plan_request.tp, options.gpus});
  if (!machine) return StartError(machine.error());
  if (!options.engine.overlap && !is_gpu(machine->device)) {
    return StartError(Error{ErrorCode::invalid_argument, "--disable-overlap-schedule",
                            "a GPU, whose steps may overlap",
                            fmt::format("--device {}", name(machine->device)), "leave it out"});
  }
  std::unique_ptr<Model> made = options.make_model ? options.make_model() : nullptr;
  auto config = made ? Result<ModelConfig>(made->config()) : config_of(options);
  if (!config) return StartError(config.error());

  PlanRequest request = options.plan_request;
  if (request.context_length == 0) request.context_length = config->max_context;
  if (const auto ok = check_context(request, *config); !ok) return StartError(ok.error());
  const auto draft = parse_draft(options.draft, options.draft_model);
  if (!draft) return StartError(draft.error());
  const auto draft_tokens = draft_tokens_of(draft->kind, request.draft_tokens);
  if (!draft_tokens) return StartError(draft_tokens.error());
  request.draft_tokens = *draft_tokens;
  if (draft->kind == DraftKind::mtp) config = add_draft_layer(std::move(*config));
  if (!config) return StartError(config.error());
  const auto stored = stored_bytes(options, options.model, *config);
  if (!stored) return StartError(stored.error());

  std::unique_ptr<Runtime> r(new Runtime(options.threads, request.tp));
  r->draft_ = *draft;
  if (auto ok = r->describe_draft_model(options, *config); !ok) return StartError(ok.error());
  if (const std::int32_t count = gpu_count(); is_gpu(machine->device) && count > 0) {
    auto gpus = choose_gpus({request.tp, options.gpus}, count);
    if (!gpus) return StartError(gpus.error());
    r->gpus_ = std::move(*gpus);
  }
  auto planned = r->plan_on(*machine, options, *config, request, *stored);
  // What asks for GPUs by name is not served by a CPU.
  const bool any_device = options.device == "auto" && options.gpus.empty() &&
                          request.exchange == "auto" && !request.separate_prefixes &&
                          options.engine.overlap;
  if (!planned && any_device && is_gpu(machine->device)) {
    r->device_note_ = fmt::format("the CPU runs this model, not {}: {}", machine->model,
                                  text_of(planned.error()));
    machine = describe_machine(Device::cpu);
    planned = r->plan_on(*machine, options, *config, request, *stored);
  }
  if (!planned) return planned.error();
  if (options.check_plan) {
    if (auto ok = options.check_plan(*config, r->plan_); !ok) return StartError(ok.error());
  }
  if (auto ok = r->start(options, *config, request, std::move(made)); !ok) {
    return StartError(ok.error());
  }
  return r;
}

// Makes what has been planned. made: the model, if a caller has made it.
Result<void> Runtime::start(const RuntimeOptions& options, const ModelConfig& config,
                            const PlanRequest& request, std::unique_ptr<Model> made) {
  if (auto ok = make_ranks(options); !ok) return ok;
  if (!options.kv_scales.empty()) {
    auto scales = read_kv_scales(options.kv_scales, config);
    if (!scales) return scales.error();
    if (const auto ok = check_takes_scales(plan_); !ok) return ok;
    kv_scales_ = std::move(*scales);
  }
  // Allocated first, so that a lack of memory is reported before the weights are read.
  if (auto ok = reserve_memory(); !ok) return ok;
  OpsContext ops = ops_of(request);
  if (auto ok = reserve_ranks(ops, options.check_ranks); !ok) return ok;
  if (auto ok = load_models(options, config, std::move(made)); !ok) return ok;
  const std::int64_t tokens = cache_tokens(plan_, request, rank_machine(machine_, request.tp),
                                           weight_bytes(), draft_memory());
  if (auto ok = make_caches(config, tokens, options.count_values); !ok) return ok;
  if (auto ok = reserve_exchanges(); !ok) return ok;
  if (auto ok = make_drafter(options, request, tokens, ops); !ok) return ok;
  return make_engine(options, request, ops);
}

// The draft model runs while the model does not, in the same arena and workspace.
Result<void> Runtime::reserve_memory() {
  const ModelPlan* draft = draft_memory().plan;
  tensors_ = Arena(backend_->memory());
  tensors_.reserve(std::max(tensor_bytes(plan_), draft != nullptr ? tensor_bytes(*draft) : 0));
  return backend_->reserve(shared_budgets(plan_, draft));
}

OpsContext Runtime::ops_of(const PlanRequest& request) {
  OpsContext ops;
  ops.backend = backend_.get();
  ops.execution.threads = &threads_;
  ops.execution.scratch = &scratch_;
  if (request.batch_invariant) ops.execution.batch_invariant = true;
  ops.precision = precision_;
  ops.tensors = &tensors_;
  ops.control = &control_;
  return ops;
}

Result<void> Runtime::load_models(const RuntimeOptions& options, const ModelConfig& config,
                                  std::unique_ptr<Model> made) {
  const auto start = std::chrono::steady_clock::now();
  LoadOptions load;
  load.threads = &threads_;
  load.backend = backend_.get();
  load.drafts = config.drafts;
  load.overrides = options.overrides;
  load.expansion = expands(plan_);
  load.on_progress = options.on_progress;
  if (made == nullptr) {
    const auto share = [&](const LoadOptions& of) {
      return options.dummy ? make_dummy_model(config, of) : load_model(options.model, of);
    };
    auto model = load_shares(share, load, plan_.ranks.parallel, false);
    if (!model) return model.error();
    made = std::move(*model);
  }
  model_ = std::move(made);
  if (auto ok = load_draft_model(options, load); !ok) return ok;
  load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

// Makes all ranks' caches of the model. count_values: counts what is written also without scales.
Result<void> Runtime::make_caches(const ModelConfig& config, std::int64_t tokens,
                                  bool count_values) {
  auto cache = KvCache::create(plan_, pool_sizes(plan_, tokens), backend_->memory());
  if (!cache) return cache.error();
  cache_.emplace(std::move(*cache));
  const bool scaled = has_tensor_scales(plan_);
  if (scaled && kv_scales_.empty()) kv_scales_ = model_->kv_scales();
  // A draft layer has no measured scales.
  if (scaled) kv_scales_.resize(static_cast<std::size_t>(config.cached_layers()));
  if (scaled) cache_->set_scales(kv_scales_);
  const bool counts = scaled || count_values;
  if (counts) cache_->count_values();
  return make_rank_caches(tokens, counts);
}

Result<void> Runtime::make_engine(const RuntimeOptions& options, const PlanRequest& request,
                                  const OpsContext& ops) {
  if (options.wrap_drafter) drafter_ = options.wrap_drafter(std::move(drafter_));
  EngineOptions engine_options = options.engine;
  engine_options.drafter = drafter_.get();
  engine_options.ranks = other_ranks();
  // Threads may take turns; a thread's device is GPU 0 unless it is set.
  engine_options.before_step = [process = process_, gpu = gpu_of(0)]() -> Result<void> {
    if (auto ok = process.check(); !ok) return ok;
    return gpu == 0 ? Result<void>() : use_gpu(gpu);
  };
  engine_options.draft_tokens = request.draft_tokens;
  // The plan's largest step may be one of decode rows, with more rows than a chunk.
  if (engine_options.chunked_prefill_size == 0) {
    engine_options.chunked_prefill_size = request.chunked_prefill_size;
  }
  auto engine = Engine::create(*model_, *cache_, engine_options, ops);
  if (!engine) return engine.error();
  engine_.emplace(std::move(*engine));
  return {};
}

// Reads and checks the draft model's configuration, before anything is planned.
Result<void> Runtime::describe_draft_model(const RuntimeOptions& options,
                                           const ModelConfig& target) {
  if (draft_.kind != DraftKind::model) return {};
  auto config = load_draft_config(draft_.directory, target);
  if (!config) return config.error();
  if (auto ok = check_same_tokens(draft_.directory, options.model); !ok) return ok;
  const auto stored = stored_bytes(options, draft_.directory, *config);
  if (!stored) return stored.error();
  draft_model_.emplace(DraftModel{std::move(*config), *stored, {}, nullptr, {}});
  return {};
}

Result<void> Runtime::load_draft_model(const RuntimeOptions& options, LoadOptions load) {
  if (!draft_model_) return {};
  load.drafts = false;
  load.overrides = {};
  load.on_progress = nullptr;
  load.expansion = expands(draft_model_->plan);
  const auto share = [&](const LoadOptions& of) {
    return options.dummy ? make_dummy_model(draft_model_->config, of)
                         : load_model(draft_.directory, of);
  };
  auto model = load_shares(share, load, draft_model_->plan.ranks.parallel, true);
  if (!model) return model.error();
  draft_model_->model = std::move(*model);
  return {};
}

Result<void> Runtime::make_drafter(const RuntimeOptions& options, const PlanRequest& request,
                                   std::int64_t tokens, const OpsContext& ops) {
  switch (draft_.kind) {
    case DraftKind::none:
      return {};
    case DraftKind::ngram:
      drafter_ = std::make_unique<NgramDrafter>();
      return {};
    case DraftKind::mtp: {
      auto made = MtpDrafter::create(*model_, *cache_, ops, other_ranks());
      if (!made) return made.error();
      drafter_ = std::make_unique<MtpDrafter>(std::move(*made));
      return {};
    }
    case DraftKind::model: {
      DraftModel& d = *draft_model_;
      auto cache = KvCache::create(d.plan, pool_sizes(d.plan, tokens), backend_->memory());
      if (!cache) return cache.error();
      d.cache.emplace(std::move(*cache));
      const ModelDrafterOptions drafting{
          .prefill_rows = request.chunked_prefill_size,
          .prefix_cache = options.engine.prefix_cache,
          .cost = d.model->step_weights(1).bytes / std::max(1.0, model_->step_weights(1).bytes)};
      auto made = ModelDrafter::create(*d.model, *d.cache, drafting, ops, draft_ranks());
      if (!made) return made.error();
      drafter_ = std::make_unique<ModelDrafter>(std::move(*made));
      return {};
    }
  }
  return {};
}

std::int64_t Runtime::weight_bytes() const {
  std::int64_t most = model_->weight_bytes();
  for (const auto& rank : ranks_) most = std::max(most, rank->model->weight_bytes());
  return most;
}

DraftMemory Runtime::draft_memory() const {
  if (!draft_model_) return {};
  const DraftModel& d = *draft_model_;
  std::int64_t most = d.model
                          ? d.model->weight_bytes()
                          : lathe::weight_bytes(d.config, d.stored, expands(d.plan), d.plan.ranks);
  if (!d.model) return {&d.plan, most};
  for (const auto& rank : ranks_) most = std::max(most, rank->draft_model->weight_bytes());
  return {&d.plan, most};
}

// Grouped-query ranks have keys of their own heads; all ranks have the same latents.
Result<std::vector<ValueCounts>> Runtime::stored_values() {
  auto collect = [this](std::int32_t r) {
    return (r == 0 ? backend_ : rank(r).backend)->collect_counts();
  };
  if (auto ok = group_ ? group_->run(collect) : collect(0); !ok) return ok.error();
  const bool own_heads = !config().is_mla() && !config().is_compressed();
  std::vector<ValueCounts> out;
  for (std::int32_t l = 0; l < config().layers; ++l) {
    const ValueTally* tally = cache_->tally(l);
    if (tally == nullptr) return std::vector<ValueCounts>{};
    ValueCounts& counts = out.emplace_back(tally->counts());
    // A KV head that several ranks have counts for each.
    for (const auto& rank : ranks_) {
      if (own_heads) counts.add(rank->cache->tally(l)->counts());
    }
  }
  return out;
}

}  // namespace lathe
