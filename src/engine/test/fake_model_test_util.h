// FakeModel: a model for engine tests. Its logits are a hash of all keys of a row's request, read
// from the cache through the page table, so a wrong or lost page, a wrong position or another
// request's key changes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/runner/rank_group.h"
#include "engine/test/late_backend_test_util.h"
#include "kernels/devices/all.h"
#include "model/model.h"

namespace lathe {

/// The logits [vocab] after `tokens`, by the same formula without a cache.
std::vector<float> fake_logits(std::span<const std::int32_t> tokens, std::int32_t vocab);

class FakeModel : public Model {
 public:
  static constexpr std::int32_t kVocab = 48;
  static constexpr std::int32_t kEos = 7;
  static constexpr std::int32_t kLayers = 2;
  static constexpr std::int32_t kNanToken = 47;  // its key makes NaN after layer 1

  explicit FakeModel(const AttentionProblem& problem);
  explicit FakeModel(std::vector<LayerGroupConfig> groups);
  const ModelConfig& config() const override { return config_; }
  std::int64_t weight_bytes() const override { return 0; }
  StepWeights step_weights(std::int64_t) const override { return {}; }
  Result<ForwardResult> forward(const OpsContext& ops, const ForwardArgs& args) const override;

  mutable bool fail_next = false;  // the next forward() fails
  mutable bool fail_late = false;  // the same, after writing keys and states
  LateBackend* late = nullptr;     // if not null, runs the work of forward()
  mutable std::int64_t forwards = 0;
  mutable std::int64_t segments = 0;   // in the last forward()
  mutable std::int64_t step_rows = 0;  // in the last forward(), padding included

 private:
  void run(const ForwardArgs& args, std::int64_t rank, std::int64_t ranks) const;
  void write_keys(const ForwardArgs& args, std::size_t group, const Segment& segment) const;
  void read_tokens(const ForwardArgs& args, std::size_t group, const Segment& segment,
                   std::int64_t row, std::vector<std::int32_t>& tokens) const;
  std::vector<std::uint64_t> run_states(const ForwardArgs& args, std::size_t group,
                                        const Segment& segment) const;
  ModelConfig config_;
};

struct FakeOptions {
  LayoutKind layout = LayoutKind::gqa_bf16;  // or mla_bf16
  std::int32_t page_size = 4;
  std::int64_t pages = 256;
  std::int64_t context_length = 512;
  std::int64_t max_rows = 512;
  std::int64_t max_requests = 32;
  // Extend reads a compact buffer with room for one request of the longest context, so several
  // requests need several segments.
  bool compact_extend = false;
  // Another route for prefill up to this context; 0: one route.
  std::int64_t short_context = 0;
  // Another route for prefill of at least this many rows of a request; 0: one route.
  std::int64_t least_rows = 0;
  // A second layer group, of layer 1 alone, with a window of this many tokens; 0: none.
  std::int32_t window = 0;
  std::int32_t window_page_size = 4;
  std::int64_t window_pages = 256;
  // A state of the last group: a running checksum of the tokens.
  bool state = false;
  std::int32_t draft_tokens = kMaxDraftTokens;  // drafts that states have banks for
  bool late = false;                            // the backend is a LateBackend
  bool overlaps = false;                        // with late: it can have two steps in flight
  std::int32_t ranks = 1;        // each with all of the model; logits are dealt among them
  int most_delay = 0;            // of ranks, in microseconds
  std::int64_t fail_agree = -1;  // this agreement fails on the last rank
};

/// What one more rank has.
struct FakeRank {
  std::optional<KvCache> cache;
  std::optional<FakeModel> model;
  Arena arena;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> communicator;  // of a late backend
};

/// Plan, cache, model and memory for an engine; not movable.
struct FakeSetup {
  explicit FakeSetup(const FakeOptions& options = {});
  FakeSetup(const FakeSetup&) = delete;
  FakeSetup& operator=(const FakeSetup&) = delete;
  OpsContext ops() {
    OpsContext out;
    out.backend = backend.get();
    out.tensors = out.control = &arena;
    out.communicator = communicator;
    return out;
  }
  Engine engine(const EngineOptions& options = {});

  ModelPlan plan;
  std::optional<KvCache> cache;
  std::optional<FakeModel> model;
  Arena arena;
  std::unique_ptr<Backend> backend;
  LateBackend* late = nullptr;  // the backend, with FakeOptions::late

  // With several ranks.
  std::unique_ptr<RankGroup> rank_group;
  Communicator* communicator = nullptr;         // of rank 0
  std::unique_ptr<Communicator> communicator_;  // the same, of a late backend
  std::vector<std::unique_ptr<FakeRank>> others;
  OtherRanks other_ranks;

 private:
  void add_ranks(const FakeOptions& options, std::span<const PoolSize> sizes);
};

/// launch() and collect().
inline Result<void> run_batch(Runner& runner, std::span<const BatchItem> items,
                              const OpsContext& ops, bool find_non_finite) {
  if (auto ok = runner.launch(items, ops, find_non_finite); !ok) return ok;
  return runner.collect();
}

/// A request's expected answer, from fake_logits() and the sampler alone.
struct Answer {
  std::vector<std::int32_t> tokens;
  FinishReason reason = FinishReason::length;
  bool operator==(const Answer&) const = default;
};
/// `capacity` bounds prompt and answer; `seed` is for requests without one.
Answer expected_answer(const Request& request, std::int64_t capacity, std::uint64_t seed = 0);

}  // namespace lathe
