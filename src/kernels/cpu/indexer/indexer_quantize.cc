#include "kernels/cpu/indexer/indexer_quantize.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/cpu/common/tasks.h"
#include "layout/codec/codec.h"
#include "layout/hadamard.h"

namespace lathe {
namespace {

Error bad(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered), ""};
}

bool is_float(DType t) { return t == DType::f32 || t == DType::bf16; }

// Reads elements first .. first + n - 1 of a row as f32.
void read(const std::byte* row, DType dtype, std::int64_t first, std::int64_t n, float* out) {
  if (dtype == DType::f32) {
    std::memcpy(out, row + 4 * first, static_cast<std::size_t>(4 * n));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    bf16 x;
    std::memcpy(&x, row + 2 * (first + i), 2);
    out[i] = to_f32(x);
  }
}

Result<void> check(const IndexQuantize& a) {
  if (a.heads < 1 || a.heads > 1024) return bad("heads", "1 to 1024", fmt::format("{}", a.heads));
  if (a.policy != ScalePolicy::pow2_ceil && a.policy != ScalePolicy::raw_f32) {
    return bad("policy", "pow2_ceil or raw_f32", std::string(name(a.policy)));
  }
  if (auto l = CacheLayout::make(LayoutKind::index_fp8, {.dim = a.dim}, a.policy); !l) {
    return l.error();
  }
  if (a.hadamard && !std::has_single_bit(static_cast<unsigned>(a.dim))) {
    return bad("dim", "a power of two, for the Hadamard rotation", fmt::format("{}", a.dim));
  }
  for (const auto& [field, view] : {std::pair{"q", &a.q}, std::pair{"weights", &a.weights}}) {
    if (view->rows < 0 || view->row_stride < view->cols ||
        (view->data == nullptr && view->rows > 0)) {
      return bad(field, "rows of a stride no smaller than their columns",
                 fmt::format("{} rows of {}, stride {}{}", view->rows, view->cols, view->row_stride,
                             view->data == nullptr ? ", a null pointer" : ""));
    }
  }
  const std::int64_t heads = a.q.rows * a.heads;
  if (!is_float(a.q.dtype) || a.q.cols != std::int64_t{a.heads} * a.dim) {
    return bad("q", fmt::format("f32 or bf16 of {} columns", a.heads * a.dim),
               fmt::format("{} of {}", name(a.q.dtype), a.q.cols));
  }
  if (!is_float(a.weights.dtype) || a.weights.cols != a.heads || a.weights.rows != a.q.rows) {
    return bad("weights", fmt::format("f32 or bf16 [{}, {}]", a.q.rows, a.heads),
               fmt::format("{} [{}, {}]", name(a.weights.dtype), a.weights.rows, a.weights.cols));
  }
  if (std::ssize(a.codes) != heads * a.dim) {
    return bad("codes", fmt::format("{}", heads * a.dim), fmt::format("{}", a.codes.size()));
  }
  if (std::ssize(a.folded) != heads) {
    return bad("folded", fmt::format("{}", heads), fmt::format("{}", a.folded.size()));
  }
  if (!a.scales.empty() && std::ssize(a.scales) != heads) {
    return bad("scales", fmt::format("{}, or none", heads), fmt::format("{}", a.scales.size()));
  }
  return {};
}

// One worker's scratch: a row in f32, its weights, a page for the codec, and slots 0 .. heads - 1.
struct RowMemory {
  float* q;
  float* weights;
  std::byte* page;
  Slot* slots;

  static std::int64_t bytes(const IndexQuantize& a) {
    const std::int64_t n = std::int64_t{a.heads} * a.dim;
    return whole_lines(4 * n + n + 12 * std::int64_t{a.heads});
  }
  RowMemory(const IndexQuantize& a, std::byte* at) {
    const std::int64_t n = std::int64_t{a.heads} * a.dim;
    q = reinterpret_cast<float*>(at);
    weights = q + n;
    slots = reinterpret_cast<Slot*>(weights + a.heads);
    page = at + 4 * n + 8 * std::int64_t{a.heads};
  }
};

void quantize_row(const IndexQuantize& a, std::int64_t t, const RowMemory& m) {
  const std::int64_t n = std::int64_t{a.heads} * a.dim;
  read(a.q.row(t), a.q.dtype, 0, n, m.q);
  for (std::int64_t h = 0; a.hadamard && h < a.heads; ++h) hadamard(m.q + h * a.dim, a.dim);
  // Encode the heads as the tokens of one page (all codes, then all scales): there is only one
  // definition of quantisation, the codec.
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = a.dim}, a.policy);
  const PoolView page(m.page, layout, a.heads, 1);
  const RowsView rows{reinterpret_cast<const std::byte*>(m.q), DType::f32, a.heads, a.dim, a.dim};
  for (std::int32_t h = 0; h < a.heads; ++h) m.slots[h] = Slot(h);
  const auto done = encode_rows(rows, {m.slots, static_cast<std::size_t>(a.heads)}, page);
  LATHE_CHECK(done.ok(), "the page fits the row");
  std::memcpy(a.codes.data() + t * n, m.page, static_cast<std::size_t>(n));

  read(a.weights.row(t), a.weights.dtype, 0, a.heads, m.weights);
  const float constant =
      static_cast<float>(1 / std::sqrt(static_cast<double>(a.heads) * static_cast<double>(a.dim)));
  for (std::int64_t h = 0; h < a.heads; ++h) {
    float scale;
    std::memcpy(&scale, m.page + n + 4 * h, 4);
    const auto at = static_cast<std::size_t>(t * a.heads + h);
    a.folded[at] = m.weights[h] * constant * scale;
    if (!a.scales.empty()) a.scales[at] = scale;
  }
}

}  // namespace

Result<void> index_quantize_q(const IndexQuantize& args) {
  if (auto ok = check(args); !ok) return ok;
  Scratch own;
  Scratch& scratch = args.execution.scratch != nullptr ? *args.execution.scratch : own;
  const std::int64_t each = RowMemory::bytes(args);
  std::byte* memory = scratch.take(each * thread_count(args.execution));
  run_tasks(args.execution, args.q.rows, [&](std::int64_t t, int worker) {
    quantize_row(args, t, RowMemory(args, memory + each * worker));
  });
  return {};
}

Result<void> hadamard_rows(const MutableRowsView& rows, std::int32_t dim) {
  if (!is_float(rows.dtype)) return bad("rows.dtype", "f32 or bf16", std::string(name(rows.dtype)));
  if (dim < 1 || !std::has_single_bit(static_cast<unsigned>(dim)) || dim > 4096 ||
      rows.cols % dim != 0) {
    return bad("dim", fmt::format("a power of two up to 4096 that divides {}", rows.cols),
               fmt::format("{}", dim));
  }
  float x[4096];
  for (std::int64_t t = 0; t < rows.rows; ++t) {
    for (std::int64_t first = 0; first < rows.cols; first += dim) {
      read(rows.row(t), rows.dtype, first, dim, x);
      hadamard(x, dim);
      std::byte* to = rows.row(t) + bytes_of(rows.dtype, first);
      if (rows.dtype == DType::f32) {
        std::memcpy(to, x, static_cast<std::size_t>(4 * dim));
        continue;
      }
      for (std::int32_t i = 0; i < dim; ++i) {
        const bf16 rounded = to_bf16(x[i]);
        std::memcpy(to + 2 * i, &rounded, 2);
      }
    }
  }
  return {};
}

}  // namespace lathe
