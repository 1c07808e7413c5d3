// Launches an instance of native: by page table or by lists, 64 M rows per block, or 8, 16 or 32
// with A and B swapped.
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/native/native_m64.cuh"
#include "kernels/cuda/sm90/latent/native/native_swap_ab.cuh"

namespace lathe::cuda {
namespace {

template <auto kKernel, int kThreads, int kSharedBytes>
cudaError_t launch(const LatentParams& p, const NativeMaps& maps, cudaStream_t stream) {
  const cudaError_t status = allow_shared<kKernel>(kSharedBytes);
  if (status != cudaSuccess) return status;
  return launch_kernel(kKernel,
                       {.grid = static_cast<unsigned>(p.workers * p.m_blocks),
                        .block = kThreads,
                        .shared_bytes = kSharedBytes},
                       stream, p, maps);
}
template <int kBlockM, bool kLists>
cudaError_t launch_swap_ab(const LatentParams& p, const NativeMaps& maps, cudaStream_t stream) {
  using N = NativeSwapAb<kBlockM>;
  return launch < latent_native_swap_ab_kernel<kBlockM, kLists>, N::kThreads,
         kLists ? N::kListedSharedBytes : N::kSharedBytes > (p, maps, stream);
}
template <bool kLists>
cudaError_t launch(const LatentParams& p, int block_m, const NativeMaps& maps,
                   cudaStream_t stream) {
  if (block_m == 8) return launch_swap_ab<8, kLists>(p, maps, stream);
  if (block_m == 16) return launch_swap_ab<16, kLists>(p, maps, stream);
  if (block_m == 32) return launch_swap_ab<32, kLists>(p, maps, stream);
  return launch < latent_native_kernel<kLists>, Native::kThreads,
         kLists ? Native::kListedSharedBytes : Native::kSharedBytes > (p, maps, stream);
}

}  // namespace

cudaError_t launch_native_mla_fp8(const LatentParams& p, int block_m, cudaStream_t stream) {
  if (!p.dense) return launch<true>(p, block_m, {}, stream);
  // Boxes of 128 dimensions of the keys of a page, and of the last 64.
  const std::int64_t page_size = p.main.page_size.divisor;
  // A tensor map needs at least one page; where the pool has none, no box is copied.
  const bool some = p.main.pages_count > 0;
  PageBoxes boxes{.base = some ? static_cast<const void*>(p.main.pages) : p.q,
                  .pages = some ? p.main.pages_count : 1,
                  .page_stride = p.main.page_stride,
                  .page_rows = page_size,
                  .row_bytes = 576,
                  .element_bytes = 1,
                  .box_bytes = 128,
                  .box_rows = page_size < kLatentTile ? page_size : kLatentTile};
  NativeMaps maps;
  cudaError_t status = make_page_map(maps.dims128, boxes);
  boxes.box_bytes = 64;
  if (status == cudaSuccess) status = make_page_map(maps.dims64, boxes);
  if (status != cudaSuccess) return status;
  return launch<false>(p, block_m, maps, stream);
}

}  // namespace lathe::cuda
