#include "kernels/cuda/operators/held_operators.h"

#include <fmt/format.h>

#include <utility>

#include "base/integers.h"
#include "base/rows.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kCodeBytes = kShortNormRows * kNormAfterColumns;
constexpr std::int64_t kScaleBytes = kShortNormRows * (kNormAfterColumns / 128) * 4;
static_assert(kCodeBytes + kScaleBytes == kNormCodeBytes);  // as the plan of memory counts it

// Bytes that a launch reads or writes.
struct Bytes {
  const void* begin;
  const void* end;
};
template <class T>
Bytes bytes_of(const T* first, std::int64_t elements) {
  return {first, first + elements};
}
Bytes bytes_of(const MutableRowsView& rows) {
  return {rows.data, rows.data + lathe::bytes_of(rows.dtype, rows.rows * rows.row_stride)};
}
bool overlap(const Bytes& a, const Bytes& b) {
  return std::less<>()(a.begin, b.end) && std::less<>()(b.begin, a.end);
}

// Whether `norm` norms f32 rows at `out`, of whole words.
bool norms(const RmsNorm& norm, const float* out, std::int64_t stride, std::int64_t rows,
           std::int64_t cols) {
  const auto words = [](const void* at, std::int64_t elements) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0 && elements % 4 == 0;
  };
  return reinterpret_cast<const float*>(norm.x.data) == out && norm.x.dtype == DType::f32 &&
         norm.x.rows == rows && norm.x.cols == cols && norm.x.row_stride == stride &&
         norm.heads == 1 && !norm.add && !norm.weight.empty() && norm.out.data != norm.x.data &&
         cols <= kNormAfterColumns && words(norm.weight.data(), cols) && words(out, stride) &&
         words(norm.out.data, norm.out.row_stride) &&
         (norm.out.dtype == DType::f32 || norm.out.dtype == DType::bf16);
}
NormAfter norm_after(const RmsNorm& op) {
  return {.weight = op.weight.data(), .h = device_rows(op.out), .eps = op.eps};
}

// Whether the norm's result may be written while the operator's blocks still read.
bool may_join(const CombineExperts& p, const RmsNorm& norm) {
  const Bytes h = bytes_of(norm.out);
  const std::int64_t choices = p.rows * p.top_k;
  return norms(norm, p.out, p.out_stride, p.rows, p.cols) && p.made.dtype == DType::bf16 &&
         !overlap(h,
                  bytes_of(reinterpret_cast<const bf16*>(p.made.data), choices * p.made.stride)) &&
         !overlap(h, bytes_of(p.weights, choices)) && !overlap(h, bytes_of(p.places, choices)) &&
         !overlap(h, bytes_of(p.shared, p.shared_parts * p.rows * p.cols));
}
bool may_join(const HyperMixParams& p, const RmsNorm& norm) {
  const Bytes h = bytes_of(norm.out);
  return norms(norm, p.out, p.out_stride, p.rows, p.n) &&
         !overlap(h, bytes_of(p.x, p.rows * p.x_stride)) &&
         !overlap(h, bytes_of(p.product, p.rows * p.product_stride)) &&
         !overlap(h, bytes_of(p.mix, p.rows * p.mix_stride)) &&
         !overlap(h, bytes_of(p.sum.parts, p.sum.parts == nullptr ? 0 : narrow_parts(p.sum)));
}
bool may_join(const HyperAddParams&, const RmsNorm&) { return false; }
bool may_join(const NarrowGemm&, const RmsNorm&) { return false; }
bool may_join(const NormParams&, const RmsNorm&) { return false; }
bool may_join(const CompressParams&, const RmsNorm&) { return false; }
bool may_join(std::monostate, const RmsNorm&) { return false; }

// Whether blocks may multiply what they have added while others still read.
bool may_join(const HyperAddParams& add, const NarrowGemm& p) {
  const Bytes parts = bytes_of(p.parts, narrow_parts(p));
  return add.x == p.x && add.x_stride == p.x_stride && add.rows == p.rows &&
         kHyperStreams * add.n == p.cols && add.n % kNarrowSlice == 0 &&
         p.rows <= kHyperSliceRows && !overlap(parts, bytes_of(add.y, add.rows * add.y_stride)) &&
         !overlap(parts, bytes_of(add.mix, add.rows * add.mix_stride));
}
// Whether the mix may be written while other rows' blocks still add slices.
bool may_join(const NarrowGemm& sum, const HyperMixParams& p) {
  const Bytes parts = bytes_of(sum.parts, narrow_parts(sum));
  return sum.out == p.product && sum.out_stride == p.product_stride && sum.rows == p.rows &&
         sum.outputs == p.columns && !overlap(parts, bytes_of(p.out, p.rows * p.out_stride)) &&
         !overlap(parts, bytes_of(p.mix, p.rows * p.mix_stride)) &&
         !overlap(parts, bytes_of(sum.out, sum.rows * sum.out_stride));
}

