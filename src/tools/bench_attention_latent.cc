#include "tools/bench_attention_latent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/latent_attend.h"
#include "layout/codec.h"
#include "tools/machine_peak.h"

namespace lathe {
namespace {

constexpr std::int32_t kPage = 64;

template <class T>
std::size_t count(T n) {
  return static_cast<std::size_t>(n);
}

struct Limits {
  double gflops = 0;
  double gbps = 0;
};

// A pool of random rows that the cases share, its pages in shuffled order.
struct Cache {
  CacheLayout layout;
  std::int64_t tokens;
  std::vector<std::byte> bytes;
  std::vector<PageId> pages;

  Cache(const CacheLayout& l, std::int64_t n)
      : layout(l), tokens(n), bytes(count(n / kPage * l.page_stride(kPage))) {
    std::minstd_rand rng(1);
    std::normal_distribution<float> normal;
    const std::int64_t width = l.row_elems();
    std::vector<float> rows(count(kPage * width));
    std::vector<Slot> slots(kPage);
    for (float& x : rows) x = normal(rng);
    for (std::int32_t p = 0; p < tokens / kPage; ++p) {
      pages.emplace_back(p);
      for (std::int32_t i = 0; i < kPage; ++i) slots[count(i)] = Slot(p * kPage + i);
      const RowsView view{reinterpret_cast<const std::byte*>(rows.data()), DType::f32, kPage, width,
                          width};
      const PoolView pool(bytes.data(), layout, kPage, tokens / kPage);
      LATHE_CHECK(encode_rows(view, slots, pool).ok(), "encode");
    }
    std::shuffle(pages.begin(), pages.end(), rng);
  }
  ConstPoolView view() const { return {bytes.data(), layout, kPage, tokens / kPage}; }
};

struct Case {
  const char* name;
  ProblemKind problem;
  std::int64_t batch, rows, heads, context, k;
};

// The arguments of a case and what they point to.
struct Setup {
  std::vector<float> q, out;
  std::vector<std::int32_t> indptr{0}, lens, list;
  std::vector<PageId> table;
  AttendArgs args;

