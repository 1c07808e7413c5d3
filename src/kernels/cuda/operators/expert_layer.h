// Runs a mixture-of-experts layer on the device without waiting for the host.
//
// A row's bits depend on that row alone, not on the batch: the GEMMs never split K, and a row's
// expert outputs are added in order of expert number. Choices of experts that another rank has keep
// their places among the sorted rows, and nothing is computed there.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/cuda/sm90/moe/moe.h"
#include "kernels/moe.h"
#include "kernels/shared_experts.h"

namespace lathe::cuda {

/// Uses grouped GEMMs (sm90/matmul) with bf16 intermediates if they support x and the experts'
/// weights, quantized if the precision says so. Otherwise, or with `plain`, uses plain GEMMs in
/// f32. Temporaries come from `tensors`, in device memory. Errors: a failed launch; more experts
/// than kMostExperts. held: if not null, the weighted sum of few rows is not launched; its
/// parameters are in *held, without rows if it was. It reads temporaries, so it must be launched
/// before anything else is. shared: if not null, is computed as well; precondition:
/// takes_shared() (expert_calls.h), and not `plain`.
Result<void> expert_layer(const ExpertLayer& op, MatmulPrecision precision, bool plain,
                          Arena& tensors, cudaStream_t stream, CombineExperts* held = nullptr,
                          const SharedExperts* shared = nullptr);

}  // namespace lathe::cuda
