#include "tools/bench/model/bench_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "base/integers.h"
#include "base/json.h"
#include "plan/explain.h"
#include "tools/bench/machine_peak.h"
#include "tools/bench/median.h"
#include "tools/bench/model/engine_tests.h"
#include "tools/bench/model/oracle_drafter.h"
#include "tools/bench/model/step_floor.h"
#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

struct EngineRow {
  EngineTest test;
  std::vector<double> rates;  // tokens/s of the repeats
  StepFloor floor;            // of a step, or of the prefill
  // Decoding on a GPU: seconds of each step besides waiting for it, and without a kernel before it.
  std::vector<double> host, idle;
  double shared = 0;  // share of the keys that was not read, as other requests' reads served

  double median() const { return lathe::median(rates); }
  // One step if it decodes, else the whole prefill.
  double seconds() const {
    return static_cast<double>((test.decodes ? 1 : test.tokens) * test.batch) / median();
  }
  double gbps() const { return floor.bytes / seconds() / 1e9; }
  double share() const { return floor.seconds / seconds(); }
};

double median_of(std::vector<double> values) {
  return values.empty() ? 0 : median(std::move(values));
}

// The gain of drafts with a given share of right guesses: measured, and predicted from step times
// as tokens of a check * T(rows) / (T(rows with drafts) + T(drafter)).
struct DraftGain {
  std::string test;
  std::int64_t depth = 0, batch = 1, drafts = 0;
  double plain = 0, drafted = 0;           // tokens/s, medians
  double step = 0, wide = 0, drafter = 0;  // seconds, medians
  double length = 0, expected = 0;  // tokens of a check: measured, and by the acceptance asked for

  double measured() const { return drafted / plain; }
  double formula() const { return expected * step / (wide + drafter); }
};

class EngineBench {
 public:
  /// shared: tokens with which all prompts of a batch begin, where they have as many.
  EngineBench(Runtime& runtime, OracleDrafter* oracle, std::int64_t shared)
      : runtime_(runtime), oracle_(oracle), shared_(shared) {}

  // Tokens per second of prefill after `depth` tokens that are in the prefix cache.
  Result<double> prefill(std::int64_t tokens, std::int64_t depth, std::int64_t batch) {
    auto prompts = make_prompts(depth, batch);
    if (const auto ok = warm(prompts); !ok) return ok.error();
    for (auto& p : prompts) append(p, tokens);
    if (const auto ids = submit(prompts, 1); !ids) return ids.error();
    std::int64_t rows = 0;
    double seconds = 0;
    while (!runtime_.engine().idle()) {
      const auto step = timed_step(seconds);
      if (!step) return step.error();
      rows += step->prefill_rows;
    }
    return static_cast<double>(rows) / seconds;
  }

  // Steps in which all of `batch` requests decode.
  struct Decoded {
    double seconds = 0;
    std::int64_t made = 0;
    std::vector<double> steps, host, drafter;        // seconds of each
    std::vector<double> idle;                        // of those that follow another
    std::vector<std::vector<std::int32_t>> answers;  // [batch]
    double shared = 0;                               // as in EngineRow
    double rate() const { return static_cast<double>(made) / seconds; }
  };
  // `known`: the answers to the same prompts, for the oracle drafter; null turns it off.
  Result<Decoded> decode(std::int64_t tokens, std::int64_t depth, std::int64_t batch,
                         const Decoded* known = nullptr) {
    if (oracle_ != nullptr) {
      random_.seed(1);
      oracle_->turn(known != nullptr);
    }
    auto prompts = make_prompts(depth, batch);
    if (const auto ok = warm(prompts); !ok) return ok.error();
    for (auto& p : prompts) append(p, 1);
    const auto ids = submit(prompts, tokens + 1);
    if (!ids) return ids.error();
    for (std::size_t i = 0; known != nullptr && i < ids->size(); ++i) {
      oracle_->expect((*ids)[i], depth + 1, known->answers[i]);
    }
    Decoded out;
    out.answers.resize(ids->size());
    static_cast<void>(runtime_.backend().idle_seconds());
    const KeyReads before = runtime_.engine().stats().key_reads;
    while (!runtime_.engine().idle()) {
      double took = 0;
      const double waited = runtime_.engine().stats().waited_s;
      const auto step = timed_step(took);
      if (!step) return step.error();
      const double drafter = oracle_ != nullptr ? oracle_->take_seconds() : 0;
      for (const TokenEvent& t : step->tokens) {
        out.answers[static_cast<std::size_t>(t.request.value - ids->front().value)].push_back(
            t.sampled.token);
      }
      if (step->prefill_rows > 0 || step->decode_rows < batch) continue;
      out.made += std::ssize(step->tokens);
      out.seconds += took;
      out.steps.push_back(took);
      out.host.push_back(took - (runtime_.engine().stats().waited_s - waited));
      if (step->drafted > 0) out.drafter.push_back(drafter);
    }
    out.idle = runtime_.backend().idle_seconds();
    const KeyReads after = runtime_.engine().stats().key_reads;
    const auto attended = static_cast<double>(after.attended - before.attended);
    if (attended > 0) out.shared = static_cast<double>(after.shared - before.shared) / attended;
    return out;
  }

