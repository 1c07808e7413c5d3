// Operators that wait for the next one: if it norms their result, or quantizes a norm's, one launch
// does both. So do the sum of streams and the narrow GEMM of it, and a narrow GEMM's sum of slices
// and the mix of streams, and the compressors of entries and index keys. A launch less is 2 to 3 us
// of a layer with few rows.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <variant>

#include "base/memory.h"
#include "base/result.h"
#include "kernels/cuda/operators/quantized_x.h"
#include "kernels/cuda/sm90/compress/compress.h"
#include "kernels/cuda/sm90/hyper/hyper.h"
#include "kernels/cuda/sm90/moe/moe.h"
#include "kernels/cuda/sm90/rowwise/rowwise.h"
#include "kernels/operators.h"

namespace lathe::cuda {

class HeldOperators {
 public:
  /// Holds an operator back. The previous one has been launched.
  void hold(const CombineExperts& p) { held_ = p; }
  void hold(const HyperAddParams& p) { held_ = p; }
  /// p.sum is what is held, if that makes the mix's product. Otherwise launches what is held.
  Result<void> hold_mix(HyperMixParams p, cudaStream_t stream);
  /// Launches the slices of the product, with what is held if that computes its x, and holds their
  /// sum back.
  Result<void> hold_sum(const NarrowGemm& p, cudaStream_t stream);
  /// Launches p with the compressor that is held if they make a pair, and otherwise holds p.
  Result<void> hold_compress(const CompressParams& p, cudaStream_t stream);

  /// Launches what is held, if anything is. Everything that starts work on the stream calls it
  /// first, because what is held reads temporaries whose memory is free for the next operator.
  Result<void> launch(cudaStream_t stream);
  /// If what is held computes op.x, launches it together with the norm and returns true.
  Result<bool> launch_with(const RmsNorm& op, cudaStream_t stream);

  /// Holds a norm back, with what is held if that computes its x. If it may have codes it waits for
  /// launch_with_codes(); otherwise it is launched.
  Result<void> hold_norm(const RmsNorm& op, const NormParams& params, cudaStream_t stream);
  /// If a norm is held whose result is x, launches it so that it makes codes of the result as well,
  /// which stay until the next such call. Nothing before reserve().
  Result<std::optional<QuantizedX>> launch_with_codes(const RowsView& x, bool power_of_two,
                                                      cudaStream_t stream);
  /// Allocates memory for codes. They cannot be where operators have their temporaries, because
  /// what is held still reads those. Errors: no memory.
  Result<void> reserve();

 private:
  bool join(const RmsNorm& op);

  std::variant<std::monostate, CombineExperts, HyperAddParams, NarrowGemm, HyperMixParams,
               NormParams, CompressParams>
      held_;
  OwnedBytes codes_{nullptr, nullptr};  // codes, then scales, of the most and widest rows
  RowsView normed_;  // the result of the norm that is held; no data: there is none
};

}  // namespace lathe::cuda
