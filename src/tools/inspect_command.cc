// lathe inspect: what a checkpoint is, and what its cache costs in every layout that has a plan.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/explain.h"
#include "attn/model_plan.h"
#include "io/checkpoint.h"
#include "kernels/all.h"
#include "kernels/find_machine.h"
#include "model/config.h"
#include "tools/command.h"

namespace lathe {
namespace {

struct InspectFlags {
  std::string model;
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
  std::string reason;             // of a refusal
};

std::map<std::string, DTypeShare> shares(const Checkpoint& checkpoint) {
  std::map<std::string, DTypeShare> out;
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    DTypeShare& s = out[std::string(name(t.dtype))];
    std::int64_t elements = 1;
    for (std::int64_t n : t.shape) elements *= n;
    ++s.tensors;
    s.elements += elements;
    s.bytes += std::ssize(t.bytes);
  }
  return out;
}

// Elements of all tensors but the factors of fp8 blocks.
std::int64_t parameters(const Checkpoint& checkpoint) {
  std::int64_t sum = 0;
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    if (t.name.ends_with("_scale_inv")) continue;
    std::int64_t elements = 1;
    for (std::int64_t n : t.shape) elements *= n;
    sum += elements;
  }
  return sum;
}

LayoutRow plan_row(const ModelConfig& config, const Machine& machine, const Registry& registry,
                   LayoutKind kind, std::int64_t weight_bytes) {
  LayoutRow row;
  row.layout = name(kind);
  Wishes wishes;
  wishes.layout = row.layout;
  wishes.context_length = config.max_context;
  ModelPlanResult plan = make_model_plan(config.layer_groups(), machine, wishes, registry);
  if (!plan) {
    const Refusal& refusal = plan.error();
    row.reason = refusal.reasons.empty()
                     ? refusal.headline
                     : fmt::format("{} wanted {}, offered {}", refusal.reasons.front().field,
                                   refusal.reasons.front().wanted, refusal.reasons.front().offered);
    return row;
  }
  row.bytes_per_token = plan->bytes_per_token();
  const std::int64_t left =
      std::max<std::int64_t>(0, machine.memory_bytes - weight_bytes - plan->buffer_bytes());
  row.fits = static_cast<std::int64_t>(static_cast<double>(left) / row.bytes_per_token);
  row.plan = std::move(*plan);
  return row;
}

std::string attention_text(const AttentionProblem& p) {
  if (p.kind == ProblemKind::grouped_query) {
    std::string out = fmt::format("{}: {} heads over {} of width {}", name(p.kind), p.heads,
                                  p.kv_heads, p.head_dim);
    if (p.window > 0) out += fmt::format(", window {}", p.window);
    return out;
  }
  std::string out =
      fmt::format("{}: {} heads, latent {} + rotary {}", name(p.kind), p.heads, p.nope, p.rope);
  if (p.sparse()) {
    out += fmt::format(", the best {} keys by {} index heads of {}", p.top_k, p.index_heads,
                       p.index_dim);
  }
  return out;
}

std::string experts_text(const MoeConfig& m) {
  const auto layers = std::count(m.layer_has_experts.begin(), m.layer_has_experts.end(), 1);
  return fmt::format("{} of width {} in {} layers, {} a token{}", m.experts, m.ffn, layers, m.top_k,
                     m.shared > 0 ? fmt::format(" and {} shared", m.shared) : "");
}

