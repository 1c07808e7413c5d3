#include "kernels/cuda/sm90/exchange/test/exchange_gpu_bench.h"

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/exchange/exchange.cuh"

namespace lathe::cuda {

static __global__ void __launch_bounds__(1024)
    add_norm_kernel(const __grid_constant__ SumParams q) {
  __shared__ float room[kRowGroups];
  let_next_begin();
  const RowEnd<1> end(q, room);
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  RowPart<1> sum = end.before(row);
  if (end.has(0)) {
    add_word(sum.v[0], load_partial(q.partial.data + row * row_bytes(q.partial), q.partial.dtype,
                                    end.word(0)));
  }
  end.finish(row, sum, [&](int w, uint4 v) { *end.h(row, w) = v; });
}

cudaError_t launch_add_norm(const SumParams& p, cudaStream_t stream) {
  const LaunchShape shape{.grid = static_cast<unsigned>(p.rows),
                          .block = blocks_for(exchange_words(p.cols), 32) * 32,
                          .early = true};
  return launch_kernel(add_norm_kernel, shape, stream, p);
}

}  // namespace lathe::cuda
