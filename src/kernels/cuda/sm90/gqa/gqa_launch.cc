// Picks the grouped-query kernel for a head dim, a format and an M block size: swap_ab or m128.
#include "kernels/cuda/sm90/gqa/gqa_instances.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"
#include "kernels/cuda/sm90/gqa/gqa_limits.h"

namespace lathe::cuda {
namespace {

template <int kHeadDim, int kValueDim = kHeadDim>
cudaError_t launch(const GqaParams& p, bool fp8, cudaStream_t stream) {
  if constexpr (kHeadDim == kValueDim && kHeadDim <= 256) {
    if (fp8 && gqa_is_mma_fp8(kHeadDim, kValueDim, p.block_m)) {
      return launch_gqa_mma_fp8<kHeadDim, 1>(p, stream);
    }
  }
  if (fp8) return launch_gqa_swap_ab<kHeadDim, true, kValueDim>(p, stream);
  if constexpr (kHeadDim <= 256) {
    if (gqa_rows_on_m(kHeadDim, p.block_m, fp8)) {
      return launch_gqa_m128<kHeadDim, kValueDim>(p, stream);
    }
  }
  return launch_gqa_swap_ab<kHeadDim, false, kValueDim>(p, stream);
}

template <int kKeyDim, int kValueDim>
cudaError_t launch_rows(const GqaParams& p, cudaStream_t stream) {
  if (gqa_rows_on_m(kKeyDim, p.block_m, false)) {
    return launch_gqa_rows_m128<kKeyDim, kValueDim>(p, stream);
  }
  return launch_gqa_rows_swap_ab<kKeyDim, kValueDim>(p, stream);
}

}  // namespace

cudaError_t launch_gqa(const GqaParams& p, std::int32_t head_dim, bool fp8, cudaStream_t stream) {
  if (p.pairs) return launch_gqa_mma_fp8<kGqaPairDim, 2>(p, stream);
  switch (head_dim) {
    case 64:
      return launch<64>(p, fp8, stream);
    case 128:
      return launch<128>(p, fp8, stream);
    case kGqaWideKey:
      return launch<kGqaWideKey, kGqaWideKeyValue>(p, fp8, stream);
    case 256:
      return launch<256>(p, fp8, stream);
    default:
      return launch<512>(p, fp8, stream);
  }
}

cudaError_t launch_gqa_rows(const GqaParams& p, std::int32_t nope, cudaStream_t stream) {
  return nope == 256 ? launch_rows<320, 256>(p, stream) : launch_rows<160, 128>(p, stream);
}

}  // namespace lathe::cuda
