#include "tools/eval/eval_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/threads.h"
#include "kernels/devices/all.h"
#include "kernels/devices/find_machine.h"
#include "model/memory/fit_model.h"
#include "model/weights/kv_scales.h"
#include "plan/budget_flags.h"
#include "plan/explain.h"
#include "plan/matrix.h"
#include "plan/model_plan.h"

namespace lathe {
namespace {

constexpr std::size_t kTracedItems = 16;  // items of each task with logits to compare
constexpr std::int64_t kChunks[] = {1, 7, 64, 257, 2048};

// The most precise layout, and the kernels that read it in place.
PlanRequest plain_request(PlanRequest request, const ModelConfig& config) {
  if (request.layout == "auto" && request.kv_dtype == "auto") request.kv_dtype = "bf16";
  if (request.prefill == "auto") request.prefill = name(KernelKind::inplace);
  if (request.decode == "auto") request.decode = name(KernelKind::inplace);
  if (request.context_length == 0) request.context_length = config.max_context;
  request.layers = config.layers;
  return request;
}

struct Candidate {
  PlanRequest request;
  std::string title;
  std::size_t prefill_routes;
};

// Every plan to run, except the plain one. Errors: an unknown machine.
Result<std::vector<Candidate>> candidates(const PlanRequest& request, const PlanRequest& plain,
                                          const ModelConfig& config, const std::string& device) {
  const auto machine = find_machine(device);
  if (!machine) return machine.error();
  const Registry registry = model_kernels(machine->device);
  PlanRequest open = request;
  open.context_length = plain.context_length;
  open.layers = plain.layers;
  std::vector<Candidate> out;
  const auto add = [&](const PlanRequest& changed, const std::string& more = "") -> bool {
    const auto made = fit_model(config, std::nullopt, *machine, changed, registry);
    if (!made) return false;
    const Plan& plan = made->groups.front().plan;
    out.push_back({without_idle_budgets(*made, changed),
                   fmt::format("{} -> {} over {}{}", kinds(plan, Phase::extend),
                               kinds(plan, Phase::decode), plan.main().layout.name(), more),
                   plan.phase(Phase::extend).routes.size()});
    return true;
  };
  std::set<std::string> layouts;
  for (const MatrixCell& cell :
       make_matrix(config.groups.front().problem, *machine, open, registry)) {
    if (!cell.result) continue;
    PlanRequest changed = open;
    changed.layout = cell.result->main().layout.serialize();
    changed.prefill = name(cell.prefill);
    changed.decode = name(cell.decode);
    add(changed);
    if (!layouts.insert(changed.layout).second) continue;
    // Mixtures that the planner chooses itself, such as ragged prefill for short contexts only.
    changed.prefill = "auto";
    changed.decode = name(KernelKind::inplace);
    if (add(changed) && out.back().prefill_routes == 1) out.pop_back();
  }
  for (const std::int64_t chunk : kChunks) {
    if (chunk >= plain.context_length) continue;
    PlanRequest changed = plain;
    changed.chunked_prefill_size = chunk;
    add(changed, fmt::format(", chunks of {}", chunk));
  }
  return out;
}

}  // namespace

TaskFigures figures_of(const EncodedTask& task, const TaskRun& run) {
  return {task.task.kind, std::ssize(run.marks), run.right(),       run.invalid(),
          run.seconds,    run.prompt_tokens,     run.cached_tokens, run.answer_tokens,
          run.drafts,     run.groups(task.task)};
}

double PlanRow::tokens_per_second() const {
  double tokens = 0;
  double seconds = 0;
  for (const TaskFigures& t : tasks) {
    tokens += static_cast<double>(t.answer_tokens);
    seconds += t.seconds;
  }
  return seconds > 0 ? tokens / seconds : 0;
}

namespace {

struct RowResult {
  PlanRow row;
  std::vector<TaskRun> runs;  // [tasks]
};

// Only layouts with scales use a file of them; the other rows run without.
std::string scales_for(const RuntimeOptions& options) {
  const auto layout = CacheLayout::parse(options.plan_request.layout);
  return layout && layout->scale_policy() == ScalePolicy::per_tensor ? options.kv_scales : "";
}

// One row: a model of its own, all tasks. Without a reference the row is compared with itself.
Result<RowResult, StartError> run_row(const RuntimeOptions& options, const Tokenizer& tokenizer,
                                      const std::vector<EncodedTask>& tasks, const ScoredText& text,
                                      const RowResult* first) {
  RuntimeOptions own = options;
  own.kv_scales = scales_for(options);
  auto evaluator = Evaluator::create(own, tokenizer);
  if (!evaluator) return evaluator.error();
  if (const auto ok = (*evaluator)->check_window(text.window); !ok) return StartError(ok.error());
  Runtime& runtime = (*evaluator)->runtime();
  // Groups of one model differ in windows only, not in kinds.
  const Plan& plan = runtime.plan().groups.front().plan;
  RowResult out;
  PlanRow& row = out.row;
  row.layout = plan.main().layout.name();
  row.prefill = kinds(plan, Phase::extend);
  row.decode = kinds(plan, Phase::decode);
  row.chunk = options.plan_request.chunked_prefill_size;
  row.bytes_per_token = runtime.plan().bytes_per_token();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    auto run = (*evaluator)->run(tasks[i], kTracedItems, {});
    if (!run) return StartError(run.error());
    row.tasks.push_back(figures_of(tasks[i], *run));
    const Agreement a =
        compare_runs(first != nullptr ? first->runs[i] : *run, *run, runtime.config().vocab);
    row.agreement.tokens += a.tokens;
    row.agreement.equal += a.equal;
    row.agreement.difference += a.difference;
    row.agreement.differences += a.differences;
    out.runs.push_back(std::move(*run));
  }
  if (!text.tokens.empty()) {
    auto score = (*evaluator)->score(text.tokens, text.window, {});
    if (!score) return StartError(score.error());
    row.score = std::move(*score);
    row.score_difference =
        difference(*row.score, first != nullptr ? *first->row.score : *row.score);
  }
  row.threads = runtime.threads().threads();
  row.arithmetic = name(runtime.precision());
  return out;
}

}  // namespace

