// Operators that wait for the next one: if it norms their result, one launch does both. A launch
// less is 2 to 3 us of a layer with few rows.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <variant>

#include "base/result.h"
#include "kernels/cuda/sm90/hyper/hyper.h"
#include "kernels/cuda/sm90/moe/moe.h"
#include "kernels/operators.h"

namespace lathe::cuda {

class BeforeNorm {
 public:
  /// Holds an operator back. The previous one has been launched.
  void hold(const CombineExperts& p) { held_ = p; }
  void hold(const HyperMixParams& p) { held_ = p; }

  /// Launches what is held, if anything is. Everything that starts work on the stream calls it
  /// first, because what is held reads temporaries whose memory is free for the next operator.
  Result<void> launch(cudaStream_t stream);
  /// If what is held computes op.x, launches it together with the norm and returns true.
  Result<bool> launch_with(const RmsNorm& op, cudaStream_t stream);

 private:
  std::variant<std::monostate, CombineExperts, HyperMixParams> held_;
};

}  // namespace lathe::cuda
