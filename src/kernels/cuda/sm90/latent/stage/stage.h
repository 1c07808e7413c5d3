// Staged pages: their arrays and launches. It includes little, for nvcc's sake.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

/// Per pool; a block has two bytes for each in shared memory.
inline constexpr std::int32_t kMostStagedPages = 56 << 10;

/// Of one source.
struct LatentStageArray {
  std::int32_t pages = 0, room = 0;  // in the pool; that can be decoded
  std::uint8_t* marks = nullptr;     // [pages] 1: listed; 0 before
  std::uint16_t* places = nullptr;   // [pages] where a marked page is decoded to
  std::int32_t* list = nullptr;      // [room] the page that is decoded there
  std::int32_t* count = nullptr;     // of marked pages
  std::int32_t* lists = nullptr;     // [rows, width] the source's lists, as decoded rows
  std::byte* rows = nullptr;         // bf16 [room, tokens of a page, 576 or 512]
};
struct LatentStageArrays {
  LatentStageArray of[2];  // main, extra
  int sources = 1;
  std::int32_t* overflow = nullptr;  // 1: a source has more listed pages than room; 0 before
};

/// Marks, numbers and decodes, in three launches. p: of the fp8 pages. Marks and overflow have been
/// zeroed.
cudaError_t launch_stage_mla_fp8(const LatentParams& p, const LatentStageArrays& stages,
                                 cudaStream_t stream);
cudaError_t launch_stage_mla_fp8_block(const LatentParams& p, const LatentStageArrays& stages,
                                       cudaStream_t stream);
cudaError_t launch_stage_mla_fp8_block_512(const LatentParams& p, const LatentStageArrays& stages,
                                           cudaStream_t stream);
cudaError_t launch_stage_v4_fp8(const LatentParams& p, const LatentStageArrays& stages,
                                cudaStream_t stream);

}  // namespace lathe::cuda