std::string text(const ModelConfig& config, const Checkpoint& checkpoint, const Machine& machine,
                 const std::vector<LayoutRow>& rows) {
  const auto line = [](std::string_view label, const std::string& value) {
    return fmt::format("{:<14}{}\n", label, value);
  };
  std::string out = line("architecture",
                         fmt::format("{}, {} layers, hidden {}, vocabulary {}", config.architecture,
                                     config.layers, config.hidden, config.vocab));
  for (const LayerGroupConfig& g : config.groups) {
    const bool alone = config.groups.size() == 1;
    out += line(&g == &config.groups.front() ? "attention" : "",
                attention_text(g.problem) + (alone ? "" : "; " + layers_text(g.layers)));
  }
  if (config.moe.experts > 0) out += line("experts", experts_text(config.moe));
  out += line("context", fmt::format("{} tokens", config.max_context));
  out += line("weights",
              fmt::format("{:.1f} M parameters, {:.1f} MB in {} file{}",
                          static_cast<double>(parameters(checkpoint)) / 1e6,
                          static_cast<double>(checkpoint.total_bytes()) / 1e6,
                          checkpoint.shards().size(), checkpoint.shards().size() == 1 ? "" : "s"));
  for (const auto& [dtype, s] : shares(checkpoint)) {
    out += line("", fmt::format("{:<8} {:>5} tensors  {:>14} elements  {:>10}", dtype, s.tensors,
                                s.elements, human_bytes(s.bytes)));
  }
  out +=
      line("machine", fmt::format("{} ({}), {} processors, {}", machine.model, name(machine.device),
                                  machine.processors, human_bytes(machine.memory_bytes)));
  out += fmt::format("\n{:<15}{:>12}  {:>16}  {}\n", "cache layout", "B/token", "longest context",
                     "plan");
  for (const LayoutRow& r : rows) {
    if (!r.plan) {
      out += fmt::format("{:<15}{:>12}  {:>16}  refused: {}\n", r.layout, "", "", r.reason);
      continue;
    }
    const bool whole = r.fits >= config.max_context;
    out += fmt::format("{:<15}{:>12.0f}  {:>16}  {}\n", r.layout, r.bytes_per_token,
                       whole ? config.max_context : r.fits, summary(*r.plan));
  }
  return out;
}

nlohmann::ordered_json json(const ModelConfig& config, const Checkpoint& checkpoint,
                            const std::vector<LayoutRow>& rows) {
  nlohmann::ordered_json j = {{"architecture", config.architecture},
                              {"layers", config.layers},
                              {"hidden", config.hidden},
                              {"vocab", config.vocab},
                              {"context", config.max_context},
                              {"attention", name(config.groups.front().problem.kind)},
                              {"parameters", parameters(checkpoint)},
                              {"weight_bytes", checkpoint.total_bytes()}};
  for (const LayerGroupConfig& g : config.groups) {
    if (config.groups.size() == 1) break;
    j["groups"].push_back({{"name", g.name},
                           {"attention", name(g.problem.kind)},
                           {"window", g.problem.window},
                           {"layers", g.layers}});
  }
  for (const auto& [dtype, s] : shares(checkpoint)) {
    j["weights"][dtype] = {{"tensors", s.tensors}, {"elements", s.elements}, {"bytes", s.bytes}};
  }
  j["layouts"] = nlohmann::ordered_json::array();
  for (const LayoutRow& r : rows) {
    nlohmann::ordered_json row = {{"layout", r.layout}, {"legal", r.plan.has_value()}};
    if (r.plan) {
      row["bytes_per_token"] = r.bytes_per_token;
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

int run_inspect(const InspectFlags& flags) {
  const auto config = load_model_config(flags.model);
  if (!config) return refuse(config.error());
  const auto checkpoint = Checkpoint::open(flags.model);
  if (!checkpoint) return refuse(checkpoint.error());
  const auto machine = find_machine(flags.device);
  if (!machine) return refuse(machine.error());
  const Registry registry = all_kernels();
  std::vector<LayoutRow> rows;
  for (const LayoutKind kind : layouts_of(config->groups.front().problem)) {
    rows.push_back(plan_row(*config, *machine, registry, kind, checkpoint->total_bytes()));
  }
  print_out(flags.json ? json(*config, *checkpoint, rows).dump(2) + "\n"
                       : text(*config, *checkpoint, *machine, rows));
  return kExitOk;
}

}  // namespace

void add_inspect_command(Command app, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  Command cmd =
      app.add_subcommand("inspect", "Show a checkpoint, and what its cache costs in every layout");
  cmd.add_option("model", flags->model, "directory with config.json and *.safetensors").required();
  cmd.add_option("--device", flags->device, "auto, cuda, cpu, or a machine: sm80, sm90, sm100");
  cmd.add_flag("--json", flags->json, "as data on stdout");
  cmd.callback([flags, &exit_code] { exit_code = run_inspect(*flags); });
}

}  // namespace lathe