  // Alternates runs without and with drafts, and times steps that have a request for each row of a
  // check.
  Result<DraftGain> gain(std::int64_t tokens, std::int64_t depth, std::int64_t batch, double right,
                         int repeats) {
    DraftGain out{fmt::format("tg{}", tokens), depth, batch, runtime_.plan().draft_tokens()};
    std::vector<double> plain, drafted, steps, wide, drafter;
    const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    const DraftStats before = runtime_.engine().stats().drafts;
    for (int i = 0; i <= repeats; ++i) {
      const auto without = decode(tokens, depth, batch);
      if (!without) return without.error();
      const auto with = decode(tokens, depth, batch, &*without);
      if (!with) return with.error();
      const auto rows = decode(tokens, depth, batch * (1 + out.drafts));
      if (!rows) return rows.error();
      if (i == 0) continue;  // warms up
      plain.push_back(without->rate());
      drafted.push_back(with->rate());
      add(steps, without->steps);
      add(wide, rows->steps);
      add(drafter, with->drafter);
    }
    out.plain = median_of(plain);
    out.drafted = median_of(drafted);
    out.step = median_of(steps);
    out.wide = median_of(wide);
    out.drafter = median_of(drafter);
    out.length = runtime_.engine().stats().drafts.since(before).acceptance_length();
    double all_right = 1;
    for (std::int64_t d = 0; d <= out.drafts; ++d, all_right *= right) out.expected += all_right;
    return out;
  }

 private:
  void append(std::vector<std::int32_t>& prompt, std::int64_t n) {
    std::uniform_int_distribution<std::int32_t> token(0, runtime_.config().vocab - 1);
    for (std::int64_t i = 0; i < n; ++i) prompt.push_back(token(random_));
  }

  std::vector<std::vector<std::int32_t>> make_prompts(std::int64_t depth, std::int64_t batch) {
    std::vector<std::int32_t> common;
    append(common, std::min(depth, shared_));
    std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(batch), common);
    for (auto& p : prompts) append(p, depth - std::ssize(common));
    return prompts;
  }

  Result<std::vector<RequestId>> submit(const std::vector<std::vector<std::int32_t>>& prompts,
                                        std::int64_t answer) {
    SamplingParams params;
    params.temperature = 0;
    params.ignore_eos = true;
    params.max_tokens = static_cast<std::int32_t>(answer);
    std::vector<RequestId> ids;
    for (const auto& p : prompts) {
      const auto id = runtime_.engine().submit({p, params});
      if (!id) return id.error();
      ids.push_back(*id);
    }
    return ids;
  }

  // Prefills the prompts, so that their whole pages are in the prefix cache. What they share is
  // prefilled first, once.
  Result<void> warm(const std::vector<std::vector<std::int32_t>>& prompts) {
    runtime_.engine().clear_prefix_cache();
    if (prompts.front().empty()) return {};
    if (shared_ > 0) {
      if (const auto ok = run({prompts.front()}); !ok) return ok;
    }
    return run(prompts);
  }

  Result<void> run(const std::vector<std::vector<std::int32_t>>& prompts) {
    if (const auto ids = submit(prompts, 1); !ids) return ids.error();
    double seconds = 0;
    while (!runtime_.engine().idle()) {
      if (const auto step = timed_step(seconds); !step) return step.error();
    }
    return {};
  }

  Result<StepReport> timed_step(double& seconds) {
    const auto start = std::chrono::steady_clock::now();
    auto report = runtime_.engine().step();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!report) return report;
    for (const Finished& f : report->finished) {
      if (f.error) return *f.error;
    }
    return report;
  }

  Runtime& runtime_;
  OracleDrafter* oracle_;  // null: drafts are the drafter's own, or there are none
  std::int64_t shared_;
  std::mt19937 random_{1};
};