  Setup(const Case& c, const Cache& cache) {
    args.problem = c.problem == ProblemKind::window_compressed ? deepseek_v4_problem()
                   : c.problem == ProblemKind::sparse_latent   ? deepseek_v32_problem()
                                                               : deepseek_v3_problem();
    AttentionProblem& p = args.problem;
    p.heads = static_cast<std::int32_t>(c.heads);
    p.sink = false;
    if (c.problem == ProblemKind::window_compressed) {
      p.window = 0;
      p.compress_ratio = 0;
    }
    const std::int64_t rows = c.batch * c.rows;
    q.resize(count(rows * c.heads * p.qk_dim()));
    out.resize(count(rows * c.heads * p.v_dim()));
    std::minstd_rand rng(2);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(rng);
    const std::int64_t width = c.context / kPage;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      indptr.push_back(static_cast<std::int32_t>((b + 1) * c.rows));
      lens.push_back(static_cast<std::int32_t>(c.context));
      for (std::int64_t i = 0; i < width; ++i) {
        table.push_back(cache.pages[count((b * width + i) % std::ssize(cache.pages))]);
      }
    }
    args.q = {reinterpret_cast<const std::byte*>(q.data()), DType::f32, rows, c.heads * p.qk_dim(),
              c.heads * p.qk_dim()};
    args.out = {reinterpret_cast<std::byte*>(out.data()), DType::f32, rows, c.heads * p.v_dim(),
                c.heads * p.v_dim()};
    args.q_indptr = indptr;
    args.kv_lens = lens;
    args.main.pool = cache.view();
    if (c.k == 0) {
      args.main.page_table = table;
      args.main.table_width = width;
      return;
    }
    std::vector<std::int32_t> slots(count(c.context));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t request = r / c.rows;
      for (std::int64_t i = 0; i < c.context; ++i) {
        const PageId page = table[count(request * width + i / kPage)];
        slots[count(i)] = slot_of(page, kPage, static_cast<std::int32_t>(i % kPage)).value;
      }
      std::shuffle(slots.begin(), slots.end(), rng);
      list.insert(list.end(), slots.begin(), slots.begin() + c.k);
    }
    args.main.indices = list;
    args.main.index_width = c.k;
  }
  Setup(const Setup&) = delete;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Threads and what goes with their number.
struct Team {
  ThreadPool threads;
  Scratch scratch;
  Limits limits;

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

LatentBenchRow row_of(const Case& c, const Cache& cache, const Team& team, double seconds) {
  LatentBenchRow row;
  row.name = c.name;
  row.layout = std::string(cache.layout.name());
  row.batch = c.batch;
  row.rows = c.rows;
  row.heads = c.heads;
  row.context = c.context;
  row.k = c.k;
  row.threads = team.threads.threads();
  row.peak_gflops = team.limits.gflops;
  row.read_gbps = team.limits.gbps;
  row.seconds = seconds;
  return row;
}

// A row for each team. They take turns, so that whatever disturbs the machine meets all of them.
std::vector<LatentBenchRow> measure(const Case& c, const Cache& cache,
                                    std::span<const std::unique_ptr<Team>> teams,
                                    const LatentBenchOptions& options) {
  Setup setup(c, cache);
  std::vector<std::vector<double>> seconds(teams.size());
  for (const auto& team : teams) seconds_of_call(setup.args, *team, 0);
  for (int i = 0; i < options.repeats; ++i) {
    for (std::size_t t = 0; t < teams.size(); ++t) {
      seconds[t].push_back(seconds_of_call(setup.args, *teams[t], options.least_seconds));
    }
  }
  const AttentionProblem& p = setup.args.problem;
  double pairs = 0;  // of a row and a key
  for (std::int64_t r = 0; r < c.rows; ++r) {
    pairs += static_cast<double>(c.k > 0 ? c.k : c.context - c.rows + r + 1);
  }
  const auto batch = static_cast<double>(c.batch);
  const double flops =
      batch * pairs * static_cast<double>(c.heads) * 2.0 * (p.qk_dim() + p.v_dim());
  const double keys = c.k > 0 ? pairs : static_cast<double>(c.context);
  const double bytes = batch * keys * cache.layout.bytes_per_token();
  std::vector<LatentBenchRow> rows;
  for (std::size_t t = 0; t < teams.size(); ++t) {
    LatentBenchRow row = row_of(c, cache, *teams[t], median(seconds[t]));
    row.gflops = flops / row.seconds / 1e9;
    row.gbps = bytes / row.seconds / 1e9;
    row.share = std::max(row.gflops / row.peak_gflops, row.gbps / row.read_gbps);
    row.scaling = median(seconds[0]) / row.seconds;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Case> cases_of(const CacheLayout& layout, bool quick) {
  constexpr auto kDense = ProblemKind::dense_latent;
  constexpr auto kSparse = ProblemKind::sparse_latent;
  constexpr auto kV4 = ProblemKind::window_compressed;
  if (layout.kind() == LayoutKind::v4_fp8) {
    std::vector<Case> cases = {{"v4_decode", kV4, 8, 1, 16, 32768, 640}};
    if (!quick) cases.push_back({"v4_decode", kV4, 8, 1, 64, 32768, 640});
    return cases;
  }
  if (quick) return {{"dense_decode", kDense, 1, 1, 16, 4096, 0}};
  std::vector<Case> cases = {{"dense_decode", kDense, 1, 1, 16, 4096, 0},
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
    const Cache cache(CacheLayout(kind), tokens);
    std::vector<std::unique_ptr<Team>> teams;
    for (const int n : counts) {
      teams.push_back(std::make_unique<Team>(n));
      ThreadPool& threads = teams.back()->threads;
      teams.back()->limits = {measure_peak_gflops(threads), measure_read_gbps(threads)};
    }
    for (const Case& c : cases_of(cache.layout, options.quick)) {
      for (LatentBenchRow& row : measure(c, cache, teams, options)) rows.push_back(std::move(row));
      if (isatty(2) != 0) fmt::print(stderr, "\r{} measured", rows.size());
    }
  }
  if (isatty(2) != 0) fmt::print(stderr, "\r{:20}\r", "");
  return rows;
}

}  // namespace lathe
