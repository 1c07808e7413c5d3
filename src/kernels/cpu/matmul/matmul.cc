// Cuts a list of GEMMs into slices and runs them on the threads.
#include "kernels/cpu/matmul/matmul.h"

#include <algorithm>
#include <vector>

#include "base/integers.h"
#include "base/rows.h"
#include "kernels/cpu/common/for_rows.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/matmul/matmul_int8.h"
#include "kernels/cpu/matmul/matmul_rounded.h"
#include "kernels/cpu/matmul/matmul_slice.h"

namespace lathe {
namespace {

// Most outputs of a task. More outputs share the packing of x; fewer balance better over threads.
constexpr std::int64_t kMostOuts = 256;
// Most rows of a task in f32: a depth block of its x (512 KiB) fits the second-level cache.
constexpr std::int64_t kMostRows = 128;
// Most rows of a task by bf16 pairs: there the second-level cache holds the weights of a depth
// block (of outputs with the same scales), and rows share them.
constexpr std::int64_t kMostPairRows = 512;
constexpr std::int64_t kMostPairOuts = kWeightBlock;
// Weights per task if few rows stream them. Smaller tasks would pack x more often.
constexpr std::int64_t kTaskBytes = 256 << 10;
constexpr std::int64_t kTaskBytesPacked = 1 << 20;
// With fewer multiply-adds, starting other threads costs more than it saves.
constexpr std::int64_t kWorthThreads = 1 << 17;

// How a GEMM is cut: blocks of rows of x, and within a block slices of outputs.
struct ProductBlocks {
  std::int64_t rows, outs, row_blocks, slices;

  // most_outs: kMostOuts, or less for a better balance.
  ProductBlocks(const Product& p, bool by_pairs, std::int64_t most_outs) {
    const std::int64_t m = p.x.rows;
    const std::int64_t most_rows =
        by_pairs ? std::max(kMostRows, kMostPairRows * most_outs / kMostOuts) : kMostRows;
    const std::int64_t tile = by_pairs ? kPairTileRows : 3;
    rows = m == 0 ? 1 : round_up(ceil_div(m, ceil_div(m, most_rows)), tile);
    row_blocks = ceil_div(m, rows);
    const std::int64_t streamed = (m > 1 ? kTaskBytesPacked : kTaskBytes) /
                                  std::max<std::int64_t>(1, bytes_of(p.w.dtype, p.w.cols));
    if (m <= kMostFewRows) {
      outs = std::clamp(round_up(streamed, kPanelOuts), kPanelOuts, most_outs);
    } else {
      outs = by_pairs ? std::min(kMostPairOuts, most_outs) : most_outs;
    }
    slices = ceil_div(p.w.rows, outs);
  }
  std::int64_t tasks() const { return row_blocks * slices; }
  MatmulSlice slice(const Product& p, std::int64_t task) const {
    const std::int64_t row = task / slices * rows;
    const std::int64_t out = task % slices * outs;
    return {&p, row, std::min(rows, p.x.rows - row), out, std::min(outs, p.w.rows - out)};
  }
};

// The tasks of a list of GEMMs, which all threads share.
class MatmulTasks {
 public:
  MatmulTasks(Arena& arena, MatmulPrecision precision, std::span<const Product> products,
              int workers)
      : precision_(precision),
        products_(products),
        ends_(arena.take_array<std::int64_t>(std::ssize(products))) {
    for (;; most_outs_ /= 2) {
      cut();
      if (workers == 1 || count() >= 8 * workers || most_outs_ == kPanelOuts) break;
    }
  }
  std::int64_t count() const { return products_.empty() ? 0 : ends_[products_.size() - 1]; }
  // Floats of scratch that a task may need.
  std::int64_t scratch() const { return scratch_; }
  MatmulSlice slice(std::int64_t task) const {
    const std::int64_t i = std::upper_bound(ends_, ends_ + products_.size(), task) - ends_;
    const Product& p = products_[static_cast<std::size_t>(i)];
    return cut_of(p).slice(p, task - (i == 0 ? 0 : ends_[i - 1]));
  }
  // A rank may have no columns of a weight: the loop over pairs would then write nothing.
  bool by_pairs(const Product& p) const {
    return precision_ == MatmulPrecision::bf16 && is_bf16_dot_weight(p.w.dtype) && p.w.cols > 0;
  }

