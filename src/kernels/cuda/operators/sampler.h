// Sampler: samples a step's tokens on the device. It copies the parameters there, launches the
// sampler, and reads the results from pinned memory that the sampler writes. A copy of the tokens
// stays on the device, where the next step can read them before the host does.
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

class Sampler {
 public:
  /// Copies the parameters of `rows`; their logits are on the device. The sampler is launched for
  /// `places` rows and skips those from rows.size() on, so one recording serves any number of rows.
  /// Errors: out of memory.
  Result<void> prepare(std::span<const SampleArgs> rows, std::span<std::optional<SampledToken>> out,
                       std::int64_t places, Staging& staging);
  /// Whether prepared samples wait for start() or started().
  bool is_prepared() const { return prepared_.has_value(); }
  /// Hash of everything that a recording of start() depends on; 0 if nothing is to be sampled.
  std::uint64_t key() const;
  /// Launches the kernel on the prepared samples. Errors: the launch.
  Result<void> start(Arena& tensors, cudaStream_t stream);
  /// Like start(), where a replayed graph has launched the sampler.
  void started();
  /// Begins the next step. Precondition: the results of the step before this one have been read
  /// (finish(), finish_previous()) or dropped.
  void turn() { now_ = 1 - now_; }
  /// Fills in every `out` of this step. Precondition: the stream has been waited for.
  void finish() {
    prepared_.reset();
    finish(steps_[now_]);
  }
  /// Fills in every `out` of the step before turn(). Precondition: that step has been waited for.
  void finish_previous() { finish(steps_[1 - now_]); }
  /// Forgets both steps after an error.
  void drop() {
    prepared_.reset();
    for (OfStep& step : steps_) step.drop();
  }
  /// [rows of the last start()] on the device; null before the first.
  const std::int32_t* tokens() const { return tokens_; }

  /// Allocates the records of place_draws(). Errors: out of memory.
  Result<void> reserve_records();
  /// With several ranks: the samples of the last start() as records by SampleArgs::place, for
  /// Communicator::share_records(). [rows] on the device, at the same address in every step.
  /// Errors: more rows than the records are; the launch. Call reserve_records() before.
  Result<DrawRecord*> place_draws(std::int64_t rows, cudaStream_t stream);
  /// What the last place_draws() returned, after the exchange; null before the first.
  const DrawRecord* shared() const { return shared_; }

 private:
  // Log-probabilities that a row asked for.
  struct Wanted {
    std::int32_t likeliest = -1;      // how many of the likeliest; -1: none (SampleRow::likeliest)
    std::vector<std::int32_t> asked;  // ids of tokens to report as well
                                      // (SampleRow::asked)
  };
  // One call of prepare(); the device writes its results to OfStep::results from byte `at` on.
  struct Pending {
    std::span<std::optional<SampledToken>> out;
    std::vector<Wanted> wanted = {};  // [rows], or empty if no row wants any
    std::int64_t at = 0;
    std::int64_t top = 0;  // entries for likeliest and asked tokens, of all rows
  };
  struct Prepared {
    Pending pending;
    SampleParams params;  // without `values`
    bool weighs = false;  // the sampler needs `values`
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
  Result<void> copy_lists(const SampleArgs& args, Staging& staging, SampleRow& row);

  OfStep steps_[2];
  int now_ = 0;
  std::optional<Prepared> prepared_;
  Scratch sampled_{kDeviceMemory};  // tokens of start()
  const std::int32_t* tokens_ = nullptr;
  SampleParams started_;  // of the last start(); no rows where nothing was sampled in the step
  Scratch records_{kDeviceMemory};
  const DrawRecord* shared_ = nullptr;
  // Reused in every step, so that they stop allocating.
  std::vector<SeenToken> seen_;
  std::vector<std::int32_t> seen_places_;  // zeros between calls
};

}  // namespace lathe::cuda
