// FakeModel: a model for tests of the engine, whose logits are a hash of all keys that a row's
// request has in the cache, read through its page table. So a wrong page, a lost one, a wrong
// position or another request's key changes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/late_backend_test_util.h"
#include "kernels/all.h"
#include "model/model.h"

namespace lathe {

/// The logits after `tokens`, by the same formula without any cache. [vocab]
std::vector<float> fake_logits(std::span<const std::int32_t> tokens, std::int32_t vocab);

class FakeModel : public Model {
 public:
  static constexpr std::int32_t kVocab = 48;
  static constexpr std::int32_t kEos = 7;
  static constexpr std::int32_t kLayers = 2;
  static constexpr std::int32_t kNanToken = 47;  // a key of it makes NaN, after layer 1

  explicit FakeModel(const AttentionProblem& problem);
  explicit FakeModel(std::vector<LayerGroupConfig> groups);
  const ModelConfig& config() const override { return config_; }
  std::int64_t weight_bytes() const override { return 0; }
  std::int64_t decode_bytes() const override { return 0; }
  Result<ForwardResult> forward(const OpsContext& ops, const ForwardArgs& args) const override;

  mutable bool fail_next = false;  // the next forward() is an error
  mutable bool fail_late = false;  // the same, after it has written keys and states
  LateBackend* late = nullptr;     // not null: does the work of forward()
  mutable std::int64_t forwards = 0;
  mutable std::int64_t segments = 0;  // of the last forward

 private:
  void run(const ForwardArgs& args) const;
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
  // Extend reads a compact buffer of one longest request: several need several segments.
  bool compact_extend = false;
  // Another route for prefill up to this context; 0: one route.
  std::int64_t short_context = 0;
  // Another route for prefill of so many rows of a request or more; 0: one route.
  std::int64_t least_rows = 0;
  // A second layer group, of layer 1 alone, with a window of this many tokens; 0: none.
  std::int32_t window = 0;
  std::int32_t window_page_size = 4;
  std::int64_t window_pages = 256;
  // A state of the last group: a running checksum of the tokens.
  bool state = false;
  std::int32_t draft_tokens = kMaxDraftTokens;  // that states have banks for
  bool late = false;                            // the backend is a LateBackend
};

/// Plan, cache, model and memory for an engine; it stays where it was made.
struct FakeSetup {
  explicit FakeSetup(const FakeOptions& options = {});
  FakeSetup(const FakeSetup&) = delete;
  FakeSetup& operator=(const FakeSetup&) = delete;
  OpsContext ops() {
    OpsContext out;
    out.backend = backend.get();
    out.tensors = out.control = &arena;
    return out;
  }
  Engine engine(const EngineOptions& options = {});

  ModelPlan plan;
  std::optional<KvCache> cache;
  std::optional<FakeModel> model;
  Arena arena;
  std::unique_ptr<Backend> backend;
  LateBackend* late = nullptr;  // the backend, with FakeOptions::late
};

/// launch() and collect().
inline Result<void> run_batch(Runner& runner, std::span<const BatchItem> items,
                              const OpsContext& ops, bool find_non_finite) {
  if (auto ok = runner.launch(items, ops, find_non_finite); !ok) return ok;
  return runner.collect();
}

/// What a request has to give, worked out from fake_logits() and the sampler alone.
struct Answer {
  std::vector<std::int32_t> tokens;
  FinishReason reason = FinishReason::length;
  bool operator==(const Answer&) const = default;
};
/// `capacity` bounds prompt and answer; `seed` is for a request that brings none.
Answer expected_answer(const Request& request, std::int64_t capacity, std::uint64_t seed = 0);

}  // namespace lathe
