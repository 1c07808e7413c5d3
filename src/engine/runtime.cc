#include "engine/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "attn/planner.h"
#include "io/read_file.h"
#include "kernels/all.h"
#include "kernels/cpu/matmul_bf16.h"

namespace lathe {
namespace {

Result<Machine> machine_for_models(const std::string& device) {
  // Attention can be planned for GPUs; the operators around it run on the CPU.
  auto machine = find_machine(device == "auto" ? "cpu" : device);
  if (machine && is_gpu(machine->device)) {
    return Error{ErrorCode::unsupported, "--device", "cpu or ref, which run whole models",
                 std::string(name(machine->device)),
                 "--device cpu; lathe plan --device plans attention for it"};
  }
  return machine;
}

Result<MatmulPrecision> precision_of(const std::string& dtype, Device device) {
  const bool has_bf16 = device == Device::cpu && cpu_has_bf16_dot();
  if (dtype == "auto") return has_bf16 ? MatmulPrecision::bf16 : MatmulPrecision::f32;
  if (dtype == "float32") return MatmulPrecision::f32;
  if (dtype != "bfloat16") {
    return Error{ErrorCode::invalid_argument, "--dtype", "auto, float32 or bfloat16", dtype, ""};
  }
  if (has_bf16) return MatmulPrecision::bf16;
  return Error{
      ErrorCode::unsupported, "--dtype", "bfloat16 on a CPU with AVX512_BF16 and AVX512_VBMI",
      device == Device::cpu ? "bfloat16 on a CPU without them" : "bfloat16 on the ref device",
      "--dtype float32, or auto"};
}

Result<ModelConfig> config_of(const RuntimeOptions& options) {
  if (options.config_file.empty()) return load_model_config(options.model);
  if (!options.dummy) {
    // The plan would be one for another model than the checkpoint's.
    return Error{ErrorCode::invalid_argument, "--config", "--load-format dummy beside it",
                 "a checkpoint's weights", "--load-format dummy, or --model alone"};
  }
  const auto text = read_file(options.config_file);
  if (!text) return text.error();
  return parse_model_config(*text);
}

Result<void> check_context(const Wishes& wishes, const ModelConfig& config) {
  if (wishes.context_length <= config.max_context) return {};
  return Error{ErrorCode::invalid_argument, "--context-length",
               fmt::format("at most {} tokens, the model's context", config.max_context),
               fmt::format("{}", wishes.context_length), ""};
}

// Pages of the cache. Memory that no request has touched costs nothing, as the system hands it out
// page by page, so the ceiling is generous.
std::int64_t cache_pages(const Plan& plan, const Wishes& wishes, const Machine& machine,
                         std::int64_t weight_bytes) {
  const std::int64_t page = plan.main().page_size;
  if (wishes.max_total_tokens > 0) return (wishes.max_total_tokens + page - 1) / page;
  std::int64_t taken = weight_bytes;
  for (const Budget& b : plan.budgets) taken += b.bytes;
  double page_bytes = 0;
  for (const CachePlan& c : plan.caches) page_bytes += static_cast<double>(c.page_bytes());
  page_bytes *= plan.layers;
  const double left = static_cast<double>(std::max<std::int64_t>(0, machine.memory_bytes - taken));
  const auto fit = static_cast<std::int64_t>(left / 2 / page_bytes);
  const std::int64_t pages = (plan.context_length + page - 1) / page;
  return std::max<std::int64_t>(1, std::min({fit, plan.max_requests * pages, kMaxSlots / page}));
}

}  // namespace

Result<std::unique_ptr<Runtime>, StartError> Runtime::create(const RuntimeOptions& options) {
  auto machine = machine_for_models(options.device);
  if (!machine) return StartError(machine.error());
  const auto precision = precision_of(options.dtype, machine->device);
  if (!precision) return StartError(precision.error());
  auto config = config_of(options);
  if (!config) return StartError(config.error());
  if (config->groups.size() > 1) {
    return StartError(Error{ErrorCode::unsupported, config->architecture,
                            "layers that share one attention problem",
                            fmt::format("{} groups", config->groups.size()), ""});
  }

  Wishes wishes = options.wishes;
  wishes.layers = config->layers;
  if (wishes.context_length == 0) wishes.context_length = config->max_context;
  if (const auto ok = check_context(wishes, *config); !ok) return StartError(ok.error());

  std::unique_ptr<Runtime> r(new Runtime(options.threads));
  r->machine_ = *machine;
  r->precision_ = *precision;
  r->registry_ = all_kernels();
  PlanResult plan = make_plan(config->groups.front().problem, *machine, wishes, r->registry_);
  if (!plan) return StartError(plan.error());
  r->plan_ = std::move(*plan);

  const auto start = std::chrono::steady_clock::now();
  LoadOptions load;
  load.threads = &r->threads_;
  load.on_progress = options.on_progress;
  auto model = options.dummy ? make_dummy_model(*config, load) : load_model(options.model, load);
  if (!model) return StartError(model.error());
  r->model_ = std::move(*model);
  r->load_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  PoolSize size;
  size.pages = cache_pages(r->plan_, wishes, *machine, r->model_->weight_bytes());
  auto cache = KvCache::create(r->plan_, r->registry_, size);
  if (!cache) return StartError(cache.error());
  r->cache_.emplace(std::move(*cache));

  OpsContext ops;
  ops.device = machine->device;
  ops.execution.threads = &r->threads_;
  ops.execution.scratch = &r->scratch_;
  ops.precision = *precision;
  ops.arena = &r->arena_;
  auto engine = Engine::create(*r->model_, *r->cache_, options.engine, ops);
  if (!engine) return StartError(engine.error());
  r->engine_.emplace(std::move(*engine));
  return r;
}

}  // namespace lathe
