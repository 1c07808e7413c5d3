#include "tools/bench/kernels/bench_attention_gqa.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/check.h"
#include "base/float_formats.h"
#include "kernels/cpu/grouped_query/gqa_attend.h"
#include "kernels/cpu/ragged/ragged_attend.h"

namespace lathe {
namespace {

constexpr std::int32_t kGqaPageSize = 64;

double seconds_of_call(AttendFn attend, const AttendArgs& args) {
  const auto start = std::chrono::steady_clock::now();
  const Result<void> done = attend(args);
  const auto end = std::chrono::steady_clock::now();
  LATHE_CHECK(done.ok(), done.error().message());
  return std::chrono::duration<double>(end - start).count();
}

double median_seconds(AttendFn attend, const AttendArgs& args, const AttentionBenchOptions& o) {
  seconds_of_call(attend, args);  // warms scratch and pages
  std::vector<double> times;
  double total = 0;
  for (int i = 0; i < o.repeats && (i < 3 || total < o.most_seconds); ++i) {
    times.push_back(seconds_of_call(attend, args));
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<float> normal_numbers(std::int64_t n, float scale) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> pattern(65521);  // prime: no row repeats at once
  for (float& x : pattern) x = scale * normal(rng);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = pattern[i % pattern.size()];
  return out;
}

// Requests of equal shape on shuffled pages of ordinary numbers.
struct Requests {
  CacheLayout layout;
  std::int64_t batch, rows, context;
  std::vector<std::byte> bytes;
  std::vector<PageId> table;
  std::vector<std::int32_t> q_indptr, kv_lens;
  std::vector<float> q, out, lse;
  Scratch scratch;

  Requests(const CacheLayout& l, std::int64_t batch_size, std::int64_t q_rows, std::int64_t keys)
      : layout(l), batch(batch_size), rows(q_rows), context(keys) {
    const std::int64_t width = (context + kGqaPageSize - 1) / kGqaPageSize;
    const std::int64_t pages = batch * width;
    bytes.resize(static_cast<std::size_t>(pages * layout.page_stride(kGqaPageSize)));
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    if (layout.value_dtype() == DType::bf16) {
      std::vector<bf16> pattern(65521);
      for (bf16& x : pattern) x = to_bf16(normal(rng));
      fill(pattern.data(), 2 * pattern.size());
    } else {
      std::vector<e4m3> pattern(65521);
      for (e4m3& x : pattern) x = to_e4m3(normal(rng));
      fill(pattern.data(), pattern.size());
    }
    for (std::int32_t i = 0; i < pages; ++i) table.emplace_back(i);
    std::shuffle(table.begin(), table.end(), rng);
    for (std::int64_t r = 0; r <= batch; ++r)
      q_indptr.push_back(static_cast<std::int32_t>(r * rows));
    kv_lens.assign(static_cast<std::size_t>(batch), static_cast<std::int32_t>(context));
  }
  void fill(const void* pattern, std::size_t n) {
    for (std::size_t i = 0; i < bytes.size(); i += n) {
      std::memcpy(bytes.data() + i, pattern, std::min(n, bytes.size() - i));
    }
  }
  AttendArgs args(const AttentionProblem& p, std::int64_t q_width, std::int64_t out_width) {
    const std::int64_t count = batch * rows;
    q = normal_numbers(count * p.heads * q_width, 1);
    out.resize(static_cast<std::size_t>(count * p.heads * out_width));
    lse.resize(static_cast<std::size_t>(count * p.heads));
    const auto view = [&](std::vector<float>& data, std::int64_t cols) {
      return MutableRowsView{reinterpret_cast<std::byte*>(data.data()), DType::f32, count, cols,
                             cols};
    };
    AttendArgs a;
    a.problem = p;
    const MutableRowsView q_view = view(q, p.heads * q_width);
    a.q = {q_view.data, q_view.dtype, q_view.rows, q_view.cols, q_view.row_stride};
    a.out = view(out, p.heads * out_width);
    a.lse = view(lse, p.heads);
    a.q_indptr = q_indptr;
    a.kv_lens = kv_lens;
    a.main.pool = ConstPoolView(bytes.data(), layout, kGqaPageSize, std::ssize(table));
    a.main.page_table = table;
    a.main.table_width = std::ssize(table) / batch;
    a.execution.scratch = &scratch;
    return a;
  }
  // Keys that rows see, over all requests.
  double seen() const {
    const auto n = static_cast<double>(rows);
    return static_cast<double>(batch) * n * (static_cast<double>(context) - (n - 1) / 2);
  }
};

void measure(const char* name, AttendFn attend, Requests& requests, AttendArgs args, double flops,
             std::int32_t kv_heads, const AttentionBenchOptions& options,
             std::vector<AttentionBenchRow>& rows) {
  const double gigabytes =
      static_cast<double>(requests.batch * requests.context * requests.layout.bytes_per_token()) /
      1e9;
  for (const int count : options.threads) {
    ThreadPool pool(count);
    args.execution.threads = &pool;
    const double seconds = median_seconds(attend, args, options);
    rows.push_back({name, std::string(requests.layout.name()), requests.batch, requests.rows,
                    args.problem.heads, kv_heads, requests.context, pool.threads(), seconds,
                    flops / seconds / 1e9, gigabytes / seconds});
  }
}

}  // namespace

std::vector<AttentionBenchRow> bench_gqa(const AttentionBenchOptions& options) {
  struct Shape {
    const char* name;
    std::int64_t batch, rows, context;
  };
  constexpr Shape kShapes[] = {{"gqa decode", 1, 1, 32768},
                               {"gqa decode", 8, 1, 8192},
                               {"gqa verify", 1, 4, 32768},
                               {"gqa extend", 1, 2048, 2048}};
  std::vector<AttentionBenchRow> rows;
  const AttentionProblem p = gqa_problem();
  for (const LayoutKind kind : {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8}) {
    for (const Shape& s : kShapes) {
      Requests requests(CacheLayout(kind), s.batch, s.rows, s.context);
      const double flops = requests.seen() * 2 * p.heads * (p.head_dim + p.v_head_dim);
      measure(s.name, cpu_attend_gqa, requests, requests.args(p, p.head_dim, p.v_head_dim), flops,
              p.kv_heads, options, rows);
    }
  }
  return rows;
}

std::vector<AttentionBenchRow> bench_ragged(const AttentionBenchOptions& options) {
  std::vector<AttentionBenchRow> rows;
  const AttentionProblem p = deepseek_v3_problem(16);
  const std::int64_t weights = std::int64_t{p.heads} * p.nope;
  const float scale = 1 / std::sqrt(static_cast<float>(p.nope));
  const std::vector<float> w_uk = normal_numbers(weights * p.qk_nope_head, scale);
  const std::vector<float> w_uv = normal_numbers(weights * p.v_head, scale);
  for (const std::int64_t context : {2048, 8192}) {
    Requests requests(CacheLayout(LayoutKind::mla_bf16), 1, 2048, context);
    const std::int64_t q_width = p.qk_nope_head + p.rope;
    AttendArgs args = requests.args(p, q_width, p.v_head);
    args.expansion = {w_uk, w_uv};
    const double attention =
        requests.seen() * 2 * static_cast<double>(p.heads * (q_width + p.v_head));
    const double expansion = 2 * static_cast<double>(context) * static_cast<double>(weights) *
                             (p.qk_nope_head + p.v_head);
    measure("ragged extend", cpu_attend_ragged, requests, args, attention + expansion, 1, options,
            rows);
  }
  return rows;
}

}  // namespace lathe
