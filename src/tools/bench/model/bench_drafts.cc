#include "tools/bench/model/bench_drafts.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/json.h"
#include "plan/explain.h"
#include "tools/bench/median.h"
#include "tools/eval/eval_run.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// Requests that run together, `batch` of them at a time.
struct DraftsCase {
  std::string name;
  std::vector<Request> requests;
};

// What one engine did in steps that only decode.
struct Turn {
  double seconds = 0;  // of a StepClock
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::map<std::uint64_t, std::vector<std::int32_t>> answers;  // by request, of this turn
  double rate() const { return static_cast<double>(tokens) / seconds; }
};

// On a CPU it measures the process's CPU time, which other load on the machine changes little; on a
// GPU, for which the CPU waits, wall-clock time.
class StepClock {
 public:
  explicit StepClock(const Machine& machine)
      : id_(is_gpu(machine.device) ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID) {}
  double seconds() const {
    timespec t{};
    clock_gettime(id_, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

 private:
  clockid_t id_;
};

struct DraftsRow {
  std::string name;
  std::int64_t batch = 1;
  std::int64_t tokens = 0, plain_steps = 0, steps = 0;  // of a repeat
  std::vector<double> plain, drafted;                   // [repeats] tokens a second
  DraftStats drafts;                                    // of all repeats

  std::vector<double> ratios() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < plain.size(); ++i) out.push_back(drafted[i] / plain[i]);
    std::sort(out.begin(), out.end());
    return out;
  }
};

// Prompts of noise and answers of one length. With a batch of 64 no step has a draft, so this case
// shows the cost of an idle drafter.
DraftsCase noise(const ModelConfig& config, std::int64_t requests) {
  DraftsCase out{"noise", {}};
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> token(0, config.vocab - 1);
  for (std::int64_t i = 0; i < requests; ++i) {
    Request r;
    for (int t = 0; t < 64; ++t) r.prompt.push_back(token(random));
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = 64;
    out.requests.push_back(std::move(r));
  }
  return out;
}

Result<DraftsCase> case_of(EvalTaskKind kind, const BenchDraftsOptions& options,
                           const Tokenizer& tokenizer) {
  const std::filesystem::path model = options.model.runtime.model;
  const std::string directory = options.task_dir.empty()
                                    ? (model / ".." / "tasks").lexically_normal().string()
                                    : options.task_dir;
  auto task = read_eval_task(kind, directory, options.limit);
  if (!task) return task.error();
  auto encoded = encode_task(std::move(*task), model.string(), tokenizer);
  if (!encoded) return encoded.error();
  DraftsCase out{std::string(name(kind)), {}};
  for (std::size_t i = 0; i < encoded->prompts.size(); ++i) {
    Request r;
    r.prompt = std::move(encoded->prompts[i]);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = encoded->limits[i];
    out.requests.push_back(std::move(r));
  }
  return out;
}

Result<void> run(Engine& engine, StepClock clock, std::span<const Request> requests, Turn& turn) {
  std::map<RequestId, std::size_t> index;
  std::vector<std::vector<std::int32_t>> answers(requests.size());
  for (const Request& r : requests) {
    const auto id = engine.submit(r);
    if (!id) return id.error();
    index.emplace(*id, index.size());
  }
  while (!engine.idle()) {
    const double before = clock.seconds();
    const auto report = engine.step();
    const double seconds = clock.seconds() - before;
    if (!report) return report.error();
    for (const Finished& f : report->finished) {
      if (f.error) return *f.error;
    }
    for (const TokenEvent& e : report->tokens) {
      answers[index.at(e.request)].push_back(e.sampled.token);
    }
    if (report->prefill_rows > 0) continue;
    turn.seconds += seconds;
    ++turn.steps;
    turn.tokens += std::ssize(report->tokens);
  }
  for (auto& a : answers) turn.answers.emplace(turn.answers.size(), std::move(a));
  return {};
}

// The engines alternate batch by batch, and so does which is first, so that other load on the
// machine slows both.
Result<DraftsRow> measure(Engine& plain, Engine& drafts, StepClock clock, const DraftsCase& c,
                          std::int64_t batch, int repeats) {
  DraftsRow row{c.name, batch, 0, 0, 0, {}, {}, {}};
  const DraftStats before = drafts.stats().drafts;
  for (int i = 0; i <= repeats; ++i) {
    Turn without, with;
    bool first = i % 2 == 0;
    for (std::size_t at = 0; at < c.requests.size(); at += static_cast<std::size_t>(batch)) {
      const std::size_t n = std::min(c.requests.size() - at, static_cast<std::size_t>(batch));
      const auto part = std::span(c.requests).subspan(at, n);
      for (const bool drafted : {first, !first}) {
        if (auto ok = run(drafted ? drafts : plain, clock, part, drafted ? with : without); !ok) {
          return ok.error();
        }
      }
      first = !first;
    }
    if (with.answers != without.answers) {
      return Error{ErrorCode::unsupported, "--draft", "the answers of a run without drafts",
                   fmt::format("others in task {}", c.name), ""};
    }
    row.tokens = with.tokens;
    row.plain_steps = without.steps;
    row.steps = with.steps;
    if (i == 0) continue;  // warms up, and leaves the prompts in the prefix cache
    row.plain.push_back(without.rate());
    row.drafted.push_back(with.rate());
  }
  row.drafts = drafts.stats().drafts.since(before);
  return row;
}

