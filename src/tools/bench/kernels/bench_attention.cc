#include "tools/bench/kernels/bench_attention.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tools/bench/kernels/bench_attention_gqa.h"
#include "tools/bench/kernels/bench_attention_latent.h"
#include "tools/bench/kernels/bench_cuda.h"
#include "tools/bench/kernels/bench_delta.h"
#include "tools/bench/machine_peak.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

void progress(const char* what) {
  if (isatty(STDERR_FILENO) == 1) print_err(fmt::format("measuring {}\n", what));
}

struct ThreadLimits {
  double gflops = 0;
  double read_gbps = 0;
};

// Adds to grouped-query and ragged rows the machine's limits for their number of threads.
std::vector<LatentBenchRow> with_limits(const std::vector<AttentionBenchRow>& rows) {
  std::map<int, ThreadLimits> limits;
  std::vector<LatentBenchRow> out;
  for (const AttentionBenchRow& r : rows) {
    if (!limits.contains(r.threads)) {
      ThreadPool pool(r.threads);
      limits[r.threads] = {measure_peak_gflops(pool), measure_read_gbps(pool)};
    }
    const ThreadLimits& l = limits[r.threads];
    LatentBenchRow row;
    row.name = r.name;
    row.layout = r.layout;
    row.batch = r.batch;
    row.rows = r.rows;
    row.heads = r.heads;
    row.context = r.context;
    row.threads = r.threads;
    row.seconds = r.seconds;
    row.gflops = r.gflop_per_s;
    row.gbps = r.gb_per_s;
    row.peak_gflops = l.gflops;
    row.read_gbps = l.read_gbps;
    row.share = std::max(r.gflop_per_s / l.gflops, r.gb_per_s / l.read_gbps);
    out.push_back(row);
  }
  return out;
}

nlohmann::ordered_json row_json(const LatentBenchRow& r) {
  return {{"name", r.name},
          {"layout", r.layout},
          {"batch", r.batch},
          {"rows", r.rows},
          {"heads", r.heads},
          {"context", r.context},
          {"k", r.k},
          {"threads", r.threads},
          {"seconds", r.seconds},
          {"gflop_per_s", r.gflops},
          {"gb_per_s", r.gbps},
          {"peak_gflop_per_s", r.peak_gflops},
          {"read_gb_per_s", r.read_gbps},
          {"share", r.share},
          {"scaling", r.scaling}};
}

std::string table(const std::vector<LatentBenchRow>& rows) {
  std::string out = fmt::format(
      "{:14} {:14} {:>5} {:>5} {:>5} {:>7} {:>5} {:>7} {:>11} {:>8} {:>6} {:>8} {:>6} {:>6} "
      "{:>7}\n",
      "name", "layout", "batch", "rows", "heads", "context", "k", "threads", "us", "GFLOP/s",
      "GB/s", "peak", "read", "share", "scaling");
  for (const LatentBenchRow& r : rows) {
    out += fmt::format(
        "{:14} {:14} {:5} {:5} {:5} {:7} {:5} {:7} {:11.1f} {:8.1f} {:6.2f} {:8.1f} {:6.1f} "
        "{:6.2f} {:>7}\n",
        r.name, r.layout, r.batch, r.rows, r.heads, r.context, r.k, r.threads, r.seconds * 1e6,
        r.gflops, r.gbps, r.peak_gflops, r.read_gbps, r.share,
        r.scaling > 0 ? fmt::format("{:.2f}", r.scaling) : "");
  }
  return out;
}

void print_rows(const BenchAttentionOptions& options, const std::string& device,
                const std::string& title, const std::vector<LatentBenchRow>& rows) {
  if (!options.json) {
    print_out(title + table(rows));
    return;
  }
  nlohmann::ordered_json out = {{"device", device}, {"repeats", options.repeats}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const LatentBenchRow& r : rows) out["rows"].push_back(row_json(r));
  print_out(json_text(out, 2) + "\n");
}

int bench_on_gpu(const BenchAttentionOptions& options) {
  const Result<GpuInfo> gpu = open_gpu();
  if (!gpu) return refuse(gpu.error());
  progress("latent attention");
  print_rows(
      options, gpu->model,
      fmt::format("{}; medians; threads are its processors; peak is 790 TFLOP/s of bf16 on 132 "
                  "of them, read\nthat of a copy in the same run; share is of the nearer "
                  "one\n\n",
                  gpu->model),
      bench_latent_on_gpu(*gpu, options.repeats, options.quick));
  return kExitOk;
}

}  // namespace

int bench_attention_command(const BenchAttentionOptions& options) {
  if (options.device == "cuda") return bench_on_gpu(options);
  LatentBenchOptions latent;
  latent.repeats = options.repeats;
  latent.quick = options.quick;
  AttentionBenchOptions other;
  other.repeats = options.repeats;

  progress("latent attention");
  std::vector<LatentBenchRow> rows = run_latent_bench(latent);
  progress("grouped-query attention");
  for (LatentBenchRow& r : with_limits(bench_gqa(other))) rows.push_back(std::move(r));
  progress("ragged attention");
  for (LatentBenchRow& r : with_limits(bench_ragged(other))) rows.push_back(std::move(r));
  progress("delta-rule layers");
  for (LatentBenchRow& r : bench_delta(options.repeats)) rows.push_back(std::move(r));

  print_rows(
      options, "cpu",
      "medians; peak and read are this machine's limits measured in the same run; share is of "
      "the\n"
      "nearer one; scaling is time with one thread over time, taken in turns\n\n",
      rows);
  return kExitOk;
}

}  // namespace lathe
