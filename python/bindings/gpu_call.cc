#include "gpu_call.h"

#ifdef LATHE_HAS_CUDA
#include <algorithm>
#include <utility>

#include "errors.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/operators/attend_workspace.h"
#include "unlocked.h"

namespace lathe::python {

std::span<const std::int32_t> GpuList::take(std::int64_t count, cudaStream_t stream) {
  if (count > size_) {
    const std::int64_t size = std::max<std::int64_t>({count, 2 * size_, 1024});
    std::vector<std::int32_t> entries(static_cast<std::size_t>(size));
    for (std::int64_t at = 0; at < size; ++at) entries[static_cast<std::size_t>(at)] = entry_(at);
    const auto bytes = size * static_cast<std::int64_t>(sizeof(std::int32_t));
    OwnedBytes made = value_or_raise(cuda::allocate_device_bytes(bytes));
    value_or_raise(cuda::copy_to_device(std::span<const std::int32_t>(entries),
                                        reinterpret_cast<std::int32_t*>(made.get()), stream));
    value_or_raise(cuda::call_result(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    kept_.push_back(std::move(made));
    size_ = size;
  }
  if (count == 0) return {};
  return {reinterpret_cast<const std::int32_t*>(kept_.back().get()),
          static_cast<std::size_t>(count)};
}

GpuScratch::GpuScratch(int ordinal) : ordinal_(ordinal) {
  int before = 0;
  const bool known = cudaGetDevice(&before) == cudaSuccess;
  value_or_raise(cuda::open_device(ordinal));
  if (known) cudaSetDevice(before);
  kept_.emplace();
}

GpuScratch::~GpuScratch() {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(ordinal_);  // where its memory is freed
  kept_.reset();
  cudaSetDevice(before);
}

void GpuCall::take_lengths(GpuScratch& keeper, cudaStream_t on) {
  const std::int64_t rows = args.q.rows;
  if (lengths == LengthsOf::a_row_each) {
    args.q_indptr = keeper.numbers().take(rows + 1, on);
  } else if (lengths == LengthsOf::one_request) {
    const auto pairs =
        keeper.pairs().take(2 * rows + 2, on).subspan(static_cast<std::size_t>(2 * rows));
    args.q_indptr = pairs;
    args.kv_lens = pairs.subspan(1);
  } else if (lengths == LengthsOf::listed_rows) {  // their lists say what they read
    args.q_indptr = keeper.numbers().take(rows + 1, on);
    args.kv_lens = args.q_indptr.subspan(1);
  }
}

void GpuCall::run(GpuScratch& keeper, cudaStream_t on) {
  args.execution.scratch = &keeper.scratch();
  args.execution.stream = on;
  const auto done = [&]() -> Result<void> {
    const Unlocked unlocked;
    return workspace ? cuda::attend_in_workspace(args, *workspace, part) : attend(args);
  }();
  value_or_raise(done);
}

}  // namespace lathe::python
#endif
