// lathe inspect: what a checkpoint is, and what its cache costs in every layout that has a plan.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/checkpoint/checkpoint.h"
#include "io/files/model_path.h"
#include "io/files/read_file.h"
#include "io/tokenizer/tokenizer.h"
#include "kernels/devices/all.h"
#include "kernels/devices/find_machine.h"
#include "model/config/config.h"
#include "model/load/check_tensors.h"
#include "model/load/format_counts.h"
#include "model/load/open_checkpoint.h"
#include "model/memory/fit_model.h"
#include "model/weights/tensor_table.h"
#include "model/weights/weights.h"
#include "plan/explain.h"
#include "plan/model_plan.h"
#include "tools/flags/command.h"
#include "tools/flags/override_flags.h"

namespace lathe {
namespace {

struct InspectFlags {
  std::string model;
  ConfigOverrides overrides;
  std::string device = "cpu";
  bool json = false;
};

struct DTypeShare {
  std::int64_t tensors = 0;
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
};

struct LayoutRow {
  std::string layout;
  double bytes_per_token = 0;     // all layers and pools
  std::int64_t fits = 0;          // tokens in the memory that weights and buffers leave
  std::optional<ModelPlan> plan;  // none: refused
  std::string reason;             // of a refusal; bytes_per_token is 0 where no machine has a plan
};

// The weights of a checkpoint, or the weights that a configuration alone describes.
struct WeightFacts {
  std::map<std::string, DTypeShare> shares;     // by dtype
  std::map<std::string, std::int64_t> formats;  // matrices, of a checkpoint
  std::int64_t parameters = 0;  // elements of the model's tensors, whatever packs them in files
  std::int64_t bytes = 0;
  std::optional<std::int64_t> stored;  // bytes, of a checkpoint
  std::size_t files = 0;

