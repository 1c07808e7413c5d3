// lathe eval: the reference tasks, answered and marked, over one plan or over all of them.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "plan/explain.h"

#include "io/files/read_file.h"
#include "tools/eval/divergence.h"
#include "tools/eval/eval_picture.h"
#include "tools/eval/eval_plans.h"
#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"
#include "tools/flags/model_flags.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

struct EvalFlags {
  ModelFlags model;
  std::vector<std::string> tasks;  // empty: all, or none with a text
  std::string task_dir;
  std::int64_t limit = 0;
  bool all_plans = false;
  int jobs = 1;
  std::string picture;
  std::string wrong;
  std::string text;         // a file
  std::int64_t window = 0;  // 1024, or the context
  std::string reference;    // a model
  bool json = false;
};

Result<std::vector<EvalTaskKind>> kinds_of(const std::vector<std::string>& names) {
  std::vector<EvalTaskKind> out;
  std::string known = "all";
  for (EvalTaskKind kind : enum_values<EvalTaskKind>()) known += fmt::format(", {}", name(kind));
  for (const std::string& text : names) {
    bool found = false;
    for (EvalTaskKind kind : enum_values<EvalTaskKind>()) {
      if (text != "all" && text != name(kind)) continue;
      found = true;
      if (std::find(out.begin(), out.end(), kind) == out.end()) out.push_back(kind);
    }
    if (!found) return Error{ErrorCode::invalid_argument, "--task", "one of " + known, text, ""};
  }
  return out;
}

Result<std::vector<EncodedTask>> read_tasks(const EvalFlags& flags, const Tokenizer& tokenizer) {
  const bool all = flags.tasks.empty() && flags.text.empty();
  const auto kinds = kinds_of(all ? std::vector<std::string>{"all"} : flags.tasks);
  if (!kinds) return kinds.error();
  const std::filesystem::path model = flags.model.runtime.model;
  const std::string directory = flags.task_dir.empty()
                                    ? (model / ".." / "tasks").lexically_normal().string()
                                    : flags.task_dir;
  std::vector<EncodedTask> out;
  for (EvalTaskKind kind : *kinds) {
    auto task = read_eval_task(kind, directory, flags.limit);
    if (!task) return task.error();
    auto encoded = encode_task(std::move(*task), flags.model.runtime.model, tokenizer);
    if (!encoded) return encoded.error();
    out.push_back(std::move(*encoded));
  }
  return out;
}

// "steps 2: 100.0 %" or "length 1024: 99.6 %". If there are many lengths, only the worst is shown.
std::string groups_line(const TaskFigures& f) {
  const bool steps = f.kind == EvalTaskKind::arithmetic || f.kind == EvalTaskKind::chains;
  const std::string_view what = steps ? "steps" : "length";
  const auto share = [](const std::pair<std::int64_t, std::int64_t>& counts) {
    return 100 * static_cast<double>(counts.first) / static_cast<double>(counts.second);
  };
  if (f.groups.size() > 6) {
    const auto worst = std::min_element(
        f.groups.begin(), f.groups.end(),
        [&](const auto& a, const auto& b) { return share(a.second) < share(b.second); });
    return fmt::format("least at {} {}: {:.1f} %", what, worst->first, share(worst->second));
  }
  std::string out;
  for (const auto& [group, counts] : f.groups) {
    out += fmt::format("{}{} {}: {:.1f} %", out.empty() ? "" : ", ", what, group, share(counts));
  }
  return out;
}

std::string figures_text(const TaskFigures& f) {
  const Interval i = f.interval();
  const std::string drafts =
      f.drafts.checks == 0 ? "" : fmt::format("{:<11} drafts: {}\n", "", describe(f.drafts));
  return fmt::format(
             "{:<11} accuracy {:.1f} % ({:.1f} to {:.1f}) of {} items, invalid {}, latency {:.1f} "
             "s, "
             "output {:.1f} tokens/s\n{:<11} {}\n",
             name(f.kind), 100 * f.accuracy(), 100 * i.low, 100 * i.high, f.items, f.invalid,
             f.seconds, static_cast<double>(f.answer_tokens) / f.seconds, "", groups_line(f)) +
         drafts;
}

void show_progress(const EncodedTask& task, std::size_t ended, std::int64_t right) {
  if (isatty(STDERR_FILENO) == 0) return;
  constexpr std::size_t kWidth = 30;
  const std::size_t items = task.prompts.size();
  const std::size_t full = kWidth * ended / items;
  print_err(fmt::format("\r{:<11} [{:#<{}}{:.<{}}] {}/{}  right {}{}", name(task.task.kind), "",
                        full, "", kWidth - full, ended, items, right, ended == items ? "\n" : ""));
}