std::string table(const std::vector<EngineRow>& rows, bool on_gpu) {
  std::string out =
      fmt::format("{:>8} {:>7} {:>6} {:>12} {:>21} {:>8} {:>6}{}\n", "test", "depth", "batch",
                  "tokens/s", "least to most", "GB/s", "share", on_gpu ? "  host us  idle us" : "");
  for (const EngineRow& r : rows) {
    const auto [least, most] = std::minmax_element(r.rates.begin(), r.rates.end());
    out += fmt::format("{:>8} {:>7} {:>6} {:>12.1f} {:>10.1f}{:>11.1f}", r.test.name(),
                       r.test.depth, r.test.batch, r.median(), *least, *most);
    if (r.floor.seconds > 0) {
      out += r.test.decodes ? fmt::format(" {:>8.1f}", r.gbps()) : fmt::format(" {:>8}", "");
      out += fmt::format(" {:>6.2f}", r.share());
    }
    if (!r.host.empty()) out += fmt::format(" {:>8.1f}", 1e6 * median_of(r.host));
    if (!r.idle.empty()) out += fmt::format(" {:>8.1f}", 1e6 * median_of(r.idle));
    if (r.shared > 0) out += fmt::format("  {:.1f} % of keys shared", 100 * r.shared);
    out += "\n";
  }
  return out;
}

std::string gains_table(const std::vector<DraftGain>& gains) {
  std::string out;
  for (const DraftGain& g : gains) {
    out += fmt::format(
        "{}, depth {}, batch {}, {} drafts of a request: {:.2f} tokens in a check, {:.2f} by the "
        "acceptance\n"
        "  tokens/s   {:.1f} without drafts, {:.1f} with them: {:.3f} times\n"
        "  formula    {:.2f} * T({}) {:.3f} ms / (T({}) {:.3f} ms + drafter {:.3f} ms): {:.3f} "
        "times\n"
        "  share      {:.3f}\n",
        g.test, g.depth, g.batch, g.drafts, g.length, g.expected, g.plain, g.drafted, g.measured(),
        g.expected, g.batch, 1e3 * g.step, g.batch * (1 + g.drafts), 1e3 * g.wide, 1e3 * g.drafter,
        g.formula(), g.measured() / g.formula());
  }
  return out;
}

nlohmann::ordered_json json(const std::vector<DraftGain>& gains) {
  auto out = nlohmann::ordered_json::array();
  for (const DraftGain& g : gains) {
    out.push_back({{"test", g.test},
                   {"depth", g.depth},
                   {"batch", g.batch},
                   {"drafts", g.drafts},
                   {"plain_tokens_per_s", g.plain},
                   {"drafts_tokens_per_s", g.drafted},
                   {"ratio", g.measured()},
                   {"tokens_of_a_check", g.length},
                   {"tokens_of_a_check_asked", g.expected},
                   {"step_s", g.step},
                   {"step_of_as_many_rows_s", g.wide},
                   {"drafter_s", g.drafter},
                   {"formula_ratio", g.formula()}});
  }
  return out;
}

nlohmann::ordered_json json(const std::vector<EngineRow>& rows, Runtime& runtime,
                            double read_gbps) {
  nlohmann::ordered_json j = {
      {"architecture", runtime.config().architecture}, {"plan", summary(runtime.plan())},
      {"arithmetic", name(runtime.precision())},       {"threads", runtime.threads().threads()},
      {"weight_bytes", runtime.weight_bytes()},        {"read_gb_per_s", read_gbps},
      {"rows", nlohmann::ordered_json::array()}};
  for (const EngineRow& r : rows) {
    nlohmann::ordered_json row = {{"test", r.test.name()},
                                  {"depth", r.test.depth},
                                  {"batch", r.test.batch},
                                  {"tokens_per_s", r.median()},
                                  {"repeats", r.rates}};
    if (r.floor.seconds > 0) {
      if (r.test.decodes) row["gb_per_s"] = r.gbps();
      row["floor_share"] = r.share();
    }
    if (!r.host.empty()) row["host_s"] = median_of(r.host);
    if (!r.idle.empty()) row["idle_s"] = median_of(r.idle);
    if (r.test.decodes) row["shared_keys_share"] = r.shared;
    j["rows"].push_back(std::move(row));
  }
  return j;
}

std::int64_t largest_batch(const std::vector<EngineTest>& tests) {
  std::int64_t out = 0;
  for (const EngineTest& t : tests) out = std::max(out, t.batch);
  return out;
}

