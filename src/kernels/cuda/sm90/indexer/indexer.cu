// Launches the indexer's kernels: logits of a row's keys, and the exact top-k.
#include "kernels/cuda/sm90/indexer/indexer.h"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/indexer/hadamard_rows.cuh"
#include "kernels/cuda/sm90/indexer/logits.cuh"
#include "kernels/cuda/sm90/indexer/logits_wgmma.cuh"
#include "kernels/cuda/sm90/indexer/select.cuh"

namespace lathe::cuda {

cudaError_t launch_count_up(std::int32_t* slots, const std::int32_t* like, std::int64_t count,
                            cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return launch_kernel(
      count_up_kernel,
      {.grid = blocks_for(count, kSelectThreads), .block = kSelectThreads, .early = true}, stream,
      slots, like, count);
}

namespace {

// Rows of a block. Rows of a prompt share keys; rows of a decode step do not.
constexpr std::int64_t kPromptRows = 256, kRowsEach = 8;

template <int kHeads>
cudaError_t launch_wgmma(const IndexLogits& p, cudaStream_t stream) {
  using W = LogitsWgmma<kHeads>;
  constexpr auto kKernel = index_logits_wgmma_kernel<kHeads>;
  if (const cudaError_t status = allow_shared<kKernel>(W::kSharedBytes); status != cudaSuccess) {
    return status;
  }
  const std::int64_t each = p.rows >= kPromptRows ? kRowsEach : 1;
  return launch_kernel(kKernel,
                       {.grid = dim3(blocks_for(p.rows, each), blocks_for(p.cols, W::kKeys)),
                        .block = W::kThreads,
                        .shared_bytes = W::kSharedBytes,
                        .early = true},
                       stream, p, each);
}

// True where pages can be copied in units of 16 bytes and used by the tensor cores as they are.
bool fits_wgmma(const IndexPages& pages) {
  return pages.dim == 128 && pages.page_stride % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(pages.data) % 16 == 0;
}

}  // namespace

cudaError_t launch_hadamard_rows(const HadamardRows& p, cudaStream_t stream) {
  const std::int64_t heads = p.rows * p.heads;
  if (heads == 0) return cudaSuccess;
  return launch_kernel(
      hadamard_rows_kernel,
      {.grid = blocks_for(heads, kHadamardWarps), .block = kHadamardThreads, .early = true}, stream,
      p);
}

cudaError_t launch_index_logits(const IndexLogits& p, cudaStream_t stream) {
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  if (fits_wgmma(p.q) && fits_wgmma(p.keys)) {
    if (p.heads == 16) return launch_wgmma<16>(p, stream);
    if (p.heads == 32) return launch_wgmma<32>(p, stream);
    if (p.heads == 64) return launch_wgmma<64>(p, stream);
  }
  constexpr int kMost = 160 << 10;  // enough for 256 heads of 128 dims and a tile of keys
  const auto bytes = static_cast<std::int32_t>(score_shared_floats(p) * 4);
  if (const cudaError_t status = allow_shared<index_logits_kernel>(kMost); status != cudaSuccess) {
    return status;
  }
  return launch_kernel(index_logits_kernel,
                       {.grid = dim3(static_cast<unsigned>(p.rows), blocks_for(p.cols, kScoreKeys)),
                        .block = kScoreThreads,
                        .shared_bytes = bytes,
                        .early = true},
                       stream, p);
}

cudaError_t launch_take_choices(const TakeChoices& p, cudaStream_t stream) {
  if (p.select.rows == 0) return cudaSuccess;
  return launch_kernel(
      take_choices_kernel,
      {.grid = static_cast<unsigned>(p.select.rows), .block = kSelectThreads, .early = true},
      stream, p);
}

cudaError_t launch_select_slots(const SelectSlots& p, cudaStream_t stream) {
  if (p.rows == 0 || p.k == 0) return cudaSuccess;
  return launch_kernel(
      select_slots_kernel,
      {.grid = static_cast<unsigned>(p.rows), .block = kSelectThreads, .early = true}, stream, p);
}

}  // namespace lathe::cuda