cudaError_t start(const CombineExperts& p, cudaStream_t stream) {
  return launch_combine_experts(p, stream);
}
cudaError_t start(const HyperAddParams& p, cudaStream_t stream) {
  return launch_hyper_add(p, stream);
}
cudaError_t start(const NarrowGemm& p, cudaStream_t stream) { return launch_narrow_sum(p, stream); }
cudaError_t start(const HyperMixParams& p, cudaStream_t stream) {
  return launch_hyper_mix(p, stream);
}
cudaError_t start(const NormParams& p, cudaStream_t stream) { return launch_norm(p, stream); }
cudaError_t start(const CompressParams& p, cudaStream_t stream) {
  return launch_compress(p, stream);
}
cudaError_t start(std::monostate, cudaStream_t) { return cudaSuccess; }

}  // namespace

Result<void> HeldOperators::launch(cudaStream_t stream) {
  const auto held = std::exchange(held_, std::monostate());
  normed_ = {};
  const cudaError_t status = std::visit([&](const auto& p) { return start(p, stream); }, held);
  return launch_result(status,
                       {"held_operators", "rows of a step", std::source_location::current()});
}

Result<void> HeldOperators::hold_mix(HyperMixParams p, cudaStream_t stream) {
  const auto* sum = std::get_if<NarrowGemm>(&held_);
  if (sum != nullptr && may_join(*sum, p)) {
    p.sum = *sum;
  } else if (auto ok = launch(stream); !ok) {
    return ok;
  }
  held_ = p;
  return {};
}

Result<void> HeldOperators::hold_sum(const NarrowGemm& p, cudaStream_t stream) {
  const auto* add = std::get_if<HyperAddParams>(&held_);
  cudaError_t status;
  if (add != nullptr && may_join(*add, p)) {
    status = launch_hyper_add_slices(*add, p, stream);
  } else {
    if (auto ok = launch(stream); !ok) return ok;
    status = launch_narrow_slices(p, stream);
  }
  held_ = p;
  if (status != cudaSuccess) held_ = std::monostate();
  return launch_result(status, {"narrow_gemm", fmt::format("{} rows of {}", p.rows, p.cols),
                                std::source_location::current()});
}

Result<void> HeldOperators::hold_compress(const CompressParams& p, cudaStream_t stream) {
  const auto* entries = std::get_if<CompressParams>(&held_);
  if (entries == nullptr || !compress_pairs(*entries, p)) {
    auto ok = launch(stream);
    if (ok) held_ = p;
    return ok;
  }
  const cudaError_t status = launch_compress_pair(*entries, p, stream);
  held_ = std::monostate();
  return launch_result(status, {"compress", fmt::format("{} rows of {}", p.rows, p.dim),
                                std::source_location::current()});
}

// Adds the norm to what is held, if that computes op.x.
bool HeldOperators::join(const RmsNorm& op) {
  if (normed_.data != nullptr) return false;
  if (!std::visit([&](const auto& p) { return may_join(p, op); }, held_)) return false;
  std::visit(
      [&](auto& p) {
        if constexpr (requires { p.norm.h; }) p.norm = norm_after(op);
      },
      held_);
  return true;
}

Result<bool> HeldOperators::launch_with(const RmsNorm& op, cudaStream_t stream) {
  if (!join(op)) return false;
  if (auto ok = launch(stream); !ok) return ok.error();
  return true;
}

Result<void> HeldOperators::hold_norm(const RmsNorm& op, const NormParams& params,
                                      cudaStream_t stream) {
  if (!join(op)) {
    if (auto ok = launch(stream); !ok) return ok;
    held_ = params;
  }
  if (!norm_takes_codes(params)) return launch(stream);
  normed_ = constant(op.out);
  return {};
}

Result<void> HeldOperators::reserve() {
  if (codes_ != nullptr) return {};
  auto bytes = allocate_device_bytes(kCodeBytes + kScaleBytes);
  if (!bytes) return bytes.error();
  codes_ = std::move(*bytes);
  return {};
}

Result<std::optional<QuantizedX>> HeldOperators::launch_with_codes(const RowsView& x,
                                                                   bool power_of_two,
                                                                   cudaStream_t stream) {
  const bool same = normed_.data != nullptr && x.data == normed_.data && x.rows == normed_.rows &&
                    x.cols == normed_.cols && x.row_stride == normed_.row_stride &&
                    x.dtype == DType::bf16;
  if (!same || codes_ == nullptr) return std::optional<QuantizedX>();
  const NormCodes codes{reinterpret_cast<std::uint8_t*>(codes_.get()),
                        reinterpret_cast<float*>(codes_.get() + kCodeBytes), round_up(x.rows, 4),
                        power_of_two};
  std::visit(
      [&](auto& p) {
        if constexpr (requires { p.norm.codes; }) p.norm.codes = codes;
        if constexpr (requires { p.codes; }) p.codes = codes;
      },
      held_);
  if (auto ok = launch(stream); !ok) return ok.error();
  const RowsView view{codes_.get(), DType::e4m3, x.rows, x.cols, x.cols};
  return std::optional(QuantizedX{view, codes.scales, codes.scale_stride});
}

}  // namespace lathe::cuda
