// Launches the exchanges.
#include <algorithm>
#include <type_traits>

#include "base/integers.h"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/exchange/pull.cuh"
#include "kernels/cuda/sm90/exchange/push.cuh"

namespace lathe::cuda {
inline constexpr int kClearThreads = 512;

static __global__ void __launch_bounds__(kClearThreads)
    clear_planes_kernel(uint4* planes, std::int64_t words) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += step) {
    planes[i] = {kUnsent, kUnsent, kUnsent, kUnsent};
  }
}

namespace {

static_assert(sizeof(ExchangeState) == 32 && sizeof(ExchangeFlag) == 32);

constexpr int kLargeBlock = 1024, kSmallBlock = 512;  // threads at most

using SumKernel = void (*)(ExchangePeers, SumParams);

template <int kRanks, int kWords, int kThreads>
SumKernel kernel_of(SumPath path) {
  // The widest rows of eight ranks do not fit in registers while they are polled.
  if constexpr (kRanks * kWords <= 16) {
    if (path == SumPath::push) return push_kernel<kRanks, kWords, kThreads>;
    if (path == SumPath::push_owned) return push_owned_kernel<kRanks, kWords, kThreads>;
  }
  const bool owned = path == SumPath::push_owned || path == SumPath::pull_owned;
  return owned ? pull_kernel<kRanks, kWords, kThreads, true>
               : pull_kernel<kRanks, kWords, kThreads, false>;
}
template <int kRanks>
SumKernel small_kernel_of(SumPath path, int words) {
  if (words == 1) return kernel_of<kRanks, 1, kSmallBlock>(path);
  return words == 2 ? kernel_of<kRanks, 2, kSmallBlock>(path)
                    : kernel_of<kRanks, 4, kSmallBlock>(path);
}

// How the threads of blocks share rows. The words of more than two ranks do not fit in the
// registers of a large block. With two ranks, one row is fastest in a large block; but two small
// blocks on an SM have two rows under way, which pays for pushes of more rows than SMs.
struct RowShape {
  bool large = false;
  int words = 1;  // of a thread
  unsigned threads = 0;
  std::int64_t blocks = 0;  // all of which run at once
};
RowShape row_shape(SumPath path, int ranks, const SumParams& p, const ExchangeLaunch& launch) {
  const bool pushed = path == SumPath::push || path == SumPath::push_owned;
  const std::int64_t words = exchange_words(p.cols);
  const bool two_rows = path == SumPath::push && words <= 2 * kSmallBlock && p.rows > launch.sms;
  RowShape out;
  out.large = ranks == 2 && (launch.one_row || !two_rows);
  while (out.words * (out.large ? kLargeBlock : kSmallBlock) < words) out.words *= 2;
  out.threads = static_cast<unsigned>(ceil_div(ceil_div(words, out.words), 32) * 32);
  const std::int64_t most = pushed ? launch.sms * (ranks == 2 && !out.large ? 2 : 1) : kFlagBlocks;
  out.blocks = std::min(p.rows, most);
  return out;
}

SumKernel kernel_of(SumPath path, int ranks, const RowShape& shape) {
  if (ranks == 4) return small_kernel_of<4>(path, shape.words);
  if (ranks == 8) return small_kernel_of<8>(path, shape.words);
  if (shape.large) {
    return shape.words == 1 ? kernel_of<2, 1, kLargeBlock>(path)
                            : kernel_of<2, 2, kLargeBlock>(path);
  }
  return shape.words == 1 ? push_kernel<2, 1, kSmallBlock> : push_kernel<2, 2, kSmallBlock>;
}

bool in_words(const void* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

}  // namespace

std::int64_t plane_words_of(SumPath path, int size, std::int64_t rows, std::int64_t cols) {
  const std::int64_t words = exchange_words(cols);
  if (path == SumPath::push) return (size - 1) * rows * words;
  if (path == SumPath::push_owned) return ((size - 1) * ceil_div(rows, size) + rows) * words;
  return 0;
}

bool sum_takes(const SumParams& p) {
  if (p.exact && (p.partial.dtype != DType::f32 || p.h.data != nullptr)) return false;
  const bool types = p.x.dtype == DType::f32 &&
                     (p.partial.dtype == DType::bf16 || p.partial.dtype == DType::f32) &&
                     (p.h.data == nullptr || p.h.dtype == DType::bf16);
  return types && p.cols % 8 == 0 && p.cols <= kExchangeCols &&
         in_words(p.partial.data, p.partial.stride) && in_words(p.x.data, p.x.stride) &&
         in_words(p.h.data, p.h.stride) && in_words(p.weight, 0);
}

cudaError_t launch_sum(const ExchangePeers& peers, SumPath path, const SumParams& p,
                       const ExchangeLaunch& launch, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  const bool pushed = !p.exact && (path == SumPath::push || path == SumPath::push_owned);
  if (pushed && plane_words_of(path, peers.size, p.rows, p.cols) > peers.plane_words) {
    return cudaErrorInvalidValue;
  }
  if (p.exact) {
    const LaunchShape shape{
        .grid = static_cast<unsigned>(std::min<std::int64_t>(p.rows, kFlagBlocks)),
        .block = kDealThreads,
        .early = true};
    const SumKernel kernel = peers.size == 2   ? exact_sum_kernel<2>
                             : peers.size == 4 ? exact_sum_kernel<4>
                                               : exact_sum_kernel<8>;
    return launch_kernel(kernel, shape, stream, peers, p);
  }
  const RowShape rows = row_shape(path, peers.size, p, launch);
  const LaunchShape shape{
      .grid = static_cast<unsigned>(rows.blocks), .block = rows.threads, .early = true};
  return launch_kernel(kernel_of(path, peers.size, rows), shape, stream, peers, p);
}

cudaError_t launch_trade_columns(const ExchangePeers& peers, const TradeParams& p,
                                 cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  if (p.rows * p.first[peers.size] > INT32_MAX) return cudaErrorInvalidValue;  // counted in 32 bits
  const LaunchShape shape{.grid = kFlagBlocks, .block = kDealThreads, .early = true};
  return launch_kernel(trade_columns_kernel, shape, stream, peers, p);
}

cudaError_t launch_share_records(const ExchangePeers& peers, const ShareParams& p,
                                 cudaStream_t stream) {
  if (p.count == 0) return cudaSuccess;
  const LaunchShape shape{.grid = 1, .block = kDealThreads, .early = true};
  return launch_kernel(share_records_kernel, shape, stream, peers, p);
}

cudaError_t launch_clear_planes(const ExchangePeers& peers, cudaStream_t stream) {
  const std::int64_t words = kPlanes * peers.plane_words;
  if (words == 0) return cudaSuccess;
  const LaunchShape shape{.grid = blocks_for(words, 8 * kClearThreads), .block = kClearThreads};
  return launch_kernel(clear_planes_kernel, shape, stream,
                       static_cast<uint4*>(peers.planes[peers.rank]), words);
}

}  // namespace lathe::cuda