Result<std::vector<PlanRow>, StartError> evaluate_plans(
    const RuntimeOptions& options, int jobs, const Tokenizer& tokenizer,
    const std::vector<EncodedTask>& tasks, const ScoredText& text,
    const std::function<void(std::size_t, std::size_t, const std::string&)>& on_row) {
  const auto config = load_model_config(options.model, options.overrides);
  if (!config) return StartError(config.error());
  if (!options.kv_scales.empty()) {
    if (const auto scales = read_kv_scales(options.kv_scales, *config); !scales) {
      return StartError(scales.error());
    }
  }
  RuntimeOptions plain = options;
  plain.plan_request = plain_request(options.plan_request, *config);
  plain.plan_request.gather_budget = PlanRequest().gather_budget;  // of other rows
  const auto rest = candidates(options.plan_request, plain.plan_request, *config, options.device);
  if (!rest) return StartError(rest.error());
  plain.plan_request.chunked_prefill_size = plain.plan_request.context_length;
  auto first = run_row(plain, tokenizer, tasks, text, nullptr);
  if (!first) return first.error();
  std::vector<PlanRow> rows(rest->size() + 1);
  rows[0] = first->row;
  on_row(1, rows.size(), "the plain plan, prompts in one shot");

  std::mutex mutex;
  std::size_t done = 1;
  std::optional<StartError> failed;
  ThreadPool pool(jobs);
  pool.run(std::ssize(*rest), [&](std::int64_t i, int) {
    const Candidate& c = (*rest)[static_cast<std::size_t>(i)];
    RuntimeOptions row_options = options;
    row_options.threads = std::max(1, rows[0].threads / pool.threads());
    row_options.plan_request = c.request;
    auto result = run_row(row_options, tokenizer, tasks, text, &*first);
    const std::lock_guard lock(mutex);
    if (result) {
      rows[static_cast<std::size_t>(i) + 1] = std::move(result->row);
      on_row(++done, rows.size(), c.title);
    } else if (!failed) {
      failed = result.error();
    }
  });
  if (failed) return *failed;
  return rows;
}