  void add(std::string_view dtype, std::span<const std::int64_t> shape, std::int64_t size) {
    DTypeShare& s = shares[std::string(dtype)];
    std::int64_t elements = 1;
    for (std::int64_t n : shape) elements *= n;
    ++s.tensors;
    s.elements += elements;
    s.bytes += size;
  }
};

std::int64_t parameters_of(const ModelConfig& config) {
  ModelWeights nowhere(config);
  std::int64_t out = 0;
  for (const TensorSpec& spec : tensor_table(config, nowhere)) out += spec.part.elements();
  return out;
}

WeightFacts facts_of(const ModelConfig& config, const Checkpoint& checkpoint) {
  WeightFacts out;
  out.parameters = parameters_of(config);
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    out.add(name(t.dtype), t.shape, std::ssize(t.bytes));
  }
  out.stored = out.bytes = checkpoint.total_bytes();
  out.files = checkpoint.shards().size();
  out.formats = count_formats(checkpoint);
  return out;
}

WeightFacts facts_of(const ModelConfig& config) {
  ModelWeights nowhere(config);
  WeightFacts out;
  out.parameters = parameters_of(config);
  for (const TensorSpec& spec : tensor_table(config, nowhere)) {
    const std::int64_t bytes = dummy_bytes(config, spec);
    out.add(name(dummy_dtype(config, spec)), spec.shape, bytes);
    out.bytes += bytes;
  }
  return out;
}

LayoutRow plan_row(const ModelConfig& config, const Machine& machine, const Registry& registry,
                   LayoutKind kind, const WeightFacts& weights) {
  LayoutRow row;
  row.layout = name(kind);
  PlanRequest request;
  request.layout = row.layout;
  request.context_length = config.max_context;
  const ModelPlanResult plan = fit_model(config, weights.stored, machine, request, registry);
  if (!plan) {
    const Refusal& refusal = plan.error();
    row.reason = refusal.reasons.empty()
                     ? refusal.headline
                     : fmt::format("{} wanted {}, offered {}", refusal.reasons.front().field,
                                   refusal.reasons.front().wanted, refusal.reasons.front().offered);
    // What a token needs does not depend on the machine's memory, nor on its kernels.
    for (Machine roomy : {machine, describe_machine(Device::ref)}) {
      roomy.memory_bytes = std::int64_t{1} << 60;
      const ModelPlanResult any = fit_model(config, weights.stored, roomy, request, registry);
      if (!any) continue;
      row.bytes_per_token = any->bytes_per_token();
      break;
    }
    return row;
  }
  row.bytes_per_token = plan->bytes_per_token();
  const std::int64_t left = machine.memory_bytes - plan->buffer_bytes() -
                            weight_bytes(config, weights.stored, expands(*plan));
  // Windows alone hold any number of tokens.
  row.fits = row.bytes_per_token > 0
                 ? static_cast<std::int64_t>(static_cast<double>(left) / row.bytes_per_token)
                 : config.max_context;
  row.plan = *plan;
  return row;
}

std::string attention_text(const AttentionProblem& p) {
  if (p.kind == ProblemKind::grouped_query) {
    std::string out = fmt::format("{}: {} heads over {} of width {}", name(p.kind), p.heads,
                                  p.kv_heads, p.head_dim);
    return out + window_text(p);
  }
  std::string out =
      fmt::format("{}: {} heads, latent {} + rotary {}", name(p.kind), p.heads, p.nope, p.rope);
  out += window_text(p);
  if (p.two_sources()) out += fmt::format(", an entry of every {} tokens", p.compress_ratio);
  if (p.sparse()) {
    out += fmt::format(", the best {} {} by {} index heads of {}", p.top_k,
                       p.two_sources() ? "entries" : "keys", p.index_heads, p.index_dim);
  }
  return out;
}

std::string experts_text(const MoeConfig& m) {
  const auto layers = std::count(m.layer_has_experts.begin(), m.layer_has_experts.end(), 1);
  return fmt::format("{} of width {} in {} layers, {} a token{}", m.experts, m.ffn, layers, m.top_k,
                     m.shared > 0 ? fmt::format(" and {} shared", m.shared) : "");
}

std::string delta_text(const DeltaConfig& delta) {
  const DeltaRuleProblem& p = delta.problem;
  return fmt::format("delta rule, {} heads, {} key heads, state {} x {} each; {}", p.heads,
                     p.key_heads, p.dk, p.dv, layers_text(delta.layers));
}

// The quantisation that config.json names where no tensor has one; empty: it names none, or some
// have.
std::string missing_format(const ModelConfig& config, const WeightFacts& weights) {
  const bool plain = std::ranges::all_of(weights.shares, [](const auto& share) {
    return share.first == "F32" || share.first == "F16" || share.first == "BF16";
  });
  if (!weights.stored || !plain) return "";
  if (config.mxfp4) return "mxfp4";
  return config.quantization == Quantization::none ? "" : std::string(name(config.quantization));
}

std::string text(const ModelConfig& config, const WeightFacts& weights, const Machine& machine,
                 const std::vector<LayoutRow>& rows) {
  const auto line = [](std::string_view label, const std::string& value) {
    return fmt::format("{:<14}{}\n", label, value);
  };
  std::string out = line("architecture",
                         fmt::format("{}, {} layers, hidden {}, vocabulary {}", config.architecture,
                                     config.layers, config.hidden, config.vocab));
  for (const LayerGroupConfig& g : config.groups) {
    const bool alone = config.groups.size() == 1 && config.delta.layers.empty();
    out += line(&g == &config.groups.front() ? "attention" : "",
                attention_text(g.problem) + (alone ? "" : "; " + layers_text(g.layers)));
  }
  if (!config.delta.layers.empty()) out += line("", delta_text(config.delta));
  if (config.moe.experts > 0) out += line("experts", experts_text(config.moe));
  out += line("head", config.tied_embeddings ? "the embeddings" : "lm_head, its own");
  out += line("context", fmt::format("{} tokens", config.max_context));
  out += line("weights", fmt::format("{:.1f} M parameters, {:.1f} MB{}",
                                     static_cast<double>(weights.parameters) / 1e6,
                                     static_cast<double>(weights.bytes) / 1e6,
                                     weights.stored ? fmt::format(" in {} file{}", weights.files,
                                                                  weights.files == 1 ? "" : "s")
                                                    : ", as the configuration describes them"));
  for (const auto& [dtype, s] : weights.shares) {
    out += line("", fmt::format("{:<8} {:>5} tensors  {:>14} elements  {:>10}", dtype, s.tensors,
                                s.elements, human_bytes(s.bytes)));
  }
  if (const std::string format = missing_format(config, weights); !format.empty()) {
    out += line("",
                fmt::format("config.json says {}; the tensors are plain and read as such", format));
  }
  std::string_view label = "formats";
  for (const auto& [format, matrices] : weights.formats) {
    const bool one = matrices == 1;
    out += line(label, fmt::format("{} matri{} in {}", matrices, one ? "x" : "ces", format));
    label = "";
  }
  out +=
      line("machine", fmt::format("{} ({}), {} processors, {}", machine.model, name(machine.device),
                                  machine.processors, human_bytes(machine.memory_bytes)));
  out += fmt::format("\n{:<15}{:>12}  {:>16}  {}\n", "cache layout", "B/token", "longest context",
                     "plan");
  for (const LayoutRow& r : rows) {
    if (!r.plan) {
      const std::string bytes =
          r.bytes_per_token > 0 ? fmt::format("{:.0f}", r.bytes_per_token) : "";
      out += fmt::format("{:<15}{:>12}  {:>16}  refused: {}\n", r.layout, bytes, "", r.reason);
      continue;
    }
    const bool whole = r.fits >= config.max_context;
    out += fmt::format("{:<15}{:>12.0f}  {:>16}  {}\n", r.layout, r.bytes_per_token,
                       whole ? config.max_context : r.fits, summary(*r.plan));
  }
  return out;
}

nlohmann::ordered_json json(const ModelConfig& config, const WeightFacts& weights,
                            const std::vector<LayoutRow>& rows) {
  nlohmann::ordered_json j = {{"architecture", config.architecture},
                              {"layers", config.layers},
                              {"hidden", config.hidden},
                              {"vocab", config.vocab},
                              {"context", config.max_context},
                              {"attention", name(config.groups.front().problem.kind)},
                              {"tied_embeddings", config.tied_embeddings},
                              {"parameters", weights.parameters},
                              {"weight_bytes", weights.bytes}};
  for (const LayerGroupConfig& g : config.groups) {
    if (config.groups.size() == 1) break;
    j["groups"].push_back({{"name", g.name},
                           {"attention", name(g.problem.kind)},
                           {"window", g.problem.window},
                           {"chunked", g.problem.chunked},
                           {"compress_ratio", g.problem.compress_ratio},
                           {"layers", g.layers}});
  }
  if (!config.delta.layers.empty()) j["delta_layers"] = config.delta.layers;
  for (const auto& [dtype, s] : weights.shares) {
    j["weights"][dtype] = {{"tensors", s.tensors}, {"elements", s.elements}, {"bytes", s.bytes}};
  }
  for (const auto& [format, matrices] : weights.formats) j["formats"][format] = matrices;
  j["layouts"] = nlohmann::ordered_json::array();
  for (const LayoutRow& r : rows) {
    nlohmann::ordered_json row = {{"layout", r.layout}, {"legal", r.plan.has_value()}};
    if (r.bytes_per_token > 0) row["bytes_per_token"] = r.bytes_per_token;
    if (r.plan) {
      row["tokens_that_fit"] = r.fits;
      row["longest_context"] = std::min<std::int64_t>(r.fits, config.max_context);
      row["plan"] = summary(*r.plan);
    } else {
      row["reason"] = r.reason;
    }
    j["layouts"].push_back(std::move(row));
  }
  return j;
}

// A model without a tokenizer runs on token ids; one that cannot be read stops every command.
Result<void> check_tokenizer(const std::string& model) {
  if (!is_listed(Tokenizer::file_in(model))) return {};
  const auto tokenizer = Tokenizer::load(model);
  return tokenizer ? Result<void>() : tokenizer.error();
}

int run_inspect(const InspectFlags& flags) {
  const bool config_alone = std::filesystem::is_regular_file(flags.model);
  auto config = [&]() -> Result<ModelConfig> {
    if (const auto ok = check_model_path(flags.model); !ok) return ok.error();
    if (!config_alone) return load_model_config(flags.model, flags.overrides);
    // With the files next to it that say more of the model.
    const std::filesystem::path file(flags.model);
    if (file.filename() == "config.json") {
      return load_model_config(file.parent_path().empty() ? "." : file.parent_path().string(),
                               flags.overrides);
    }
    const auto text = read_file(flags.model);
    if (!text) return text.error();
    return parse_model_config(*text, {}, flags.overrides);
  }();
  if (!config) return refuse(config.error());
  WeightFacts weights;
  if (config_alone) {
    weights = facts_of(*config);
  } else {
    const auto checkpoint = open_checkpoint(flags.model, *config);
    if (!checkpoint) return refuse(checkpoint.error());
    ThreadPool threads(0);
    const auto ok = check_scales(flags.model, *config, *checkpoint, &threads);
    if (!ok) return refuse(ok.error());
    if (const auto read = check_tokenizer(flags.model); !read) return refuse(read.error());
    weights = facts_of(*config, *checkpoint);
  }
  const auto machine = find_machine(flags.device);
  if (!machine) return refuse(machine.error());
  const Registry registry = model_kernels(machine->device);
  std::vector<LayoutRow> rows;
  for (const LayoutKind kind : layouts_by_precision(config->groups.front().problem.kind)) {
    rows.push_back(plan_row(*config, *machine, registry, kind, weights));
  }
  print_out(flags.json ? json_text(json(*config, weights, rows), 2) + "\n"
                       : text(*config, weights, *machine, rows));
  return kExitOk;
}

}  // namespace

void add_inspect_command(Command app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  Command cmd =
      app.add_subcommand("inspect", "Show a checkpoint, and what its cache costs in every layout");
  cmd.add_option("model", flags->model,
                 "directory with config.json and *.safetensors, or a config.json alone")
      .required();
  cmd.add_option("--device", flags->device, "auto, cuda, cpu, or a machine: sm80, sm90, sm100");
  add_override_flags(cmd, flags->overrides);
  cmd.add_flag("--json", flags->json, "as data on stdout");
  cmd.callback([flags, &exit_code] { exit_code = run_inspect(*flags); });
}

}  // namespace lathe
