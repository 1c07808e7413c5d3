// Draws a step's tokens on the device: uploads parameters, and brings tokens back. Tokens stay on
// the device, too, where the next step may read them before the host does.
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
  /// What follows belongs to the next step. Precondition: finish() or drop() came for the step
  /// before this one.
  void turn() { now_ = 1 - now_; }
  /// Fills every `out` of this step, once the stream has been waited for.
  void finish() { finish(steps_[now_]); }
  /// Likewise of the step before turn().
  void finish_previous() { finish(steps_[1 - now_]); }
  /// Forgets all of them instead, after an error.
  void drop() {
    for (OfStep& step : steps_) step.drop();
  }
  /// [rows of the last start()] On the device; null before the first.
  const std::int32_t* tokens() const { return tokens_; }

 private:
  // Of one call: what the device writes, in this order, from `at` on.
  struct Pending {
    std::span<std::optional<SampledToken>> out;
    std::vector<std::int32_t> likeliest;           // [rows] as SampleRow
    std::vector<std::vector<std::int32_t>> asked;  // [rows] likewise
    std::int64_t at = 0;                           // in OfStep::results
    std::int64_t top = 0;                          // tokens likeliest or asked for, of all rows
  };
  struct Layout;
  struct OfStep {
    std::vector<Pending> pending;
    OwnedBytes results{nullptr, [](std::byte*) {}};  // pinned
    std::int64_t bytes = 0, used = 0;
    void drop() {
      pending.clear();
      used = 0;
    }
  };
  static void finish(OfStep& step);
  Result<void> make_room(OfStep& step, std::int64_t bytes);
  Result<std::span<const SampleRow>> bring(std::span<const SampleArgs> rows, Staging& staging,
                                           Pending& pending);

  OfStep steps_[2];
  int now_ = 0;
  OwnedBytes made_{nullptr, [](std::byte*) {}};  // [made_bytes_] on the device
  std::int64_t made_bytes_ = 0;
  const std::int32_t* tokens_ = nullptr;
  // Kept from step to step, so that they stop growing.
  std::vector<SampleRow> rows_;
  std::vector<SeenToken> seen_;
};

}  // namespace lathe::cuda
