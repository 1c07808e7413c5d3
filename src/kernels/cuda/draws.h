// Draws a step's tokens on the device: uploads parameters, and brings tokens back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/memory.h"
#include "base/result.h"
#include "kernels/cuda/sm90/sampling/sampling.h"
#include "kernels/cuda/staging.h"

namespace lathe::cuda {

class Draws {
 public:
  /// Starts the draws of `rows`, whose logits lie on the device, and the way back of what is drawn.
  /// Errors: a launch, no memory.
  Result<void> start(std::span<const SampleArgs> rows, std::span<std::optional<SampledToken>> out,
                     Staging& staging, Arena& tensors, cudaStream_t stream);
  /// Fills every `out` since the last call, once the stream has been waited for.
  void finish();
  /// Forgets them instead, after an error.
  void drop() {
    pending_.clear();
    results_used_ = 0;
  }

 private:
  // Of one call: what the device writes, in this order, from `at` on.
  struct Pending {
    std::span<std::optional<SampledToken>> out;
    std::vector<std::int32_t> likeliest;           // [rows] as SampleRow
    std::vector<std::vector<std::int32_t>> asked;  // [rows] likewise
    std::int64_t at = 0;                           // in results_
    std::int64_t top = 0;                          // tokens likeliest or asked for, of all rows
  };
  struct Layout;
  Result<std::span<const SampleRow>> bring(std::span<const SampleArgs> rows, Staging& staging,
                                           Pending& pending);

  std::vector<Pending> pending_;
  OwnedBytes results_{nullptr, [](std::byte*) {}};  // pinned
  std::int64_t results_bytes_ = 0, results_used_ = 0;
  // Kept from step to step, so that they stop growing.
  std::vector<SampleRow> rows_;
  std::vector<SeenToken> seen_;
};

}  // namespace lathe::cuda