std::string plans_table(const std::vector<PlanRow>& rows) {
  std::size_t layout = 6;
  std::size_t prefill = 7;
  for (const PlanRow& r : rows) {
    layout = std::max(layout, r.layout.size());
    prefill = std::max(prefill, r.prefill.size());
  }
  std::string out = fmt::format("{:<{}} {:<{}} {:<8} {:>6} {:>8}", "layout", layout, "prefill",
                                prefill, "decode", "chunk", "B/token");
  for (const TaskFigures& t : rows.front().tasks) out += fmt::format(" {:>10}", name(t.kind));
  const bool tasks = !rows.front().tasks.empty();
  const bool scored = rows.front().score.has_value();
  if (tasks) out += fmt::format(" {:>9} {:>9} {:>9}", "agree", "|dlogit|", "tokens/s");
  if (scored) out += fmt::format(" {:>10} {:>21}", "perplexity", "dnats (95 %)");
  out += "\n";
  for (const PlanRow& r : rows) {
    out += fmt::format("{:<{}} {:<{}} {:<8} {:>6} {:>8.0f}", r.layout, layout, r.prefill, prefill,
                       r.decode, r.chunk, r.bytes_per_token);
    for (const TaskFigures& t : r.tasks) out += fmt::format(" {:>8.1f} %", 100 * t.accuracy());
    const Agreement& a = r.agreement;
    if (tasks) {
      const auto differences = static_cast<double>(std::max<std::int64_t>(1, a.differences));
      out += fmt::format(" {:>7.2f} % {:>9.2g} {:>9.1f}",
                         100 * static_cast<double>(a.equal) / static_cast<double>(a.tokens),
                         a.difference / differences, r.tokens_per_second());
    }
    if (scored) {
      const ScoreDifference& d = r.score_difference;
      out += fmt::format(" {:>10.4f} {:>+10.5f} ±{:.5f}", r.score->perplexity(), d.mean,
                         d.interval.high - d.mean);
    }
    out += "\n";
  }
  return out;
}

nlohmann::ordered_json figures_json(const TaskFigures& f) {
  const Interval i = f.interval();
  nlohmann::ordered_json groups = nlohmann::ordered_json::object();
  for (const auto& [group, counts] : f.groups) {
    groups[std::to_string(group)] = {{"right", counts.first}, {"items", counts.second}};
  }
  nlohmann::ordered_json out = {
      {"items", f.items},
      {"right", f.right},
      {"invalid", f.invalid},
      {"accuracy", f.accuracy()},
      {"interval_95", {i.low, i.high}},
      {"groups", std::move(groups)},
      {"latency_s", f.seconds},
      {"prompt_tokens", f.prompt_tokens},
      {"cached_tokens", f.cached_tokens},
      {"output_tokens", f.answer_tokens},
      {"output_tokens_per_s", static_cast<double>(f.answer_tokens) / f.seconds}};
  if (f.drafts.checks > 0) out["drafts"] = to_json(f.drafts);
  return out;
}

nlohmann::ordered_json plans_json(const std::string& model, const std::vector<PlanRow>& rows) {
  auto out = nlohmann::ordered_json::array();
  for (const PlanRow& r : rows) {
    nlohmann::ordered_json tasks = nlohmann::ordered_json::object();
    for (const TaskFigures& t : r.tasks) tasks[std::string(name(t.kind))] = figures_json(t);
    const Agreement& a = r.agreement;
    out.push_back({{"layout", r.layout},
                   {"prefill", r.prefill},
                   {"decode", r.decode},
                   {"chunk", r.chunk},
                   {"cache_bytes_per_token", r.bytes_per_token},
                   {"tasks", std::move(tasks)},
                   {"reference_tokens", a.tokens},
                   {"equal_tokens", a.equal},
                   {"mean_abs_logit_difference",
                    a.difference / static_cast<double>(std::max<std::int64_t>(1, a.differences))},
                   {"output_tokens_per_s", r.tokens_per_second()}});
    if (!r.score) continue;
    const ScoreDifference& d = r.score_difference;
    out.back()["perplexity"] = score_json(*r.score);
    out.back()["perplexity"]["nats_more_than_plain"] = d.mean;
    out.back()["perplexity"]["nats_interval_95"] = {d.interval.low, d.interval.high};
  }
  return {{"model", model},
          {"threads", rows.front().threads},
          {"arithmetic", rows.front().arithmetic},
          {"rows", std::move(out)}};
}

}  // namespace lathe