std::string table(const std::vector<DraftsRow>& rows) {
  std::string out = fmt::format("{:<12}{:>6}{:>9}{:>8}{:>8}{:>8}{:>11}{:>11}{:>8}{:>15}  {}\n",
                                "task", "batch", "tokens", "steps", "drafts", "AL", "plain t/s",
                                "drafts t/s", "ratio", "least to most", "accepted by place");
  for (const DraftsRow& r : rows) {
    const std::vector<double> ratios = r.ratios();
    out += fmt::format(
        "{:<12}{:>6}{:>9}{:>8}{:>8}{:>8.2f}{:>11.1f}{:>11.1f}{:>8.3f}{:>8.3f}{:>7.3f} ", r.name,
        r.batch, r.tokens, r.plain_steps, r.steps, r.drafts.acceptance_length(), median(r.plain),
        median(r.drafted), ratios[ratios.size() / 2], ratios.front(), ratios.back());
    for (std::size_t p = 1; p <= r.drafts.places(); ++p) {
      out += fmt::format(" {:.2f}", r.drafts.rate(p));
    }
    out += "\n";
  }
  return out;
}

Json to_json(const DraftsRow& r) {
  return {{"task", r.name},
          {"batch", r.batch},
          {"tokens", r.tokens},
          {"plain_steps", r.plain_steps},
          {"steps", r.steps},
          {"plain_tokens_per_s", r.plain},
          {"drafts_tokens_per_s", r.drafted},
          {"ratio", median(r.ratios())},
          {"drafts", to_json(r.drafts)}};
}

}  // namespace

int bench_drafts_command(const BenchDraftsOptions& options) {
  if (const auto ok = need_tokenizer(options.model); !ok) return refuse(ok.error());
  const auto tokenizer = Tokenizer::load(options.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  std::vector<DraftsCase> cases;
  for (const std::string& text : options.tasks) {
    const auto kind = parse_enum<EvalTaskKind>(text);
    if (!kind) {
      return refuse({ErrorCode::invalid_argument, "--task", "one of " + known_names<EvalTaskKind>(),
                     text, ""});
    }
    auto made = case_of(*kind, options, *tokenizer);
    if (!made) return refuse(made.error());
    cases.push_back(std::move(*made));
  }
  int exit_code = kExitOk;
  ModelFlags flags = options.model;
  if (flags.runtime.draft == "none" && flags.runtime.draft_model.empty()) {
    flags.runtime.draft = "ngram";
  }
  const auto drafts = start_model(flags, exit_code);
  if (!drafts) return exit_code;
  flags.quiet = true;
  flags.runtime.draft = "none";
  flags.runtime.draft_model.clear();
  flags.runtime.plan_request.draft_tokens = 0;
  const auto plain = start_model(flags, exit_code);
  if (!plain) return exit_code;
  cases.push_back(noise(plain->config(), *std::ranges::max_element(options.batches)));

  std::vector<DraftsRow> rows;
  for (const std::int64_t batch : options.batches) {
    for (const DraftsCase& c : cases) {
      if (isatty(STDERR_FILENO) == 1) {
        print_err(fmt::format("measuring {} with batch {}\n", c.name, batch));
      }
      auto row = measure(plain->engine(), drafts->engine(), StepClock(plain->machine()), c, batch,
                         options.repeats);
      if (!row) return refuse(row.error());
      rows.push_back(std::move(*row));
    }
  }
  if (options.json) {
    Json j = {
        {"model", options.model.runtime.model},   {"plan", summary(drafts->plan())},
        {"draft", drafts->draft().text()},        {"draft_tokens", drafts->plan().draft_tokens()},
        {"threads", drafts->threads().threads()}, {"rows", Json::array()}};
    for (const DraftsRow& r : rows) j["rows"].push_back(to_json(r));
    print_out(json_text(j, 2) + "\n");
    return kExitOk;
  }
  print_out(fmt::format(
      "{}, {} threads, {} with up to {} tokens, {}\ntokens a second{}, in steps that decode only; "
      "medians of {} turns\n\n{}",
      drafts->config().architecture, drafts->threads().threads(), drafts->draft().text(),
      drafts->plan().draft_tokens(), summary(drafts->plan()),
      is_gpu(drafts->machine().device) ? "" : " of CPU time", options.repeats, table(rows)));
  return kExitOk;
}

}  // namespace lathe
