#include "kernels/cuda/common/shared_limit.h"
#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_native.cuh"

namespace lathe::cuda {

cudaError_t launch_native_mla_fp8(const LatentParams& p, cudaStream_t stream) {
  // Boxes of 128 dimensions of the keys of a page, and of the last 64.
  const std::int64_t page_size = p.main.page_size.divisor;
  PageBoxes boxes{.base = p.main.pages,
                  .pages = p.main.pages_count,
                  .page_stride = p.main.page_stride,
                  .page_rows = page_size,
                  .row_bytes = 576,
                  .element_bytes = 1,
                  .box_bytes = 128,
                  .box_rows = page_size < kLatentTile ? page_size : kLatentTile};
  NativeMaps maps;
  cudaError_t status = make_page_map(maps.wide, boxes);
  boxes.box_bytes = 64;
  if (status == cudaSuccess) status = make_page_map(maps.narrow, boxes);
  if (status == cudaSuccess) {
    status = allow_shared<latent_native_kernel>(Native::kSharedBytes);
  }
  if (status != cudaSuccess) return status;
  latent_native_kernel<<<static_cast<unsigned>(p.workers * p.tiles), Native::kThreads,
                         Native::kSharedBytes, stream>>>(p, maps);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