// The error if the requests of a test have fewer tokens in the cache than they are to share.
std::optional<Error> too_long_a_prefix(std::int64_t shared, const std::vector<EngineTest>& tests) {
  std::int64_t least = shared;
  for (const EngineTest& t : tests) least = std::min(least, t.depth);
  if (shared <= least) return std::nullopt;
  return Error{ErrorCode::out_of_range, "--shared-prefix-tokens",
               fmt::format("at most the depth of every test, {}", least), fmt::format("{}", shared),
               fmt::format("--n-depth {}", shared)};
}

// The error if a test's requests do not run at once: no step would have all of them.
std::optional<Error> too_many_requests(const char* flag, const std::vector<EngineTest>& tests,
                                       std::int64_t running) {
  const std::int64_t largest = largest_batch(tests);
  if (largest <= running) return std::nullopt;
  return Error{ErrorCode::out_of_range, flag,
               fmt::format("at most {}, the requests that run at once", running),
               fmt::format("{}", largest), fmt::format("--max-running-requests {}", largest)};
}
// The error if a test needs more tokens than the cache holds. `copies`: requests that run at once
// for each one of a batch. `shared`: tokens of the depth that all of them have in common.
std::optional<Error> too_many_tokens(const char* flag, const std::vector<EngineTest>& tests,
                                     Runtime& runtime, std::int64_t asked, std::int64_t copies,
                                     std::int64_t shared) {
  const ModelPlan& plan = runtime.plan();
  const std::int64_t held = runtime.cache().tokens();
  for (const EngineTest& t : tests) {
    const std::int64_t each = round_up(t.positions(plan.draft_tokens()), plan.block_tokens);
    const std::int64_t common = std::min(shared, t.depth) / plan.block_tokens * plan.block_tokens;
    const std::int64_t batch = t.batch * (t.decodes ? copies : 1);
    const std::int64_t needed = common + batch * (each - common);
    if (needed <= held) continue;
    const std::int64_t fits = std::max<std::int64_t>(0, held - common) / (each - common) / copies;
    const std::string way_out = asked > 0  ? fmt::format("--max-total-tokens {}", needed)
                                : fits > 0 ? fmt::format("a batch of {}", fits)
                                           : "a smaller --n-prompt, --n-gen or --n-depth";
    return Error{ErrorCode::out_of_range, flag,
                 fmt::format("at most the {} tokens that the cache holds", held),
                 fmt::format("{} requests of {} tokens: {}", batch, each, needed), way_out};
  }
  return std::nullopt;
}

}  // namespace

