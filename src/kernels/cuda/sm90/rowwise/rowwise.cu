// Launches the row-wise kernels: embedding, norms, activations, copies, the search for NaN and Inf.
#include "kernels/cuda/sm90/rowwise/rowwise.cuh"

#include <algorithm>

#include "base/integers.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/norm_after_launch.cuh"
#include "kernels/cuda/sm90/rowwise/indexer_rows.cuh"
#include "kernels/cuda/sm90/rowwise/latent_rows.cuh"
#include "kernels/cuda/sm90/rowwise/narrow_norm.cuh"
#include "kernels/cuda/sm90/rowwise/norm.cuh"
#include "kernels/cuda/sm90/rowwise/qkv.cuh"
#include "kernels/cuda/sm90/rowwise/short_norm.cuh"
#include "kernels/cuda/sm90/rowwise/whole_rows.cuh"
#include "kernels/cuda/sm90/rowwise/wide_norm.cuh"

namespace lathe::cuda {
namespace {

constexpr int kGatherRows = 8;  // per block, if there are at least kManyWords words to copy
constexpr std::int64_t kManyWords = 132 * 2048;     // a word for every thread of an H200
constexpr std::int64_t kL2Words = 50 << 16;         // what L2 holds
constexpr std::int64_t kNormClusterColumns = 4096;  // more are a cluster's work

// A grid of rows x blocks of columns.
LaunchShape over_columns(std::int64_t rows, std::int64_t cols) {
  return {.grid = dim3(static_cast<unsigned>(rows), blocks_for(cols, kRowThreads)),
          .block = kRowThreads,
          .early = true};
}
LaunchShape over_rows(std::int64_t rows) {
  return {.grid = static_cast<unsigned>(rows), .block = kRowThreads, .early = true};
}

// 16-byte words per row; 0 if rows cannot be copied in such words.
std::int64_t words_of_row(const GatherRowsParams& p) {
  const std::int64_t bits = bits_of(p.x.dtype);
  const bool whole = p.x.dtype == p.out.dtype && p.cols * bits % 128 == 0 &&
                     p.x.stride * bits % 128 == 0 && p.out.stride * bits % 128 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.x.data) % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.out.data) % 16 == 0;
  return whole ? p.cols * bits / 128 : 0;
}

// Whether rows are f32 or bf16 and every aligned group of kWide columns consists of whole 16-byte
// words.
template <class Rows>
bool wide(const Rows& rows) {
  return (rows.dtype == DType::f32 || rows.dtype == DType::bf16) &&
         rows.stride * bits_of(rows.dtype) % 128 == 0 &&
         reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0;
}

// Whether short_norm_kernel, but for `add`, and wide_norm_kernel can norm the rows.
bool has_words(const NormParams& p) {
  const auto words = [](const void* at, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0 && stride % 4 == 0;
  };
  return p.bias == nullptr && p.weight != nullptr && p.heads == 1 && p.cols <= kNormAfterColumns &&
         p.x.dtype == DType::f32 && (p.out.dtype == DType::f32 || p.out.dtype == DType::bf16) &&
         words(p.weight, p.cols) && words(p.x.data, p.x.stride) && words(p.out.data, p.out.stride);
}
bool is_short(const NormParams& p) { return has_words(p) && !p.add && p.rows <= kShortNormRows; }

cudaError_t launch_wide_norm(const NormParams& p, cudaStream_t stream) {
  const LaunchShape shape{
      .grid = static_cast<unsigned>(p.rows), .block = kNormThreads, .early = true};
  if (p.cols <= 2 * kWideNormColumns) return launch_kernel(wide_norm_kernel<2>, shape, stream, p);
  if (p.cols <= 4 * kWideNormColumns) return launch_kernel(wide_norm_kernel<4>, shape, stream, p);
  if (p.cols <= 8 * kWideNormColumns) return launch_kernel(wide_norm_kernel<8>, shape, stream, p);
  return launch_kernel(wide_norm_kernel<16>, shape, stream, p);
}

}  // namespace

