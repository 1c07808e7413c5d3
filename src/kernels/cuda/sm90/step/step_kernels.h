// Declares the launches of the step kernels. Includes little, to keep nvcc fast.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/sm90/step/step_params.h"

namespace lathe::cuda {

// Each launches its kernels on the stream; tables without rows or columns launch nothing.
cudaError_t launch_page_table(const PageTableParams& p, cudaStream_t stream);
cudaError_t launch_slot_table(const SlotTableParams& p, cudaStream_t stream);
cudaError_t launch_prefix(const PrefixParams& p, cudaStream_t stream);
cudaError_t launch_ragged(const RaggedListParams& p, cudaStream_t stream);
cudaError_t launch_transform(const TransformParams& p, cudaStream_t stream);
cudaError_t launch_combine(const CombineParams& p, cudaStream_t stream);
cudaError_t launch_work(const WorkParams& p, cudaStream_t stream);
/// q_indptr must have been computed if the requests exceed a tile.
cudaError_t launch_step_rows(const StepRowsParams& p, cudaStream_t stream);
}  // namespace lathe::cuda