// A line for every wrong answer.
void write_wrong(std::FILE* file, const EncodedTask& task, const TaskRun& run) {
  for (std::size_t i = 0; i < run.marks.size(); ++i) {
    if (run.marks[i] == Mark::right) continue;
    const Json line = {{"task", name(task.task.kind)},
                       {"item", i},
                       {"wanted", task.task.items[i].response},
                       {"answer", run.texts[i]}};
    fmt::print(file, "{}\n", json_text(line));
  }
}

Result<ScoredText> read_scored_text(const EvalFlags& flags, const Tokenizer& tokenizer) {
  ScoredText out{{}, flags.window};
  if (flags.text.empty()) return out;
  const auto text = read_flag_file("--perplexity", flags.text);
  if (!text) return text.error();
  auto tokens = tokenizer.encode(*text, /*add_special_tokens=*/true);
  if (!tokens) return tokens.error();
  out.tokens = std::move(*tokens);
  if (out.tokens.size() >= 2) return out;
  return Error{ErrorCode::invalid_argument, "--perplexity", "a text of at least two tokens",
               flags.text + " without them", ""};
}

std::string score_text(const TextScore& s) {
  const Interval i = s.interval();
  return fmt::format("{:<11} {:.4f} ({:.4f} to {:.4f}) over {} tokens\n", "perplexity",
                     s.perplexity(), i.low, i.high, s.nats.size());
}

// The reference's logits at every scored token. An error ends the command.
Result<std::optional<Divergence>, StartError> read_reference(const EvalFlags& flags,
                                                             const Tokenizer& tokenizer,
                                                             const ScoredText& text) {
  constexpr std::size_t kMostBytes = std::size_t{4} << 30;
  if (flags.reference.empty()) return std::optional<Divergence>();
  RuntimeOptions options = flags.model.runtime;
  options.model = flags.reference;
  auto evaluator = Evaluator::create(options, tokenizer);
  if (!evaluator) return evaluator.error();
  const auto vocab = static_cast<std::size_t>((*evaluator)->runtime().config().vocab);
  const std::size_t rows = (*evaluator)->scored_tokens(text.tokens.size(), text.window);
  if (rows > kMostBytes / (vocab * sizeof(float))) {
    return StartError(Error{ErrorCode::exhausted, "--perplexity",
                            fmt::format("at most {} scored tokens with --reference, whose logits "
                                        "are kept in memory",
                                        kMostBytes / (vocab * sizeof(float))),
                            fmt::format("{}", rows), ""});
  }
  std::optional<Divergence> out(std::in_place, rows, vocab);
  const auto keep = [&](std::size_t row, std::span<const float> l) { out->keep(row, l); };
  const auto score = (*evaluator)->score(text.tokens, text.window, keep);
  if (!score) return StartError(score.error());
  return out;
}

int run_one(const EvalFlags& flags, const Tokenizer& tokenizer,
            const std::vector<EncodedTask>& tasks, const ScoredText& text) {
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  File wrong(nullptr, std::fclose);
  if (!flags.wrong.empty()) {
    wrong.reset(std::fopen(flags.wrong.c_str(), "w"));
    if (!wrong) {
      return refuse({ErrorCode::io, "--wrong", "a file that can be written", flags.wrong, ""});
    }
  }
  auto reference = read_reference(flags, tokenizer, text);
  if (!reference) return refuse_start(reference.error());
  auto evaluator = Evaluator::create(flags.model.runtime, tokenizer);
  if (!evaluator) return refuse_start(evaluator.error());
  Runtime& runtime = (*evaluator)->runtime();
  if (const auto ok = (*evaluator)->check_window(flags.window); !ok) return refuse(ok.error());
  if (*reference) {
    const std::size_t scored = (*evaluator)->scored_tokens(text.tokens.size(), text.window);
    if (const auto ok = (*reference)->fits(scored, runtime.config().vocab); !ok) {
      return refuse(ok.error());
    }
  }
  Json out = {{"model", flags.model.runtime.model},
              {"plan", summary(runtime.plan())},
              {"tasks", Json::object()}};
  if (!flags.json) {
    print_out(fmt::format("model       {}\nplan        {}\n", flags.model.runtime.model,
                          summary(runtime.plan())));
  }
  for (const EncodedTask& task : tasks) {
    const auto run = (*evaluator)->run(task, 0, [&](std::size_t ended, std::int64_t right) {
      show_progress(task, ended, right);
    });
    if (!run) return refuse(run.error());
    const TaskFigures figures = figures_of(task, *run);
    out["tasks"][std::string(name(task.task.kind))] = figures_json(figures);
    if (!flags.json) print_out(figures_text(figures));
    flush_out();
    if (wrong) write_wrong(wrong.get(), task, *run);
  }
  if (!text.tokens.empty()) {
    const auto compare = [&](std::size_t row, std::span<const float> l) {
      if (*reference) (*reference)->compare(row, l);
    };
    const auto score = (*evaluator)->score(text.tokens, text.window, compare);
    if (!score) return refuse(score.error());
    out["perplexity"] = score_json(*score);
    if (*reference) out["reference"] = (*reference)->json();
    if (!flags.json) print_out(score_text(*score) + (*reference ? (*reference)->text() : ""));
  }
  if (flags.json) print_out(json_text(out, 2) + "\n");
  if (!flags.model.quiet) print_err(describe_stored_values(runtime));
  return kExitOk;
}

