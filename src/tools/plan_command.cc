// lathe plan: proves that a prefill kernel, a cache layout and a decode kernel fit together, or
// says why not.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/problem_name.h"
#include "base/json.h"
#include "engine/draft/check_draft_model.h"
#include "engine/draft/draft_kind.h"
#include "engine/runner/memory_plan.h"
#include "io/files/read_file.h"
#include "kernels/devices/all.h"
#include "kernels/devices/find_machine.h"
#include "kernels/devices/query_gpu.h"
#include "model/config/config.h"
#include "model/layers/draft_layer.h"
#include "model/load/check_tensors.h"
#include "model/load/open_checkpoint.h"
#include "model/memory/fit_model.h"
#include "model/weights/kv_scales.h"
#include "plan/budget_flags.h"
#include "plan/explain.h"
#include "plan/matrix.h"
#include "plan/model_plan.h"
#include "plan/plan_json.h"
#include "tools/flags/command.h"
#include "tools/flags/override_flags.h"
#include "tools/flags/plan_flags.h"

namespace lathe {
namespace {

struct PlanFlags {
  std::string attention = "dsa";
  std::string model;
  std::string config;
  ConfigOverrides overrides;
  std::string kv_scales;
  std::string draft = "none";
  std::string draft_model;
  bool context_given = false;
  std::string device = "auto";
  std::string gpus;
  PlanRequest request;
  ProblemOptions dims;
  bool disable_cuda_graph = false;
  bool json = false;
  bool explain = false;
  bool matrix = false;
  bool rules = false;
  bool kinds = false;
  bool kernels = false;
};

// The subject of a plan: a model, or the attention problem of --attention alone.
struct Subject {
  std::optional<ModelConfig> config;
  std::optional<std::int64_t> stored;  // bytes of the checkpoint's weights, if it has some
  std::vector<LayerGroup> groups;      // without a model: one, without layers
  std::string draft_directory;         // of a draft model; empty: there is none
  std::optional<ModelConfig> draft;
  std::optional<std::int64_t> draft_stored;
};

// Bytes of a checkpoint's weights; nothing where a directory has a configuration alone. Refuses
// files that generate would refuse: their plan would be of another model.
Result<std::optional<std::int64_t>> stored_bytes(const std::string& directory,
                                                 ModelConfig& config) {
  if (!has_weight_files(directory)) return std::optional<std::int64_t>();
  const auto checkpoint = open_checkpoint(directory, config);
  if (!checkpoint) return checkpoint.error();
  if (const auto ok = check_tensors(directory, config, *checkpoint); !ok) return ok.error();
  return std::optional(checkpoint->total_bytes());
}

// Fills in the fields of `request` that the user left open and the model or the drafter determines.
Result<Subject> subject_of(const PlanFlags& flags, PlanRequest& request) {
  const auto draft = parse_draft(flags.draft, flags.draft_model);
  if (!draft) return draft.error();
  if (draft->kind != DraftKind::none) {
    const auto tokens = draft_tokens_of(draft->kind, request.draft_tokens);
    if (!tokens) return tokens.error();
    request.draft_tokens = *tokens;
  }
  const bool mtp = draft->kind == DraftKind::mtp;
  const bool separate = draft->kind == DraftKind::model;
  if (flags.model.empty() && flags.config.empty()) {
    if (mtp || separate) {
      return Error{ErrorCode::invalid_argument, "--draft", "a model with --draft " + draft->text(),
                   "an attention problem alone", "--model DIR or --config FILE"};
    }
    const auto problem = problem_from_name(flags.attention, flags.dims);
    if (!problem) return problem.error();
    Subject out;
    out.groups = {LayerGroup{"all", *problem, {}, 0}};
    return out;
  }
  Result<ModelConfig> config = [&]() -> Result<ModelConfig> {
    if (flags.config.empty()) return load_model_config(flags.model, flags.overrides);
    const auto text = read_flag_file("--config", flags.config);
    if (!text) return text.error();
    return parse_model_config(*text, {}, flags.overrides);
  }();
  if (config && mtp) config = add_draft_layer(std::move(*config));
  if (!config) return config.error();
  if (!flags.context_given) request.context_length = config->max_context;
  request.layers = config->layers;
  Subject out;
  if (separate) {
    auto drafting = load_draft_config(draft->directory, *config);
    if (!drafting) return drafting.error();
    if (auto ok = check_same_tokens(draft->directory, flags.model); !ok) return ok.error();
    out.draft_directory = draft->directory;
    const auto stored = stored_bytes(draft->directory, *drafting);
    if (!stored) return stored.error();
    out.draft = *drafting;
    out.draft_stored = *stored;
  }
  if (flags.config.empty()) {
    const auto stored = stored_bytes(flags.model, *config);
    if (!stored) return stored.error();
    out.stored = *stored;
  }
  out.config = *config;
  out.groups = config->layer_groups();
  return out;
}

ModelPlanResult plan_subject(const Subject& subject, const Machine& machine,
                             const PlanRequest& request, const Registry& registry,
                             std::vector<Rejection>& rejections) {
  if (subject.config) {
    return fit_model(*subject.config, subject.stored, machine, request, registry, &rejections);
  }
  PlanResult plan =
      make_plan(subject.groups.front().problem, machine, request, registry, &rejections);
  if (!plan) return plan.error();
  return one_group(*std::move(plan));
}

int print_matrix(const PlanFlags& flags, const std::vector<LayerGroup>& groups,
                 const Machine& machine, const Registry& registry) {
  auto json = nlohmann::ordered_json::array();
  std::string text;
  for (const LayerGroup& group : groups) {
    const auto cells = make_matrix(group.problem, machine, flags.request, registry);
    if (cells.empty()) {
      const auto refused = make_plan(group.problem, machine, flags.request, registry);
      print_out(flags.json ? json_text(to_json(refused.error()), 2) + "\n"
                           : explain(refused.error()));
      return kExitRefused;
    }
    if (groups.size() == 1) {
      text = explain_matrix(cells, stdout_takes_color());
      json = matrix_json(cells);
      continue;
    }
    text += fmt::format("{}group {}, {}\n", text.empty() ? "" : "\n", group.name,
                        layers_text(group.layers)) +
            explain_matrix(cells, stdout_takes_color());
    json.push_back(
        {{"name", group.name}, {"layers", group.layers}, {"matrix", matrix_json(cells)}});
  }
  print_out(flags.json ? json_text(json, 2) + "\n" : text);
  return kExitOk;
}

// The memory of a model on a GPU (all of it is planned), or with a draft model; of a rank.
struct Memory {
  std::int64_t weight_bytes = 0;
  std::int64_t cache_tokens = 0;
};

std::optional<Memory> memory_of(const Subject& subject, const ModelPlan& plan, const Machine& rank,
                                const PlanRequest& request, const DraftMemory& draft) {
  if (!subject.config || (!is_gpu(rank.device) && draft.plan == nullptr)) return std::nullopt;
  const std::int64_t weights =
      weight_bytes(*subject.config, subject.stored, expands(plan), plan.ranks);
  return Memory{weights, cache_tokens(plan, request, rank, weights, draft)};
}

// The lists do not depend on other flags, so one beside them would mean nothing.
Result<void> check_list_alone(const Command& command) {
  std::string list;
  for (const FlagValue& v : command.values()) {
    if (v.origin != "default" && (v.name == "kinds" || v.name == "rules" || v.name == "kernels")) {
      list = "--" + v.name;
    }
  }
  for (const FlagValue& v : command.values()) {
    if (list.empty() || v.origin == "default" || "--" + v.name == list) continue;
    return Error{ErrorCode::invalid_argument, list, "no other flag with it", "--" + v.name, ""};
  }
  return {};
}

int run_plan(PlanFlags flags) {
  if (flags.rules || flags.kinds || flags.kernels) {
    print_out((flags.kinds ? explain_kinds() : "") + (flags.rules ? explain_rules() : "") +
              (flags.kernels ? explain_kernels(all_kernels()) : ""));
    return kExitOk;
  }
  const auto subject = subject_of(flags, flags.request);
  if (!subject) return refuse(subject.error());
  if (!flags.kv_scales.empty() && !subject->config) {
    return refuse({ErrorCode::invalid_argument, "--kv-scales", "a model with it",
                   "an attention problem alone", "--model DIR or --config FILE"});
  }
  if (!flags.overrides.empty() && !subject->config) {
    return refuse({ErrorCode::invalid_argument,
                   flags.overrides.values.empty() ? "--rope-scaling" : "--override",
                   "a model with it", "an attention problem alone",
                   "--model DIR or --config FILE"});
  }
  if (flags.request.tp > 1 && !subject->config) {
    return refuse({ErrorCode::invalid_argument, "--tp", "a model with it",
                   "an attention problem alone, with --heads of one rank",
                   "--model DIR or --config FILE"});
  }
  if (flags.request.tp > 1 && flags.matrix) {
    return refuse({ErrorCode::invalid_argument, "--matrix", "--tp 1, or no matrix",
                   fmt::format("--tp {}", flags.request.tp), "every rank has the same kernels"});
  }
  const auto machine = find_machine(flags.device, {flags.request.tp, flags.gpus});
  if (!machine) return refuse(machine.error());
  if (flags.device == "cuda" && !query_gpu()) {
    print_err(fmt::format("lathe: no GPU answers, so this is for an {}\n", machine->model));
  }
  flags.request.cuda_graph = !flags.disable_cuda_graph;
  const bool of_model = !flags.model.empty() || !flags.config.empty();
  const Registry registry = of_model ? model_kernels(machine->device) : all_kernels();
  if (flags.matrix) return print_matrix(flags, subject->groups, *machine, registry);

  std::vector<Rejection> rejections;
  const ModelPlanResult draft_plan =
      subject->draft ? plan_draft_model(subject->draft_directory, *subject->draft,
                                        subject->draft_stored, *machine, flags.request, registry)
                     : ModelPlan();
  DraftMemory draft;
  if (draft_plan && subject->draft) {
    draft = {&*draft_plan, weight_bytes(*subject->draft, subject->draft_stored,
                                        expands(*draft_plan), draft_plan->ranks)};
  }
  const Machine left = beside_draft(*machine, draft, flags.request);
  ModelPlanResult plan =
      draft_plan ? plan_subject(*subject, left, flags.request, registry, rejections) : draft_plan;
  if (draft_plan && subject->draft && !plan) {
    plan = beside_draft_model(plan.error(), subject->draft_directory);
  }
  if (plan) {
    if (const auto ok = check_separate_prefixes(*plan, flags.request); !ok) {
      return refuse(ok.error());
    }
    if (const auto ok = check_budget_flags(*plan, flags.request); !ok && !subject->draft) {
      return refuse(ok.error());
    }
  }
  std::string scales;
  if (plan && !flags.kv_scales.empty()) {
    const auto read = read_kv_scales(flags.kv_scales, *subject->config);
    if (!read) return refuse(read.error());
    if (const auto ok = check_takes_scales(*plan); !ok) return refuse(ok.error());
    scales = fmt::format("{:<10}{} from {}\n", "scales", kv_scales_range(*subject->config, *read),
                         flags.kv_scales);
  }
  const Machine rank = rank_machine(*machine, flags.request.tp);
  const auto memory = plan ? memory_of(*subject, *plan, rank, flags.request, draft) : std::nullopt;
  if (flags.json) {
    auto json = plan ? to_json(*plan) : to_json(plan.error());
    if (plan && subject->draft) json["draft_model"] = to_json(*draft_plan);
    if (memory) {
      json["memory"] = {{"weight_bytes", memory->weight_bytes},
                        {"cache_tokens", memory->cache_tokens},
                        {"machine_bytes", rank.memory_bytes}};
    }
    if (flags.explain) {
      json["rejected"] = nlohmann::ordered_json::array();
      for (const Rejection& r : rejections) json["rejected"].push_back(to_json(r));
    }
    print_out(json_text(json, 2) + "\n");
  } else {
    std::string text = plan ? explain(*plan) + scales : explain(plan.error());
    if (plan && subject->draft) {
      text += fmt::format("\ndraft model {}\n{}\n", subject->draft_directory, explain(*draft_plan));
    }
    if (memory) {
      text += memory_table(*plan, rank, memory->weight_bytes, memory->cache_tokens, draft);
    }
    print_out(text);
    if (flags.explain && !rejections.empty()) print_out("rejected\n" + explain(rejections));
  }
  return plan ? kExitOk : kExitRefused;
}

}  // namespace

void add_plan_command(Command app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  PlanRequest& request = flags->request;
  Command cmd = app.add_subcommand(
      "plan",
      "Prove that a prefill kernel, a cache layout and a decode kernel fit, or say why not");
  const Flag attention = cmd.add_option("--attention", flags->attention,
                                        "mla (DeepSeek V3), dsa (V3.2), v4 or gqa; default dsa");
  Flag model = cmd.add_option("--model,--model-path", flags->model,
                              "the layer groups of a checkpoint's config.json");
  Flag config =
      cmd.add_option("--config", flags->config, "the layer groups of a config.json").not_empty();
  model.excludes(attention).excludes(config);
  config.excludes(attention);
  add_override_flags(cmd, flags->overrides);
  cmd.add_option("--device", flags->device,
                 "auto, cuda, ref, cpu, or a machine to plan for: sm80, sm90, sm100, h100, h200");
  cmd.add_option("--gpus", flags->gpus,
                 "the GPUs of --tp by number: 0,1; of a machine to plan for, how many it has")
      .not_empty();
  add_plan_flags(cmd, request);
  const Flag scales =
      cmd.add_option("--kv-scales", flags->kv_scales, "a file of lathe calibrate, to check")
          .not_empty();
  cmd.add_option(
      "--draft,--speculative-algorithm", flags->draft,
      "none, ngram, mtp: with the checkpoint's draft layer, or a draft model's directory");
  cmd.add_option("--speculative-draft-model-path", flags->draft_model,
                 "SGLang's flag for that directory, with --speculative-algorithm STANDALONE");
  cmd.add_option("--draft-tokens,--speculative-num-draft-tokens", request.draft_tokens,
                 "drafts of a request in a step; 0 = none");
  for (Flag shape :
       {cmd.add_option("--num-layers", request.layers, "layers that share the plan"),
        cmd.add_option("--heads", flags->dims.heads, "query heads per rank"),
        cmd.add_option("--kv-heads", flags->dims.kv_heads, "gqa"),
        cmd.add_option("--head-dim", flags->dims.head_dim, "gqa"),
        cmd.add_option("--top-k", flags->dims.top_k, "keys per row of a sparse problem"),
        cmd.add_option("--window", flags->dims.window, "sliding window in tokens"),
        cmd.add_option("--compress-ratio", flags->dims.compress_ratio,
                       "v4: 0, 4 or 128 tokens per entry"),
        cmd.add_flag("--sink", flags->dims.sink, "attention sinks")}) {
    shape.excludes(model).excludes(config);  // which say it
  }
  cmd.add_flag("--disable-cuda-graph", flags->disable_cuda_graph, "decode steps are not captured");
  const Flag matrix =
      cmd.add_flag("--matrix", flags->matrix, "every prefill x decode x layout").excludes(scales);
  cmd.add_flag("--kinds", flags->kinds, "only list the kinds of kernels");
  cmd.add_flag("--rules", flags->rules, "only list the rules that a plan must keep");
  cmd.add_flag("--kernels", flags->kernels,
               "only list the registered kernels and what they accept");
  cmd.add_flag("--explain", flags->explain, "also everything that was tried and did not fit")
      .excludes(matrix);
  cmd.add_flag("--json", flags->json, "as data on stdout");
  cmd.callback([flags, cmd, &exit_code] {
    if (const auto ok = check_list_alone(cmd); !ok) {
      exit_code = refuse(ok.error());
      return;
    }
    flags->context_given = cmd.given("--context-length");
    exit_code = run_plan(*flags);
  });
}

}  // namespace lathe
