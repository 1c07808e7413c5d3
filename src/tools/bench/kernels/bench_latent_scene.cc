#include "tools/bench/kernels/bench_latent_scene.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "layout/codec/codec.h"

namespace lathe {
namespace {

template <class T>
std::size_t count(T n) {
  return static_cast<std::size_t>(n);
}

}  // namespace

LatentBenchCache::LatentBenchCache(const CacheLayout& l, std::int64_t n)
    : layout(l), tokens(n), bytes(count(n / kBenchPage * l.page_stride(kBenchPage))) {
  std::minstd_rand rng(1);
  std::normal_distribution<float> normal;
  const std::int64_t width = l.row_elems();
  std::vector<float> rows(count(kBenchPage * width));
  std::vector<Slot> slots(kBenchPage);
  for (float& x : rows) x = normal(rng);
  for (std::int32_t p = 0; p < tokens / kBenchPage; ++p) {
    pages.emplace_back(p);
    for (std::int32_t i = 0; i < kBenchPage; ++i) slots[count(i)] = Slot(p * kBenchPage + i);
    const RowsView view{reinterpret_cast<const std::byte*>(rows.data()), DType::f32, kBenchPage,
                        width, width};
    const PoolView pool(bytes.data(), layout, kBenchPage, tokens / kBenchPage);
    LATHE_CHECK(encode_rows(view, slots, pool).ok(), "encode");
  }
  std::shuffle(pages.begin(), pages.end(), rng);
}

LatentBenchSetup::LatentBenchSetup(const LatentBenchCase& c, const LatentBenchCache& cache) {
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
  std::vector<float> pattern(65521);  // prime: no row repeats at once
  for (float& x : pattern) x = normal(rng);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = pattern[i % pattern.size()];
  const std::int64_t width = c.context / kBenchPage;
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
  args.max_request_rows = c.rows;
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
      const PageId page = table[count(request * width + i / kBenchPage)];
      slots[count(i)] = slot_of(page, kBenchPage, static_cast<std::int32_t>(i % kBenchPage)).value;
    }
    // The first k places of a shuffle.
    for (std::int64_t i = 0; i < c.k; ++i) {
      const auto other = i + static_cast<std::int64_t>(rng()) % (c.context - i);
      std::swap(slots[count(i)], slots[count(other)]);
    }
    list.insert(list.end(), slots.begin(), slots.begin() + c.k);
  }
  args.main.indices = list;
  args.main.index_width = c.k;
}

LatentBenchRow latent_bench_row(const LatentBenchCase& c, const AttentionProblem& p,
                                const CacheLayout& layout, double seconds, double peak_gflops,
                                double read_gbps) {
  double pairs = 0;  // (row, key)
  for (std::int64_t r = 0; r < c.rows; ++r) {
    pairs += static_cast<double>(c.k > 0 ? c.k : c.context - c.rows + r + 1);
  }
  const auto batch = static_cast<double>(c.batch);
  const double flops =
      batch * pairs * static_cast<double>(c.heads) * 2.0 * (p.qk_dim() + p.v_dim());
  const double keys = c.k > 0 ? pairs : static_cast<double>(c.context);
  LatentBenchRow row;
  row.name = c.name;
  row.layout = std::string(layout.name());
  row.batch = c.batch;
  row.rows = c.rows;
  row.heads = c.heads;
  row.context = c.context;
  row.k = c.k;
  row.seconds = seconds;
  row.gflops = flops / seconds / 1e9;
  row.gbps = batch * keys * layout.bytes_per_token() / seconds / 1e9;
  row.peak_gflops = peak_gflops;
  row.read_gbps = read_gbps;
  row.share = std::max(row.gflops / peak_gflops, row.gbps / read_gbps);
  return row;
}

}  // namespace lathe
