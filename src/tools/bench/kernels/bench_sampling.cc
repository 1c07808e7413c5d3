#include "tools/bench/kernels/bench_sampling.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/devices/all.h"
#include "ops/sampling.h"
#include "tools/bench/bench_memory.h"
#include "tools/bench/kernels/bench_cuda.h"
#include "tools/bench/machine_peak.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

struct SamplingCase {
  std::string name;
  SamplingParams params;
};

std::vector<SamplingCase> sampling_cases() {
  std::vector<SamplingCase> list;
  const auto add = [&](std::string name) -> SamplingParams& {
    return list.emplace_back(SamplingCase{std::move(name), {}}).params;
  };
  add("greedy").temperature = 0;
  add("temperature 0.7").temperature = 0.7f;
  add("temperature 1");
  add("min_p 0.05").min_p = 0.05f;
  add("top_k 50").top_k = 50;
  add("top_p 0.95").top_p = 0.95f;
  SamplingParams& all = add("top_k 50, top_p 0.95, penalties");
  all.top_k = 50;
  all.top_p = 0.95f;
  all.repetition_penalty = 1.1f;
  all.frequency_penalty = 0.1f;
  add("greedy, 5 logprobs").temperature = 0;
  list.back().params.logprobs = 5;
  return list;
}

// Normal logits: the wider the spread, the fewer tokens have a noticeable share.
std::vector<float> logits_of(float spread, std::int64_t n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

struct SamplingBench {
  const BenchSamplingOptions& options;
  std::vector<std::int32_t> history;

  explicit SamplingBench(const BenchSamplingOptions& o) : options(o), history(1000) {
    std::iota(history.begin(), history.end(), 0);
    for (std::int32_t& t : history) t = static_cast<std::int32_t>(t * 127 % o.vocab);
  }

  // Of a row, the best of the repeats; of all rows at once.
  Result<double> seconds(Backend& backend, const SamplingParams& params,
                         std::span<const float> logits, ThreadPool& pool) {
    Scratch scratch;
    Arena tensors(backend.memory()), control;
    OpsContext ops;
    ops.backend = &backend;
    ops.tensors = &tensors;
    ops.control = &control;
    ops.execution.threads = &pool;
    ops.execution.scratch = &scratch;
    std::vector<SampleArgs> rows;
    for (int i = 0; i < options.rows; ++i) {
      const auto row = logits.subspan(static_cast<std::size_t>(i * options.vocab),
                                      static_cast<std::size_t>(options.vocab));
      rows.push_back({row, &params, history, history, {}, static_cast<std::uint64_t>(i)});
    }
    std::vector<std::optional<SampledToken>> out(rows.size());
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i <= options.repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      sample(ops, rows, out);
      if (auto ok = backend.wait(); !ok) return ok.error();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (i > 0) best = std::min(best, took.count() / options.rows);
    }
    return best;
  }
};

// Where the backend reads them.
Result<std::span<const float>> bring(Backend& backend, std::span<const float> logits,
                                     std::vector<OwnedBytes>& owned) {
  auto there = backend.prepare(logits, owned);
  if (!there) return there;
  if (auto ok = backend.end_prepare(); !ok) return ok.error();
  return there;
}

// The error if the logits are more than the host, or the GPU, has memory for.
Result<void> check_logits(const BenchSamplingOptions& options, bool gpu) {
  const double needed =
      1.0 * sizeof(float) * static_cast<double>(options.rows) * static_cast<double>(options.vocab);
  for (const Device device : {Device::cpu, gpu ? Device::sm90 : Device::cpu}) {
    auto ok = check_bench_memory(device, needed, "--rows, --vocab",
                                 fmt::format("{} rows of {} logits", options.rows, options.vocab),
                                 "fewer of either");
    if (!ok) return ok;
  }
  return {};
}

}  // namespace

int bench_sampling_command(const BenchSamplingOptions& options) {
  const bool gpu = options.device == "cuda";
  if (gpu && options.threads > 0) {
    return refuse({ErrorCode::invalid_argument, "--threads", "--device cpu with it",
                   "--device cuda", "leave it out"});
  }
  if (gpu) {
    if (const Result<GpuInfo> info = open_gpu(); !info) return refuse(info.error());
  }
  if (const auto ok = check_logits(options, gpu); !ok) return refuse(ok.error());
  auto backend = make_backend(gpu ? Device::sm90 : Device::cpu);
  if (!backend) return refuse(backend.error());
  std::vector<int> threads = {1, 2};
  if (options.threads > 0) threads = {options.threads};
  if (gpu) threads = {1};
  SamplingBench bench(options);
  nlohmann::ordered_json out = {{"device", options.device},
                                {"vocab", options.vocab},
                                {"rows", options.rows},
                                {"repeats", options.repeats}};
  out["cases"] = nlohmann::ordered_json::array();
  std::string table = fmt::format("{} rows of {} normal logits at once, best of the repeats",
                                  options.rows, options.vocab);
  table += gpu ? fmt::format("\n\n{:32} {:>6} {:>10}\n", "parameters", "spread", "us/row")
               : fmt::format(
                     "; read is one read of a row's logits from memory\n\n"
                     "{:32} {:>6} {:>7} {:>10} {:>10}\n",
                     "parameters", "spread", "threads", "us/row", "read us");
  for (const int t : threads) {
    ThreadPool pool(t);
    const double read = gpu ? 0
                            : static_cast<double>(options.vocab * std::int64_t{sizeof(float)}) /
                                  (measure_read_gbps(pool) * 1e9);
    for (const float spread : {1.0f, 4.0f}) {
      const std::vector<float> logits = logits_of(spread, options.rows * options.vocab);
      std::vector<OwnedBytes> owned;
      const auto there = bring(**backend, logits, owned);
      if (!there) return refuse(there.error());
      for (const SamplingCase& c : sampling_cases()) {
        if (isatty(STDERR_FILENO) == 1)
          print_err(fmt::format("measuring {} threads {}\n", c.name, t));
        const Result<double> took = bench.seconds(**backend, c.params, *there, pool);
        if (!took) return refuse(took.error());
        const double seconds = *took;
        nlohmann::ordered_json row = {
            {"parameters", c.name}, {"spread", spread}, {"seconds_per_row", seconds}};
        if (gpu) {
          table += fmt::format("{:32} {:6} {:10.1f}\n", c.name, spread, seconds * 1e6);
        } else {
          row["threads"] = t;
          row["read_seconds"] = read;
          table += fmt::format("{:32} {:6} {:7} {:10.1f} {:10.1f}\n", c.name, spread, t,
                               seconds * 1e6, read * 1e6);
        }
        out["cases"].push_back(std::move(row));
      }
    }
  }
  print_out(options.json ? json_text(out, 2) + "\n" : table);
  return kExitOk;
}

}  // namespace lathe
