// Launches the kernels of delta-rule layers.
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/delta/delta_chunks.cuh"
#include "kernels/cuda/sm90/delta/delta_decode.cuh"
#include "kernels/cuda/sm90/delta/delta_io.cuh"
#include "kernels/cuda/sm90/delta/delta_recurrence.cuh"
#include "kernels/cuda/sm90/delta/delta_scan.cuh"

namespace lathe::cuda {

cudaError_t launch_delta_decode(const DeltaParams& p, cudaStream_t stream) {
  const auto launch = [&]<int kBlocks>() {
    const dim3 grid(kBlocks, static_cast<unsigned>(p.key_heads), static_cast<unsigned>(p.requests));
    return launch_kernel(delta_decode_kernel<kBlocks>,
                         {.grid = grid,
                          .block = kRecurrenceThreads,
                          .shared_bytes = sizeof(DecodeShared<kBlocks>),
                          .cluster = kBlocks,
                          .early = true},
                         stream, p);
  };
  return p.heads == p.key_heads ? launch.operator()<kHeadBlocks>()
                                : launch.operator()<2 * kHeadBlocks>();
}

cudaError_t launch_delta_rows(const DeltaParams& p, cudaStream_t stream) {
  const dim3 grid(blocks_for(p.dv, kRecurrenceColumns), static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.requests));
  return launch_kernel(p.single ? delta_rows_kernel<true> : delta_rows_kernel<false>,
                       {.grid = grid, .block = kRecurrenceThreads, .early = true}, stream, p);
}

cudaError_t launch_delta_finish(const DeltaParams& p, cudaStream_t stream) {
  const auto requests = static_cast<unsigned>(p.requests);
  const unsigned grid = blocks_for(p.rows * p.heads, kFinishThreads / 32) +
                        requests * blocks_for(p.channels, 4 * kFinishThreads);
  return launch_kernel(delta_finish_kernel, {.grid = grid, .block = kFinishThreads, .early = true},
                       stream, p);
}

cudaError_t launch_delta_mix(const DeltaParams& p, cudaStream_t stream) {
  const dim3 grid(blocks_for(p.rows, kMixRows),
                  blocks_for(p.channels / kDeltaWidth, kMixThreads / 32));
  return launch_kernel(delta_mix_kernel, {.grid = grid, .block = kMixThreads, .early = true},
                       stream, p);
}

cudaError_t launch_delta_chunks(const DeltaParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(p.chunks), static_cast<unsigned>(p.heads));
  const auto launch = [&]<bool kPerChannel>() {
    constexpr int kShared = kPerChannel ? ChunkShared::kDecayedBytes : ChunkShared::kBytes;
    constexpr auto kKernel = delta_chunks_kernel<kPerChannel>;
    if (const auto status = allow_shared<kKernel>(kShared); status != cudaSuccess) return status;
    return launch_kernel(
        kKernel, {.grid = grid, .block = kDeltaThreads, .shared_bytes = kShared, .early = true},
        stream, p);
  };
  return p.per_channel ? launch.operator()<true>() : launch.operator()<false>();
}

cudaError_t launch_delta_scan(const DeltaParams& p, cudaStream_t stream) {
  if (const auto status = allow_shared<delta_scan_kernel>(kScanShared); status != cudaSuccess) {
    return status;
  }
  const dim3 grid(kDeltaWidth / kScanColumns, static_cast<unsigned>(p.heads),
                  static_cast<unsigned>(p.requests));
  return launch_kernel(
      delta_scan_kernel,
      {.grid = grid, .block = kScanThreads, .shared_bytes = kScanShared, .early = true}, stream, p);
}

}  // namespace lathe::cuda
