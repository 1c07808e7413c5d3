// Staged pages: arrays and launches. Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Most pages per pool; a block has two bytes for each in shared memory.
inline constexpr std::int32_t kMostStagedPages = 56 << 10;

/// Arrays of one source.
struct LatentStageArray {
  std::int32_t pages = 0, room = 0;  // pages in the pool; pages that can be decoded
  std::uint8_t* marks = nullptr;     // [pages] 1: listed; must be 0 before
  std::uint16_t* places = nullptr;   // [pages] where a marked page is decoded
  std::int32_t* list = nullptr;      // [room] the page decoded there
  std::int32_t* count = nullptr;     // marked pages
  std::int32_t* lists = nullptr;     // [rows, width] the source's lists, pointing to decoded rows
  std::byte* rows = nullptr;         // bf16 [room, tokens of a page, 576 or 512]
};
struct LatentStageArrays {
  LatentStageArray of[2];  // main, extra
  int sources = 1;
  std::int32_t* overflow = nullptr;  // 1: a source lists more pages than room; 0 before
};

/// Marks, numbers and decodes pages, in three launches. p: for the fp8 pages. Marks and overflow
/// must be zeroed before.
cudaError_t launch_stage_mla_fp8(const LatentParams& p, const LatentStageArrays& stages,
                                 cudaStream_t stream);
cudaError_t launch_stage_mla_fp8_block(const LatentParams& p, const LatentStageArrays& stages,
                                       cudaStream_t stream);
cudaError_t launch_stage_mla_fp8_block_512(const LatentParams& p, const LatentStageArrays& stages,
                                           cudaStream_t stream);
cudaError_t launch_stage_v4_fp8(const LatentParams& p, const LatentStageArrays& stages,
                                cudaStream_t stream);

}  // namespace lathe::cuda
