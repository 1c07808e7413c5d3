// Draws a step's tokens on the device: brings parameters, starts the sampler, and reads what that
// wrote to pinned memory. Tokens stay on the device, too, where the next step may read them before
// the host does.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/execution.h"
#include "base/memory.h"
#include "base/result.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/sm90/sampling/sampling.h"

namespace lathe::cuda {

class Draws {
 public:
  /// Brings what is needed to draw from `rows`, whose logits lie on the device. The sampler gets
  /// `places` rows and draws nothing behind those, so that a recording of it serves any number.
  /// Errors: no memory.
  Result<void> bring(std::span<const SampleArgs> rows, std::span<std::optional<SampledToken>> out,
                     std::int64_t places, Staging& staging);
  /// Whether bring() has come and neither start() nor started().
  bool waits() const { return brought_.has_value(); }
  /// Hashes all that a recording of start() holds; 0 without draws to start.
  std::uint64_t key() const;
  /// Starts the draws that wait. Errors: a launch.
  Result<void> start(Arena& tensors, cudaStream_t stream);
  /// A recording has started them.
  void started();
  /// What follows belongs to the next step. Precondition: finish() or drop() came for the step
  /// before this one.
  void turn() { now_ = 1 - now_; }
  /// Fills every `out` of this step, once the stream has been waited for.
  void finish() {
    brought_.reset();
    finish(steps_[now_]);
  }
  /// Likewise of the step before turn().
  void finish_previous() { finish(steps_[1 - now_]); }
  /// Forgets all of them instead, after an error.
  void drop() {
    brought_.reset();
    for (OfStep& step : steps_) step.drop();
  }
  /// [rows of the last start()] On the device; null before the first.
  const std::int32_t* tokens() const { return tokens_; }

 private:
  // Log-probabilities of a row.
  struct Wanted {
    std::int32_t likeliest = -1;      // as SampleRow
    std::vector<std::int32_t> asked;  // likewise
  };
  // Of one call: what the device writes to OfStep::results from `at` on.
  struct Pending {
    std::span<std::optional<SampledToken>> out;
    std::vector<Wanted> wanted = {};  // [rows], or empty where none wants any
    std::int64_t at = 0;
    std::int64_t top = 0;  // tokens likeliest or asked for, of all rows
  };
  struct Brought {
    Pending pending;
    SampleParams params;  // without `values`
    bool weighs = false;  // the sampler needs those
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
  Result<void> bring_lists(const SampleArgs& args, Staging& staging, SampleRow& row);

  OfStep steps_[2];
  int now_ = 0;
  std::optional<Brought> brought_;
  Scratch drawn_{kDeviceMemory};  // tokens of start()
  const std::int32_t* tokens_ = nullptr;
  // Kept from step to step, so that they stop growing.
  std::vector<SeenToken> seen_;
  std::vector<std::int32_t> seen_places_;  // zeros
};

}  // namespace lathe::cuda