 private:
  ProductBlocks cut_of(const Product& p) const { return {p, by_pairs(p), most_outs_}; }
  void cut() {
    std::int64_t tasks = 0, floats = 0;
    for (std::size_t i = 0; i < products_.size(); ++i) {
      const Product& p = products_[i];
      const ProductBlocks cut = cut_of(p);
      tasks += cut.tasks();
      ends_[i] = tasks;
      if (cut.tasks() == 0) continue;
      const auto need = by_pairs(p) ? matmul_slice_bf16_scratch : matmul_slice_scratch;
      // The last block may need more than the first: with few rows, all of their x is packed.
      for (const std::int64_t task : {std::int64_t{0}, cut.tasks() - 1}) {
        floats = std::max(floats, need(cut.slice(p, task).rows, cut.outs, p.w.cols));
      }
    }
    scratch_ = round_up(floats, 16);
  }

  MatmulPrecision precision_;
  std::span<const Product> products_;
  std::int64_t* ends_;  // [products] tasks of GEMMs 0 to i
  std::int64_t most_outs_ = kMostOuts;
  std::int64_t scratch_ = 0;
};

// Whether a weight's columns are in another order than x's.
bool reorders(const Product& p) { return p.w.columns != nullptr; }

// x with its columns in the weight's order.
RowsView reordered(const Execution& execution, Arena& arena, const Product& p) {
  const MutableRowsView out = alloc_rows(arena, p.x.rows, p.x.cols);
  for_rows(execution, p.x.rows, p.x.cols, [&](std::int64_t row) {
    const auto* from = reinterpret_cast<const float*>(p.x.row(row));
    auto* to = reinterpret_cast<float*>(out.row(row));
    for (std::int64_t k = 0; k < p.x.cols; ++k) to[k] = from[p.w.columns[k]];
  });
  return constant(out);
}

// Weights of int4 and e4m3 by 8-bit integers and the others by bf16 pairs.
void matmul_int8(const Execution& execution, Arena& arena, std::span<const Product> products) {
  const auto others = cpu_has_bf16_dot() ? MatmulPrecision::bf16 : MatmulPrecision::f32;
  const Arena::Scope scope(arena);
  const auto count = static_cast<std::int64_t>(products.size());
  auto* all = arena.take_array<Product>(count);  // with 8-bit integers, then the others
  Product* begin = all;
  Product* end = all + count;
  for (const Product& p : products) {
    // An e4m3 row of one block, such as a head's absorbed projection, is rounded for one sum alone:
    // that takes longer than its dot products by bf16 pairs.
    const std::int64_t least = p.w.dtype == DType::e4m3 ? kWeightBlock + 1 : 1;
    const bool by_integers = is_int8_dot_weight(p.w.dtype) && p.w.cols >= least;
    *(by_integers ? begin++ : --end) = p;
  }
  if (begin != all) cpu_matmul_int8(execution, arena, {all, begin});
  if (begin != all + count) cpu_matmul(execution, arena, others, {begin, all + count});
}

}  // namespace

void cpu_matmul(const Execution& execution, Arena& arena, MatmulPrecision precision,
                std::span<const Product> products) {
  if (rounds_to_e4m3(precision, DType::e4m3)) {
    return cpu_matmul_rounded(execution, arena, precision, products);
  }
  if (std::ranges::any_of(products, reorders)) {
    const Arena::Scope scope(arena);
    std::vector<Product> ordered(products.begin(), products.end());
    for (Product& p : ordered) {
      if (!reorders(p)) continue;
      p.x = reordered(execution, arena, p);
      p.w.columns = nullptr;
    }
    return cpu_matmul(execution, arena, precision, ordered);
  }
  if (precision == MatmulPrecision::int8) return matmul_int8(execution, arena, products);
  ThreadPool* pool = execution.threads;
  std::int64_t work = 0;
  for (const Product& p : products) work += p.x.rows * p.w.rows * p.w.cols;
  const int workers = pool == nullptr || work < kWorthThreads ? 1 : pool->threads();

  const Arena::Scope scope(arena);
  const MatmulTasks tasks(arena, precision, products, workers);
  auto* scratch = arena.take_array<float>(tasks.scratch() * workers);
  auto body = [&](std::int64_t task, int worker) {
    MatmulSlice slice = tasks.slice(task);
    const Product& p = *slice.product;
    const bool pairwise = tasks.by_pairs(p);
    if (pairwise && task + workers < tasks.count()) {
      const MatmulSlice next = tasks.slice(task + workers);
      const WeightView& w = next.product->w;
      if (w.dtype == p.w.dtype && (w.mx_scales == nullptr) == (p.w.mx_scales == nullptr)) {
        slice.next = &w;
        slice.next_out = next.out;
      }
    }
    const auto compute = pairwise ? matmul_slice_bf16 : matmul_slice;
    compute(slice, scratch + tasks.scratch() * worker);
  };
  if (workers == 1) {
    for (std::int64_t t = 0; t < tasks.count(); ++t) body(t, 0);
  } else {
    pool->run(tasks.count(), body);
  }
}

}  // namespace lathe