int bench_engine_command(const BenchEngineOptions& options) {
  int exit_code = kExitOk;
  ModelFlags flags = options.model;
  std::vector<EngineTest> tests =
      engine_tests(options.prompts, options.answers, options.depths, options.batches);
  const char* const flag = options.tests.empty() ? "--batch" : "--tests";
  if (!options.tests.empty()) tests.clear();
  for (const std::string& text : options.tests) {
    const auto test = parse_engine_test(text);
    if (!test) return refuse(test.error());
    tests.push_back(*test);
  }
  if (tests.empty()) {
    return refuse({ErrorCode::invalid_argument, "--n-prompt, --n-gen",
                   "tokens of prefill or of decode", "0 of both", ""});
  }
  if (const auto error = too_long_a_prefix(options.shared_prefix_tokens, tests)) {
    return refuse(*error);
  }
  const PlanRequest& request = flags.runtime.plan_request;
  const std::int64_t running = request.max_running_requests;
  if (const auto error = too_many_requests(flag, tests, running)) return refuse(*error);
  OracleDrafter* oracle = nullptr;
  if (options.draft_acceptance > 0) {
    flags.runtime.wrap_drafter = [&](std::unique_ptr<Drafter> drafter) {
      std::unique_ptr<OracleDrafter> made;
      if (drafter != nullptr) {
        made = std::make_unique<OracleDrafter>(std::move(drafter), options.draft_acceptance);
      }
      oracle = made.get();
      return made;
    };
  }
  const auto runtime = start_model(flags, exit_code);
  if (!runtime) return exit_code;
  if (options.draft_acceptance > 0 && oracle == nullptr) {
    return refuse({ErrorCode::invalid_argument, "--draft-acceptance", "a drafter with it",
                   "--draft none", "--draft ngram, mtp or DIR"});
  }
  // gain() times a check's rows as that many separate requests.
  if (const std::int64_t rows = largest_batch(tests) * (1 + runtime->plan().draft_tokens());
      oracle != nullptr && rows > running) {
    return refuse({ErrorCode::out_of_range, "--max-running-requests",
                   fmt::format("at least {} with --draft-acceptance: a request for each row", rows),
                   fmt::format("{}", running), "pass that, or a smaller --batch"});
  }
  const std::int64_t copies = oracle == nullptr ? 1 : 1 + runtime->plan().draft_tokens();
  if (const auto error = too_many_tokens(flag, tests, *runtime, request.max_total_tokens, copies,
                                         options.shared_prefix_tokens))
    return refuse(*error);
  const Machine& machine = runtime->machine();
  const bool on_gpu = is_gpu(machine.device);
  const double read_gbps =
      on_gpu ? machine.bytes_per_second / 1e9 : measure_read_gbps(runtime->threads());
  EngineBench bench(*runtime, oracle, options.shared_prefix_tokens);
  std::vector<EngineRow> rows;
  std::vector<DraftGain> gains;
  const auto measure = [&](const EngineTest& test) -> Result<void> {
    EngineRow row;
    row.test = test;
    const auto [decode, tokens, depth, batch] = test;
    // How many rows a step with drafts has, and what a drafter reads, depends on its guesses.
    if (!decode) {
      row.floor = prefill_floor(*runtime, batch, tokens, depth);
    } else if (runtime->draft().kind == DraftKind::none && options.shared_prefix_tokens == 0) {
      row.floor = decode_floor(*runtime, batch, depth + 1 + tokens / 2, 1e9 * read_gbps);
    }
    if (isatty(STDERR_FILENO) == 1) {
      print_err(fmt::format("measuring {} at depth {}, batch {}\n", test.name(), depth, batch));
    }
    for (int i = 0; i <= options.repeats; ++i) {
      double rate = 0;
      if (decode) {
        // Measuring idle time costs host time, so it is on in the warm-up run alone.
        if (auto ok = runtime->backend().measure_idle(i == 0); !ok) return ok;
        const auto decoded = bench.decode(tokens, depth, batch);
        if (!decoded) return decoded.error();
        rate = decoded->rate();
        if (on_gpu) row.host = decoded->host;
        row.shared = decoded->shared;
        if (i == 0) row.idle = decoded->idle;
      } else {
        const auto prefilled = bench.prefill(tokens, depth, batch);
        if (!prefilled) return prefilled.error();
        rate = *prefilled;
      }
      if (i > 0) row.rates.push_back(rate);  // the first one warms up
    }
    rows.push_back(std::move(row));
    return {};
  };
  for (const EngineTest& test : tests) {
    if (oracle == nullptr || !test.decodes) {
      if (const auto ok = measure(test); !ok) return refuse(ok.error());
      continue;
    }
    const auto gain =
        bench.gain(test.tokens, test.depth, test.batch, options.draft_acceptance, options.repeats);
    if (!gain) return refuse(gain.error());
    gains.push_back(*gain);
  }
  if (!options.model.quiet) print_err(describe_stored_values(*runtime));
  if (options.json) {
    auto j = json(rows, *runtime, read_gbps);
    if (oracle != nullptr) j["drafts"] = json(gains);
    print_out(json_text(j, 2) + "\n");
  } else {
    std::string legend = fmt::format(
        "medians of {}; GB/s are the weights and the cache that a decode step reads, with experts "
        "as "
        "even\nrouters choose them; share is what the step needs at least of its time: those bytes "
        "at "
        "{:.1f} GB/s,\n{}",
        options.repeats, read_gbps,
        on_gpu ? "the GPU memory's peak, " : "the read rate measured in the same run");
    if (on_gpu) {
      legend += fmt::format(
          "or its products at the peak, {:.0f} TFLOP/s in bf16; host us are the time of a\n"
          "step besides waiting for it, idle us what passes on the GPU without a kernel before it",
          machine.bf16_flops / 1e12);
    }
    print_out(
        fmt::format("{}, {} threads, products {}, weights {:.0f} MB, {}\n{}\n\n{}",
                    runtime->config().architecture, runtime->threads().threads(),
                    name(runtime->precision()), static_cast<double>(runtime->weight_bytes()) / 1e6,
                    summary(runtime->plan()), legend, rows.empty() ? "" : table(rows, on_gpu)));
    print_out(gains_table(gains));
  }
  return kExitOk;
}

}  // namespace lathe
