#include "tools/bench/model/bench_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tools/bench/machine_peak.h"
#include "tools/bench/model/check_engine_tests.h"
#include "tools/bench/model/engine_bench.h"
#include "tools/bench/model/engine_report.h"
#include "tools/bench/model/engine_tests.h"
#include "tools/bench/model/oracle_drafter.h"
#include "tools/bench/model/step_floor.h"
#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

// What the flags ask for.
Result<std::vector<EngineTest>> asked_tests(const BenchEngineOptions& options) {
  std::vector<EngineTest> tests;
  for (const std::string& text : options.tests) {
    const auto test = parse_engine_test(text);
    if (!test) return test.error();
    tests.push_back(*test);
  }
  if (tests.empty()) {
    tests = engine_tests(options.prompts, options.answers, options.depths, options.batches);
  }
  if (tests.empty()) {
    return Error{ErrorCode::invalid_argument, "--n-prompt, --n-gen",
                 "tokens of prefill or of decode", "0 of both", ""};
  }
  return tests;
}

// Wraps the drafter that a runtime makes; `oracle` is null where it makes none.
auto wrap_in_oracle(float acceptance, OracleDrafter*& oracle) {
  return [acceptance, &oracle](std::unique_ptr<Drafter> drafter) {
    std::unique_ptr<OracleDrafter> made;
    if (drafter != nullptr) made = std::make_unique<OracleDrafter>(std::move(drafter), acceptance);
    oracle = made.get();
    return made;
  };
}

// The least time of a test's step, or of its prefill; none where that depends on guesses or shared
// reads.
StepFloor floor_of(const EngineTest& test, const BenchEngineOptions& options, Runtime& runtime,
                   double read_gbps) {
  const auto& [decodes, tokens, depth, batch] = test;
  if (!decodes) return prefill_floor(runtime, batch, tokens, depth);
  // How many rows a step with drafts has, and what a drafter reads, depends on its guesses.
  if (runtime.draft().kind != DraftKind::none || options.shared_prefix_tokens > 0) return {};
  return decode_floor(runtime, batch, depth + 1 + tokens / 2, 1e9 * read_gbps);
}

Result<EngineRow> measure(const EngineTest& test, const BenchEngineOptions& options,
                          Runtime& runtime, EngineBench& bench, double read_gbps) {
  EngineRow row;
  row.test = test;
  row.floor = floor_of(test, options, runtime, read_gbps);
  const auto& [decodes, tokens, depth, batch] = test;
  if (isatty(STDERR_FILENO) == 1) {
    print_err(fmt::format("measuring {} at depth {}, batch {}\n", test.name(), depth, batch));
  }
  for (int i = 0; i <= options.repeats; ++i) {
    double rate = 0;
    if (decodes) {
      // Measuring idle time costs host time, so it is on in the warm-up run alone.
      if (auto ok = runtime.backend().measure_idle(i == 0); !ok) return ok.error();
      const auto decoded = bench.decode(tokens, depth, batch);
      if (!decoded) return decoded.error();
      rate = decoded->rate();
      if (is_gpu(runtime.machine().device)) row.host = decoded->host;
      row.shared = decoded->shared;
      if (i == 0) row.idle = decoded->idle;
    } else {
      const auto prefilled = bench.prefill(tokens, depth, batch);
      if (!prefilled) return prefilled.error();
      rate = *prefilled;
    }
    if (i > 0) row.rates.push_back(rate);  // the first one warms up
  }
  return row;
}

}  // namespace

int bench_engine_command(const BenchEngineOptions& options) {
  const auto tests = asked_tests(options);
  if (!tests) return refuse(tests.error());
  if (const auto ok = check_engine_flags(options, *tests); !ok) return refuse(ok.error());
  ModelFlags flags = options.model;
  flags.runtime.check_plan = [&](const ModelConfig& config, const ModelPlan& plan) {
    return check_engine_plan(options, *tests, config, plan);
  };
  OracleDrafter* oracle = nullptr;
  if (options.draft_acceptance > 0) {
    flags.runtime.wrap_drafter = wrap_in_oracle(options.draft_acceptance, oracle);
  }
  int exit_code = kExitOk;
  const auto runtime = start_model(flags, exit_code);
  if (!runtime) return exit_code;
  const std::int64_t held = runtime->cache().tokens();
  if (const auto ok = check_engine_cache(options, *tests, runtime->plan(), held); !ok) {
    return refuse(ok.error());
  }
  const Machine& machine = runtime->machine();
  const double read_gbps = is_gpu(machine.device) ? machine.bytes_per_second / 1e9
                                                  : measure_read_gbps(runtime->threads());
  EngineBench bench(*runtime, oracle, options.shared_prefix_tokens);
  std::vector<EngineRow> rows;
  std::vector<DraftGain> gains;
  for (const EngineTest& test : *tests) {
    if (oracle == nullptr || !test.decodes) {
      auto row = measure(test, options, *runtime, bench, read_gbps);
      if (!row) return refuse(row.error());
      rows.push_back(std::move(*row));
      continue;
    }
    const auto gain =
        bench.gain(test.tokens, test.depth, test.batch, options.draft_acceptance, options.repeats);
    if (!gain) return refuse(gain.error());
    gains.push_back(*gain);
  }
  if (!options.model.quiet) print_err(describe_stored_values(*runtime));
  const auto* const drafts = oracle != nullptr ? &gains : nullptr;
  print_out(options.json ? json_text(engine_json(rows, drafts, *runtime, read_gbps), 2) + "\n"
                         : engine_report(rows, gains, *runtime, options.repeats, read_gbps));
  return kExitOk;
}

}  // namespace lathe
