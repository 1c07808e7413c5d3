#include "tools/bench/kernels/bench_attention_latent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/print.h"
#include "kernels/cpu/latent/latent_attend.h"
#include "tools/bench/kernels/bench_latent_scene.h"
#include "tools/bench/machine_peak.h"
#include "tools/bench/median.h"

namespace lathe {
namespace {

struct TeamLimits {
  double gflops = 0;
  double gbps = 0;
};

// A number of threads, with its pool and limits.
struct Team {
  ThreadPool threads;
  Scratch scratch;
  TeamLimits limits;

  explicit Team(int n) : threads(n) {}
};

double seconds_of_call(AttendArgs& args, Team& team, double least_seconds) {
  args.execution = {};
  args.execution.threads = &team.threads;
  args.execution.scratch = &team.scratch;
  const auto start = std::chrono::steady_clock::now();
  double seconds = 0;
  int calls = 0;
  do {
    LATHE_CHECK(cpu_attend_latent(args).ok(), "attend");
    ++calls;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } while (seconds < least_seconds);
  return seconds / calls;
}

// A row for each team. Their repeats alternate, so that other load on the machine slows all teams.
std::vector<LatentBenchRow> measure(const LatentBenchCase& c, const LatentBenchCache& cache,
                                    std::span<const std::unique_ptr<Team>> teams,
                                    const LatentBenchOptions& options) {
  LatentBenchSetup setup(c, cache);
  std::vector<std::vector<double>> seconds(teams.size());
  for (const auto& team : teams) seconds_of_call(setup.args, *team, 0);
  for (int i = 0; i < options.repeats; ++i) {
    for (std::size_t t = 0; t < teams.size(); ++t) {
      seconds[t].push_back(seconds_of_call(setup.args, *teams[t], options.least_seconds));
    }
  }
  std::vector<LatentBenchRow> rows;
  for (std::size_t t = 0; t < teams.size(); ++t) {
    const Team& team = *teams[t];
    LatentBenchRow row = latent_bench_row(c, setup.args.problem, cache.layout, median(seconds[t]),
                                          team.limits.gflops, team.limits.gbps);
    row.threads = team.threads.threads();
    row.scaling = median(seconds[0]) / row.seconds;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<LatentBenchCase> cases_of(const CacheLayout& layout, bool quick) {
  constexpr auto kDense = ProblemKind::dense_latent;
  constexpr auto kSparse = ProblemKind::sparse_latent;
  constexpr auto kV4 = ProblemKind::window_compressed;
  if (layout.kind() == LayoutKind::v4_fp8) {
    std::vector<LatentBenchCase> cases = {{"v4_decode", kV4, 8, 1, 16, 32768, 640}};
    if (!quick) cases.push_back({"v4_decode", kV4, 8, 1, 64, 32768, 640});
    return cases;
  }
  if (quick) return {{"dense_decode", kDense, 1, 1, 16, 4096, 0}};
  std::vector<LatentBenchCase> cases = {{"dense_decode", kDense, 1, 1, 16, 4096, 0},
                                        {"dense_decode", kDense, 8, 1, 16, 4096, 0},
                                        {"dense_decode", kDense, 1, 1, 16, 32768, 0},
                                        {"dense_decode", kDense, 8, 1, 16, 32768, 0},
                                        {"dense_decode", kDense, 1, 1, 128, 4096, 0},
                                        {"dense_decode", kDense, 1, 1, 16, 1024, 0},
                                        {"dense_decode", kDense, 1, 1, 16, 1536, 0},
                                        {"dense_decode", kDense, 1, 1, 16, 2048, 0},
                                        {"sparse_decode", kSparse, 1, 1, 16, 32768, 2048},
                                        {"sparse_decode", kSparse, 8, 1, 16, 32768, 2048},
                                        {"dense_extend", kDense, 1, 256, 16, 4096, 0}};
  return cases;
}

}  // namespace

std::vector<LatentBenchRow> run_latent_bench(const LatentBenchOptions& options) {
  std::vector<int> counts = options.threads;
  if (counts.empty()) {
    const int all = ThreadPool().threads();
    counts.push_back(1);
    if (all > 1) counts.push_back(all);
  }
  std::vector<LatentBenchRow> rows;
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (!is_latent(kind)) continue;
    const std::int64_t tokens = options.quick ? 32768 : 8 * 32768;
    const LatentBenchCache cache(CacheLayout(kind), tokens);
    std::vector<std::unique_ptr<Team>> teams;
    for (const int n : counts) {
      teams.push_back(std::make_unique<Team>(n));
      ThreadPool& threads = teams.back()->threads;
      teams.back()->limits = {measure_peak_gflops(threads), measure_read_gbps(threads)};
    }
    for (const LatentBenchCase& c : cases_of(cache.layout, options.quick)) {
      for (LatentBenchRow& row : measure(c, cache, teams, options)) rows.push_back(std::move(row));
      if (isatty(2) != 0) print_err(fmt::format("\r{} measured", rows.size()));
    }
  }
  if (isatty(2) != 0) print_err(fmt::format("\r{:20}\r", ""));
  return rows;
}

}  // namespace lathe
