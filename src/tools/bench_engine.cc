#include "tools/bench_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "attn/explain.h"
#include "tools/command.h"
#include "tools/machine_peak.h"
#include "tools/stored_values.h"

namespace lathe {
namespace {

struct Row {
  std::string test;  // "pp512", "tg64"
  std::int64_t depth = 0;
  std::int64_t batch = 1;
  std::vector<double> rates;  // tokens/s of the repeats
  double bytes = 0;           // of weights that a step streams; 0: not a matter of bytes

  double median() const {
    std::vector<double> sorted = rates;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

class EngineBench {
 public:
  explicit EngineBench(Runtime& runtime) : runtime_(runtime) {}

  // Tokens per second of the rows after `depth` tokens that the prefix cache holds.
  Result<double> prefill(std::int64_t tokens, std::int64_t depth, std::int64_t batch) {
    auto prompts = make_prompts(depth, batch);
    if (const auto ok = warm(prompts); !ok) return ok.error();
    for (auto& p : prompts) append(p, tokens);
    if (const auto ok = submit(prompts, 1); !ok) return ok.error();
    std::int64_t rows = 0;
    double seconds = 0;
    while (!runtime_.engine().idle()) {
      const auto step = timed_step(seconds);
      if (!step) return step.error();
      rows += step->prefill_rows;
    }
    return static_cast<double>(rows) / seconds;
  }

  // Tokens per second of steps in which all of `batch` requests decode.
  Result<double> decode(std::int64_t tokens, std::int64_t depth, std::int64_t batch) {
    auto prompts = make_prompts(depth, batch);
    if (const auto ok = warm(prompts); !ok) return ok.error();
    for (auto& p : prompts) append(p, 1);
    if (const auto ok = submit(prompts, tokens + 1); !ok) return ok.error();
    std::int64_t made = 0;
    double seconds = 0;
    while (!runtime_.engine().idle()) {
      double took = 0;
      const auto step = timed_step(took);
      if (!step) return step.error();
      if (step->prefill_rows > 0 || step->decode_rows < batch) continue;
      made += std::ssize(step->tokens);
      seconds += took;
    }
    return static_cast<double>(made) / seconds;
  }

 private:
  void append(std::vector<std::int32_t>& prompt, std::int64_t n) {
    std::uniform_int_distribution<std::int32_t> token(0, runtime_.config().vocab - 1);
    for (std::int64_t i = 0; i < n; ++i) prompt.push_back(token(random_));
  }

  std::vector<std::vector<std::int32_t>> make_prompts(std::int64_t depth, std::int64_t batch) {
    std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(batch));
    for (auto& p : prompts) append(p, depth);
    return prompts;
  }

  Result<void> submit(const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t answer) {
    SamplingParams params;
    params.temperature = 0;
    params.ignore_eos = true;
    params.max_tokens = static_cast<std::int32_t>(answer);
    for (const auto& p : prompts) {
      if (const auto id = runtime_.engine().submit({p, params}); !id) return id.error();
    }
    return {};
  }

  // Computes the prompts, so that the prefix cache has their whole pages.
  Result<void> warm(const std::vector<std::vector<std::int32_t>>& prompts) {
    runtime_.engine().clear_prefix_cache();
    if (prompts.front().empty()) return {};
    if (const auto ok = submit(prompts, 1); !ok) return ok.error();
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
  std::mt19937 random_{1};
};

std::string table(const std::vector<Row>& rows, double read_gbps) {
  std::string out = fmt::format("{:>8} {:>7} {:>6} {:>12} {:>21} {:>8} {:>6}\n", "test", "depth",
                                "batch", "tokens/s", "least to most", "GB/s", "share");
  for (const Row& r : rows) {
    const auto [least, most] = std::minmax_element(r.rates.begin(), r.rates.end());
    out += fmt::format("{:>8} {:>7} {:>6} {:>12.1f} {:>10.1f}{:>11.1f}", r.test, r.depth, r.batch,
                       r.median(), *least, *most);
    if (r.bytes > 0) {
      const double gbps = r.median() / static_cast<double>(r.batch) * r.bytes / 1e9;
      out += fmt::format(" {:>8.1f} {:>6.2f}", gbps, gbps / read_gbps);
    }
    out += "\n";
  }
  return out;
}

nlohmann::ordered_json json(const std::vector<Row>& rows, Runtime& runtime, double read_gbps) {
  nlohmann::ordered_json j = {
      {"architecture", runtime.config().architecture},  {"plan", summary(runtime.plan())},
      {"arithmetic", name(runtime.precision())},        {"threads", runtime.threads().threads()},
      {"weight_bytes", runtime.model().weight_bytes()}, {"read_gb_per_s", read_gbps},
      {"rows", nlohmann::ordered_json::array()}};
  for (const Row& r : rows) {
    nlohmann::ordered_json row = {{"test", r.test},
                                  {"depth", r.depth},
                                  {"batch", r.batch},
                                  {"tokens_per_s", r.median()},
                                  {"repeats", r.rates}};
    if (r.bytes > 0) {
      row["weight_gb_per_s"] = r.median() / static_cast<double>(r.batch) * r.bytes / 1e9;
    }
    j["rows"].push_back(std::move(row));
  }
  return j;
}

}  // namespace

int bench_engine_command(const BenchEngineOptions& options) {
  int exit_code = kExitOk;
  const auto runtime = start_model(options.model, exit_code);
  if (!runtime) return exit_code;
  const Machine& machine = runtime->machine();
  const bool on_gpu = is_gpu(machine.device);
  const double read_gbps =
      on_gpu ? machine.bytes_per_second / 1e9 : measure_read_gbps(runtime->threads());
  EngineBench bench(*runtime);
  std::vector<Row> rows;
  const auto measure = [&](const std::string& name, std::int64_t tokens, std::int64_t depth,
                           std::int64_t batch, bool decode) -> Result<void> {
    Row row{name, depth, batch, {}, 0};
    // A batch reads other experts than one row does, and so do drafts: only a single row's bytes
    // are known.
    if (decode && batch == 1 && runtime->draft() == DraftKind::none) {
      row.bytes = static_cast<double>(runtime->model().decode_bytes());
    }
    if (isatty(STDERR_FILENO) == 1) {
      fmt::print(stderr, "measuring {} at depth {}, batch {}\n", name, depth, batch);
    }
    for (int i = 0; i <= options.repeats; ++i) {
      const auto rate =
          decode ? bench.decode(tokens, depth, batch) : bench.prefill(tokens, depth, batch);
      if (!rate) return rate.error();
      if (i > 0) row.rates.push_back(*rate);  // the first one warms up
    }
    rows.push_back(std::move(row));
    return {};
  };
  for (const std::int64_t batch : options.batches) {
    for (const std::int64_t depth : options.depths) {
      for (const std::int64_t n : options.prompts) {
        if (n == 0) continue;
        const auto ok = measure(fmt::format("pp{}", n), n, depth, batch, false);
        if (!ok) return refuse(ok.error());
      }
      for (const std::int64_t n : options.answers) {
        if (n == 0) continue;
        const auto ok = measure(fmt::format("tg{}", n), n, depth, batch, true);
        if (!ok) return refuse(ok.error());
      }
    }
  }
  if (!options.model.quiet) print_err(describe_stored_values(*runtime));
  if (options.json) {
    print_out(json(rows, *runtime, read_gbps).dump(2) + "\n");
  } else {
    print_out(fmt::format(
        "{}, {} threads, products {}, weights {:.0f} MB, {}\nmedians of {}; GB/s are the weights "
        "that a decode "
        "step streams, share is of the {},\n{:.1f} GB/s\n\n{}",
        runtime->config().architecture, runtime->threads().threads(), name(runtime->precision()),
        static_cast<double>(runtime->model().weight_bytes()) / 1e6, summary(runtime->plan()),
        options.repeats, on_gpu ? "GPU memory's peak" : "read rate measured in the same run",
        read_gbps, table(rows, read_gbps)));
  }
  return kExitOk;
}

}  // namespace lathe
