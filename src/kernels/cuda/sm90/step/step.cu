// Instantiates and launches the kernels that build a step's metadata.
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/step/lists.cuh"
#include "kernels/cuda/sm90/step/rows.cuh"
#include "kernels/cuda/sm90/step/step_kernels.h"
#include "kernels/cuda/sm90/step/work.cuh"

namespace lathe::cuda {
namespace {

template <class Params>
cudaError_t put(void (*kernel)(Params), unsigned grid, const Params& p, cudaStream_t stream) {
  return launch_kernel(kernel, {.grid = grid, .block = kStepThreads}, stream, p);
}

// As put(), but blocks may start before the previous launch on the stream has ended; the kernels
// wait for that end before they access memory. In a graph this is a programmatic edge.
template <class Params>
cudaError_t put_early(void (*kernel)(Params), dim3 grid, int threads, const Params& p,
                      cudaStream_t stream) {
  return launch_kernel(
      kernel, {.grid = grid, .block = static_cast<unsigned>(threads), .early = true}, stream, p);
}

}  // namespace

cudaError_t launch_page_table(const PageTableParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return put(page_table_kernel, blocks_for(p.rows, p.lanes.rows()), p, stream);
}

cudaError_t launch_slot_table(const SlotTableParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return put(slot_table_kernel, blocks_for(p.rows, p.lanes.rows()), p, stream);
}

cudaError_t launch_prefix(const PrefixParams& p, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(scan_tiles(p.count));
  if (tiles > 1) {
    const cudaError_t status = put_early(prefix_sums_kernel, tiles, kScanThreads, p, stream);
    if (status != cudaSuccess) return status;
  }
  return put_early(prefix_kernel, tiles, kScanThreads, p, stream);
}

cudaError_t launch_ragged(const RaggedListParams& p, cudaStream_t stream) {
  if (p.room == 0) return cudaSuccess;
  return put(ragged_kernel, some_blocks(p.room), p, stream);
}

cudaError_t launch_transform(const TransformParams& p, cudaStream_t stream) {
  if (p.rows == 0 || p.width == 0) return cudaSuccess;
  return put(transform_kernel, blocks_for(p.rows, p.lanes.rows()), p, stream);
}

cudaError_t launch_combine(const CombineParams& p, cudaStream_t stream) {
  if (p.rows == 0) return cudaSuccess;
  return put(combine_kernel, blocks_for(p.rows, kStepThreads / 32), p, stream);
}

namespace {

auto work_kernel(const WorkParams& p) {
  if (p.fixed) return work_fixed_kernel;
  return work_rows_per_thread(p) == 1 ? work_balanced_kernel<1>
                                      : work_balanced_kernel<kScanPerThread>;
}

}  // namespace

cudaError_t launch_work(const WorkParams& p, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>(scan_tiles(p.rows));
  cudaError_t status = cudaSuccess;
  if (tiles > 1) status = put_early(work_key_blocks_kernel, tiles, kScanThreads, p, stream);
  if (status == cudaSuccess && tiles > 1 && !p.fixed) {
    status = put_early(work_open_kernel, tiles, kScanThreads, p, stream);
  }
  if (status != cudaSuccess) return status;
  const dim3 grid(tiles, work_slices(p));
  return put_early(work_kernel(p), grid, kScanThreads, p, stream);
}

cudaError_t launch_step_rows(const StepRowsParams& p, cudaStream_t stream) {
  const unsigned grid = step_rows_blocks(p);
  if (scan_tiles(p.batch.requests) == 1) {
    return put_early(step_rows_kernel<false>, grid, kScanThreads, p, stream);
  }
  return put_early(step_rows_kernel<true>, grid, kScanThreads, p, stream);
}

}  // namespace lathe::cuda