int run_all(const EvalFlags& flags, const Tokenizer& tokenizer,
            const std::vector<EncodedTask>& tasks, const ScoredText& text) {
  std::ofstream picture;
  if (!flags.picture.empty()) {
    picture.open(flags.picture);  // before hours of work
    if (!picture) {
      return refuse({ErrorCode::io, "--svg", "a file that can be written", flags.picture, ""});
    }
  }
  const auto progress = [&](std::size_t at, std::size_t rows, const std::string& title) {
    if (flags.model.quiet) return;
    print_err(fmt::format("{} of {}: {}\n", at, rows, title));
  };
  const auto rows =
      evaluate_plans(flags.model.runtime, flags.jobs, tokenizer, tasks, text, progress);
  if (!rows) return refuse_start(rows.error());
  if (flags.json) {
    print_out(json_text(plans_json(flags.model.runtime.model, *rows), 1) + "\n");
  } else {
    print_out(plans_table(*rows));
  }
  if (flags.picture.empty()) return kExitOk;
  const std::string model =
      std::filesystem::path(flags.model.runtime.model).lexically_normal().filename().string();
  picture << plans_picture(fmt::format("{}: {} plans", model, rows->size()), *rows);
  if (picture.flush()) return kExitOk;
  return refuse({ErrorCode::io, "--svg", "a file that can be written", flags.picture, ""});
}

int run_eval(EvalFlags flags) {
  if (flags.model.runtime.model.empty()) {
    return refuse({ErrorCode::invalid_argument, "--model",
                   "a directory with config.json, *.safetensors and tokenizer.json", "nothing",
                   "for example models/tiny-v32"});
  }
  flags.model.runtime.dummy = flags.model.load_format == "dummy";
  flags.model.runtime.engine.prefix_cache = !flags.model.no_prefix_cache;
  flags.model.runtime.engine.overlap = !flags.model.no_overlap;
  const auto tokenizer = Tokenizer::load(flags.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  const auto tasks = read_tasks(flags, *tokenizer);
  if (!tasks) return refuse(tasks.error());
  const auto text = read_scored_text(flags, *tokenizer);
  if (!text) return refuse(text.error());
  if (!flags.picture.empty() && tasks->empty()) {
    return refuse({ErrorCode::invalid_argument, "--svg", "tasks to draw", "--perplexity alone",
                   "--task all with it"});
  }
  return flags.all_plans ? run_all(flags, *tokenizer, *tasks, *text)
                         : run_one(flags, *tokenizer, *tasks, *text);
}

}  // namespace

void add_eval_command(Command app, int& exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  Command cmd = app.add_subcommand("eval", "Answer the reference tasks and mark the answers");
  add_model_flags(cmd, flags->model);
  cmd.add_option("--task", flags->tasks,
                 "arithmetic, retrieval, copy, chains, several by commas, or all")
      .delimiter(',');
  cmd.add_option("--task-dir", flags->task_dir,
                 "folder of the test sets, TASK.jsonl.gz; default: tasks next to the model's");
  const Flag scored = cmd.add_option("--perplexity", flags->text,
                                     "a file whose text is scored; without --task nothing else is");
  cmd.add_option("--window", flags->window,
                 "tokens of a window of that text, half of them context; default 1024, or the "
                 "model's context if that is less")
      .range(2, 1 << 30)
      .needs(scored);
  cmd.add_option("--limit", flags->limit, "only the first items of each task").positive();
  const Flag all =
      cmd.add_flag("--all-plans", flags->all_plans,
                   "every legal pair of kernels over every layout, and other chunk sizes");
  cmd.add_option("--jobs", flags->jobs, "plans worked on at once, which share the threads")
      .range(1, 256)
      .needs(all);
  cmd.add_option("--svg", flags->picture, "a picture of the table").needs(all);
  cmd.add_option("--wrong", flags->wrong, "a file for the answers that are not right, JSON lines")
      .excludes(all);
  cmd.add_option("--reference", flags->reference,
                 "a model with the same tokens, such as the one before it was quantised: how far "
                 "the text's logits are from its")
      .needs(scored)
      .excludes(all);
  cmd.add_flag("--json", flags->json, "as data on stdout");
  cmd.callback([flags, &exit_code] { exit_code = run_eval(*flags); });
}

}  // namespace lathe