cudaError_t launch_embed(const EmbedParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const DeviceRows table{p.table, p.cols, p.dtype};
  if (p.cols % kWide == 0 && wide(table) && wide(p.out)) {
    return launch_kernel(embed_wide_kernel, over_columns(p.rows, p.cols / kWide), stream, p);
  }
  return launch_kernel(embed_kernel, over_columns(p.rows, p.cols), stream, p);
}
cudaError_t launch_gather_rows(const GatherRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  GatherRowsParams q = p;
  q.words = words_of_row(p);
  if (q.words == 0) {
    return launch_kernel(gather_rows_kernel, over_columns(p.rows, p.cols), stream, q);
  }
  // What L2 holds is read from there by the GEMM behind this.
  q.once = p.rows * q.words > kL2Words;
  // A block of several rows has more bytes in flight; with few rows it would leave SMs idle.
  if (p.rows * q.words < kManyWords) {
    return launch_kernel(gather_words_kernel<1>, over_columns(p.rows, q.words), stream, q);
  }
  return launch_kernel(gather_words_kernel<kGatherRows>,
                       over_columns(ceil_div(p.rows, kGatherRows), q.words), stream, q);
}
bool norm_takes_codes(const NormParams& p) {
  return is_short(p) && p.cols > kNarrowNorm && p.cols % 128 == 0 && p.out.dtype == DType::bf16;
}
cudaError_t launch_norm(const NormParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  // Chosen by the width alone, because that decides the order of sums.
  if (p.cols <= kNarrowNorm && p.rows * p.heads <= INT32_MAX) {
    NormParams q = p;
    const auto words = [&](std::uintptr_t at, std::int64_t stride) {
      return at % 16 == 0 && stride % 4 == 0;
    };
    q.words = p.cols % 4 == 0 && words(reinterpret_cast<std::uintptr_t>(p.weight), 0) &&
              words(reinterpret_cast<std::uintptr_t>(p.x.data), p.x.stride) &&
              words(reinterpret_cast<std::uintptr_t>(p.out.data), p.out.stride);
    constexpr int kItems = kNarrowNormThreads / 32 * kNarrowNormItems;
    const LaunchShape shape{
        .grid = blocks_for(p.rows * p.heads, kItems), .block = kNarrowNormThreads, .early = true};
    return launch_kernel(narrow_norm_kernel, shape, stream, q);
  }
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.heads)),
      .block = kNormThreads,
      .early = true};
  // A row's bits are the same in all three kernels.
  if (is_short(p)) {
    if (p.rows <= kNormClusterRows && p.cols > kNormClusterColumns) {
      return launch_norm_after<kNormBlocks>(short_norm_kernel<kNormBlocks>, p.rows, stream, p);
    }
    return launch_norm_after<1>(short_norm_kernel<1>, p.rows, stream, p);
  }
  if (has_words(p)) return launch_wide_norm(p, stream);
  return launch_kernel(norm_kernel, shape, stream, p);
}
cudaError_t launch_gated_activation(const ActivationParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.up.data == nullptr) {
    return launch_kernel(gated_activation_kernel, over_rows(p.rows), stream, p);
  }
  ActivationParams q = p;
  if (p.cols % kWide == 0 && wide(p.gate) && wide(p.up) && wide(p.out)) q.each = kWide;
  return launch_kernel(gated_activation_kernel, over_columns(p.rows, p.cols / q.each), stream, q);
}
cudaError_t launch_gate_rows(const GateRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return launch_kernel(gate_rows_kernel, over_columns(p.rows, p.heads * p.cols), stream, p);
}
cudaError_t launch_copy_rows(const CopyRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  CopyRowsParams q = p;
  const bool whole = p.cols % kWide == 0 && p.x_head % kWide == 0 && p.out_head % kWide == 0;
  if (whole && wide(p.x) && wide(p.out)) q.each = kWide;
  return launch_kernel(copy_rows_kernel, over_columns(p.rows, p.heads * p.cols / q.each), stream,
                       q);
}
cudaError_t launch_qkv(const QkvParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const std::int64_t groups = ceil_div(p.heads + p.kv_heads + p.value_heads, kQkvHeads);
  QkvParams q = p;
  q.groups_of_row = FastDiv(groups);
  const LaunchShape shape{
      .grid = blocks_for(p.rows * groups, kQkvThreads / 32), .block = kQkvThreads, .early = true};
  const auto launch = [&](auto cols) {
    return launch_kernel(p.codes ? qkv_kernel<cols, true> : qkv_kernel<cols, false>, shape, stream,
                         q);
  };
  if (p.cols == 64) return launch(std::integral_constant<int, 64>());
  if (p.cols == 128) return launch(std::integral_constant<int, 128>());
  if (p.cols == 256) return launch(std::integral_constant<int, 256>());
  return launch(std::integral_constant<int, 512>());
}
cudaError_t launch_latent_rows(const LatentRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const std::int64_t groups = ceil_div(p.heads, kLatentWarpHeads), warps = p.rows * (1 + groups);
  LatentRowsParams q = p;
  q.groups_of_row = FastDiv(groups);
  const LaunchShape shape{
      .grid = blocks_for(warps, kLatentThreads / 32), .block = kLatentThreads, .early = true};
  using enum RunKind;
  return launch_kernel(p.kind == bf16          ? latent_rows_kernel<bf16>
                       : p.kind == e4m3_tensor ? latent_rows_kernel<e4m3_tensor>
                                               : latent_rows_kernel<e4m3_f32>,
                       shape, stream, q);
}
cudaError_t launch_indexer_rows(const IndexerRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const std::int64_t groups = ceil_div(p.heads, kIndexHeads);
  IndexerRowsParams q = p;
  q.groups_of_row = FastDiv(std::max<std::int64_t>(1, groups));
  const std::int64_t warps = p.rows * (groups + (p.k != nullptr ? 1 : 0));
  return launch_kernel(
      indexer_rows_kernel,
      {.grid = blocks_for(warps, kIndexThreads / 32), .block = kIndexThreads, .early = true},
      stream, q);
}
cudaError_t launch_whole_rows(const WholeRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const std::int64_t groups = ceil_div(p.heads, kWholeHeads), warps = p.rows * (1 + groups);
  WholeRowsParams q = p;
  q.groups_of_row = FastDiv(groups);
  const LaunchShape shape{
      .grid = blocks_for(warps, kWholeThreads / 32), .block = kWholeThreads, .early = true};
  return launch_kernel(p.codes ? whole_rows_kernel<true> : whole_rows_kernel<false>, shape, stream,
                       q);
}
cudaError_t launch_scale_rows(const ScaleRowsParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return launch_kernel(scale_rows_kernel, over_columns(p.rows, p.cols), stream, p);
}
cudaError_t launch_find_non_finite(const NonFiniteParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return launch_kernel(find_non_finite_kernel, over_rows(p.rows), stream, p);
}

}  // namespace lathe::cuda
