// The step's kernels and their launches.
#include "kernels/cuda/sm90/step/lists.cuh"
#include "kernels/cuda/sm90/step/rows.cuh"
#include "kernels/cuda/sm90/step/step_kernels.h"
#include "kernels/cuda/sm90/step/work.cuh"

namespace lathe::cuda {
namespace {

unsigned blocks(std::int64_t count, std::int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// Of a kernel whose threads take more than one item each: enough to occupy the device.
unsigned some_blocks(std::int64_t count) {
  constexpr std::int64_t kMost = 132 * 8;
  const std::int64_t all = (count + kStepThreads - 1) / kStepThreads;
  return static_cast<unsigned>(all < 1 ? 1 : all < kMost ? all : kMost);
}

template <class Params>
cudaError_t put(void (*kernel)(Params), unsigned grid, int threads, const Params& p,
                cudaStream_t stream) {
  kernel<<<grid, threads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_page_table(const PageTableParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return put(page_table_kernel, blocks(p.rows, p.lanes.rows()), kStepThreads, p, stream);
}

cudaError_t launch_slot_table(const SlotTableParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return put(slot_table_kernel, blocks(p.rows, p.lanes.rows()), kStepThreads, p, stream);
}

cudaError_t launch_prefix(const PrefixParams& p, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(scan_tiles(p.count));
  if (tiles > 1) {
    const cudaError_t status = put(prefix_sums_kernel, tiles, kScanThreads, p, stream);
    if (status != cudaSuccess) return status;
  }
  return put(prefix_kernel, tiles, kScanThreads, p, stream);
}

cudaError_t launch_ragged(const RaggedParams& p, cudaStream_t stream) {
  if (p.room == 0) return cudaSuccess;
  return put(ragged_kernel, some_blocks(p.room), kStepThreads, p, stream);
}

cudaError_t launch_transform(const TransformParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return put(transform_kernel, blocks(p.rows, p.lanes.rows()), kStepThreads, p, stream);
}

cudaError_t launch_combine(const CombineParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return put(combine_kernel, blocks(p.rows, kStepThreads / 32), kStepThreads, p, stream);
}

cudaError_t launch_work(const WorkParams& p, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(scan_tiles(p.rows));
  cudaError_t status = cudaSuccess;
  if (tiles > 1) status = put(work_sums_kernel, tiles, kScanThreads, p, stream);
  if (status == cudaSuccess) status = put(work_units_kernel, tiles, kScanThreads, p, stream);
  if (status == cudaSuccess && tiles > 1) {
    status = put(work_rows_kernel, tiles, kScanThreads, p, stream);
  }
  if (status != cudaSuccess) return status;
  const std::int64_t most = p.room > p.workers ? p.room : p.workers + 1;
  return put(work_items_kernel, some_blocks(most), kStepThreads, p, stream);
}

cudaError_t launch_step_rows(const StepRowsParams& p, cudaStream_t stream) {
  const unsigned table = p.width == 0 ? 0 : blocks(p.lists.requests, p.lanes.rows());
  const unsigned grid = static_cast<unsigned>(p.row_blocks) + table;
  return grid == 0 ? cudaSuccess : put(step_rows_kernel, grid, kStepThreads, p, stream);
}

}  // namespace lathe::cuda
