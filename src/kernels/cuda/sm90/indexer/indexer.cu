// Launches the indexer's kernels: logits of a row's keys, and the exact top-k.
#include "kernels/cuda/sm90/indexer/indexer.h"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/indexer/logits.cuh"
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

cudaError_t launch_index_logits(const IndexLogits& p, cudaStream_t stream) {
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  constexpr int kMost = 160 << 10;  // 256 heads of 128, keys and all
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

cudaError_t launch_select_slots(const SelectSlots& p, cudaStream_t stream) {
  if (p.rows == 0 || p.k == 0) return cudaSuccess;
  return launch_kernel(
      select_slots_kernel,
      {.grid = static_cast<unsigned>(p.rows), .block = kSelectThreads, .early = true}, stream, p);
}

}  // namespace lathe::cuda
