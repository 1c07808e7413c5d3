// Shared by the model tests: the fixtures of tools/fixtures/make_model_fixtures.py, and a small
// runner that plans, allocates pages and calls forward().
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/devices/all.h"
#include "model/model.h"
#include "model/test/generated_checkpoint.h"
#include "model/test/tensor_file_test_util.h"
#include "plan/model_plan.h"

namespace lathe {

inline std::string fixture_dir(const std::string& name) {
  return fmt::format("{}/models/{}", LATHE_TEST_DATA, name);
}

/// A fixture's prompt and transformers' results for it.
struct ReferencePrompt {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;   // positions with logits, ascending
  std::vector<float> logits;             // [positions, vocab]
  std::vector<float> logits_bf16_cache;  // [positions, vocab] with the cache rounded to bf16
};

class Reference {
 public:
  explicit Reference(const std::string& name) : Reference(in_dir(fixture_dir(name))) {}
  /// Reads a folder elsewhere.
  static Reference in_dir(const std::string& dir) {
    return Reference(TensorFile(dir + "/reference.safetensors"));
  }

  ReferencePrompt prompt(int length) const {
    const std::string stem = "prompt." + std::to_string(length) + ".";
    return {values<std::int32_t>(stem + "tokens"), values<std::int32_t>(stem + "positions"),
            values<float>(stem + "logits"), values<float>(stem + "logits_bf16_cache")};
  }
  /// [rows, k] positions that a layer's indexer kept, ascending, then -1; of a wide model.
  std::vector<std::int32_t> keys(int length, int layer) const {
    return values<std::int32_t>("prompt." + std::to_string(length) + ".keys." +
                                std::to_string(layer));
  }

 private:
  explicit Reference(TensorFile file) : file_(std::move(file)) {}

  template <class T>
  std::vector<T> values(const std::string& name) const {
    return file_.values<T>(name);
  }

  TensorFile file_;
};

inline std::unique_ptr<Model> load_fixture(const std::string& name, ThreadPool* threads = nullptr) {
  LoadOptions options;
  options.threads = threads;
  auto model = load_model(checkpoint_dir(fixture_dir(name)), options);
  EXPECT_TRUE(model.ok()) << (model ? "" : model.error().message());
  return std::move(*model);
}

using Logits = std::vector<std::vector<float>>;  // [rows][vocab]

/// |a - b| / |b|
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = double{a[i]} - b[i];
    difference += d * d;
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

/// Runs requests chunk by chunk over one cache. Pages without tokens are NaN, and no request has
/// adjacent pages.
class ModelRunner {
 public:
  static constexpr std::int64_t kContext = 512;
  static constexpr std::int64_t kRequests = 4;

  struct Options {
    Device device = Device::cpu;
    std::string layout = "auto", prefill = "auto", decode = "auto";
    std::int32_t page_size = 0;
    int threads = 1;
    std::int64_t context = kContext;
    MatmulPrecision precision = MatmulPrecision::f32;
    std::int64_t gather_budget = std::int64_t{1} << 22;
    Backend* backend = nullptr;  // the backend that prepared the weights; null: one of `device`
    Communicator* communicator = nullptr;  // of the model's rank; null: the model is whole
    Registry (*kernels)() = all_kernels;
  };
  /// A request's rows in a batch.
  struct Chunk {
    int request = 0;
    std::vector<std::int32_t> tokens;
  };

  ModelRunner(const Model& model, const Options& options)
      : model_(model), registry_(options.kernels()), pool_(options.threads) {
    ops_.backend = options.backend;
    if (ops_.backend == nullptr) {
      backend_ = std::move(*make_backend(options.device));
      ops_.backend = backend_.get();
    }
    PlanRequest request;
    request.prefill = options.prefill;
    request.decode = options.decode;
    request.layout = options.layout;
    request.page_size = options.page_size;
    request.chunked_prefill_size = options.context;
    request.max_running_requests = kRequests;
    request.context_length = options.context;
    request.gather_budget = options.gather_budget;
    request.logits_budget = std::int64_t{1} << 22;
    const ModelPlanResult plan = make_model_plan(
        model.config().layer_groups(), describe_machine(options.device), request, registry_);
    EXPECT_TRUE(plan.ok());
    plan_ = std::make_unique<ModelPlan>(*plan);
    std::vector<PoolSize> sizes;
    for (const GroupPlan& g : plan_->groups) {
      pages_.push_back(kRequests * (options.context / g.plan.main().page_size + 1));
      sizes.push_back({.pages = pages_.back()});
    }
    for (std::size_t g = 0; g < plan_->groups.size(); ++g) {
      if (plan_->groups[g].plan.problem.two_sources()) sizes.push_back({.pages = pages_[g]});
    }
    const Memory& memory = ops_.backend->memory();
    cache_ = std::make_unique<KvCache>(*KvCache::create(*plan_, sizes, memory));
    if (memory.kind == MemoryKind::host) cache_->poison_free();
    arena_ = Arena(memory);
    lists_.resize(plan_->groups.size());
    ops_.execution = {&pool_, &scratch_};
    ops_.precision = options.precision;
    ops_.communicator = options.communicator;
    ops_.tensors = &arena_;
    ops_.control = &control_;
  }

  /// The first layer group's plan.
  const Plan& plan() const { return plan_->groups.front().plan; }
  KvCache& cache() { return *cache_; }
  /// A token's slot in the first layer group's pool.
  std::int32_t slot(int request, std::int32_t position) {
    const std::int32_t size = plan().main().page_size;
    const PageId page = pages_of(0, request)[static_cast<std::size_t>(position / size)];
    return slot_of(page, size, position % size).value;
  }
  Arena& arena() { return arena_; }
  const ForwardResult& result() const { return result_; }
  void find_non_finite() { find_non_finite_ = true; }

  /// One forward pass: an extend segment, then a decode segment (either may be empty). Returns the
  /// logits of all rows; of a rank's own rows, if the model is a rank's.
  Logits step(const std::vector<Chunk>& extend, const std::vector<Chunk>& decode = {}) {
    Backend& backend = *ops_.backend;
    std::vector<Segment> segments;
    std::vector<Step> steps;
    std::vector<PreparedStep> prepared;
    prepared.reserve(2 * plan_->groups.size());
    steps.reserve(2 * plan_->groups.size());
    std::vector<std::int32_t> tokens;
    for (std::size_t g = 0; g < plan_->groups.size(); ++g) {
      std::int64_t first = 0;
      for (const bool decoding : {false, true}) {
        const std::vector<Chunk>& chunks = decoding ? decode : extend;
        if (chunks.empty()) continue;
        std::vector<StepRequest> requests;
        for (const Chunk& c : chunks) {
          requests.push_back({.pages = pages_of(g, c.request),
                              .compressed_pages = pages_of(g, c.request),
                              .cached = cached_[c.request],
                              .rows = static_cast<std::int32_t>(c.tokens.size())});
          move_state(g, c.request, requests.back());
        }
        StepOptions room;
        room.main_pages = room.compressed_pages = pages_[g];
        if (const StatePool* state = cache_->state(g)) room.state = state->shape();
        steps.push_back(*Step::make(plan_->groups[g].plan, room));
        const auto planned =
            steps.back().plan({decoding ? Phase::decode : Phase::extend, requests});
        EXPECT_TRUE(planned.ok()) << (planned ? "" : planned.error().message());
        prepared.emplace_back(backend.memory());
        const GroupPlan& group = plan_->groups[g];
        const auto brought =
            backend.prepare_step(ops_, group.plan, cache_->keys(group.group.layers.front()),
                                 steps.back().view(), prepared.back());
        EXPECT_TRUE(brought.ok()) << (brought ? "" : brought.error().message());
        segments.push_back({&prepared.back().view, first});
        first += steps.back().view().rows;
      }
    }
    for (const std::vector<Chunk>* chunks : {&extend, &decode}) {
      for (const Chunk& c : *chunks) {
        cached_[c.request] += static_cast<std::int32_t>(c.tokens.size());
        tokens.insert(tokens.end(), c.tokens.begin(), c.tokens.end());
      }
    }
    const std::int64_t vocab = model_.config().vocab;
    const auto rows = static_cast<std::int64_t>(tokens.size());
    std::vector<std::int32_t> all(tokens.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    const Communicator* ranks = ops_.communicator;
    const std::int64_t own = ranks == nullptr ? rows : ranks->owned_rows(rows);
    std::vector<float> logits(static_cast<std::size_t>(own * vocab), std::nanf(""));
    const auto bytes = std::as_writable_bytes(std::span(logits));
    auto on_device = std::move(backend.memory().allocate(std::ssize(bytes))).value();
    EXPECT_TRUE(backend.upload(ops_, bytes, on_device.get()).ok());
    ForwardArgs args;
    args.tokens = backend.prepare_list(ops_, tokens).value();
    args.segments = segments;
    args.logit_rows = backend.prepare_list(ops_, all).value();
    args.logits = {on_device.get(), DType::f32, own, vocab, vocab};
    args.cache = cache_.get();
    args.find_non_finite = find_non_finite_;
    auto done = model_.forward(ops_, args);
    EXPECT_TRUE(done.ok()) << (done ? "" : done.error().message());
    if (done) result_ = *done;
    const auto waited = backend.wait();
    EXPECT_TRUE(waited.ok()) << (waited ? "" : waited.error().message());
    EXPECT_TRUE(backend.download(ops_, on_device.get(), bytes).ok());
    Logits out;
    for (std::int64_t r = 0; r < own; ++r) {
      out.emplace_back(logits.begin() + r * vocab, logits.begin() + (r + 1) * vocab);
    }
    return out;
  }

  /// Runs the prompt in chunks of `chunk` rows (0: one chunk), and its last `decoded` rows one by
  /// one in decode. Returns the logits of all rows.
  Logits prompt(int request, const std::vector<std::int32_t>& tokens, std::size_t chunk = 0,
                std::size_t decoded = 0) {
    Logits out;
    const std::size_t prefill = tokens.size() - decoded;
    for (std::size_t at = 0; at < tokens.size();) {
      const std::size_t left = at < prefill ? prefill - at : 1;
      const std::size_t n = at < prefill && chunk > 0 ? std::min(chunk, left) : left;
      const std::vector<Chunk> rows = {{request,
                                        {tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                         tokens.begin() + static_cast<std::ptrdiff_t>(at + n)}}};
      const Logits some = at < prefill ? step(rows) : step({}, rows);
      out.insert(out.end(), some.begin(), some.end());
      at += n;
    }
    return out;
  }

 private:
  // Requests alternate between two slots of a state.
  void move_state(std::size_t group, int request, StepRequest& to) {
    const StatePool* state = cache_->state(group);
    if (state == nullptr) return;
    const std::int32_t turn = turns_[{group, request}]++;
    const auto slot = [&](std::int32_t t) { return PageId(2 * request + t % 2); };
    if (to.cached > 0) to.state_before = slot(turn + 1);
    const std::int32_t last = (to.cached + to.rows - 1) / state->shape().page_size;
    state_lists_.emplace_back(static_cast<std::size_t>(last), PageId());
    state_lists_.back().push_back(slot(turn));
    to.state_slots = state_lists_.back();
  }

  // Request r has every kRequests-th page from the back.
  std::span<const PageId> pages_of(std::size_t group, int request) {
    auto& list = lists_[group][request];
    const std::int64_t count = pages_[group] / kRequests;
    for (std::int64_t i = std::ssize(list); i < count; ++i) {
      list.emplace_back(static_cast<std::int32_t>(pages_[group] - 1 - i * kRequests - request));
    }
    return list;
  }

  const Model& model_;
  Registry registry_;
  ThreadPool pool_;
  Scratch scratch_;
  Arena arena_, control_;
  std::unique_ptr<Backend> backend_;
  OpsContext ops_;
  std::unique_ptr<ModelPlan> plan_;
  std::unique_ptr<KvCache> cache_;
  std::vector<std::int64_t> pages_;                        // [groups]
  std::vector<std::map<int, std::vector<PageId>>> lists_;  // [groups]
  std::map<int, std::int32_t> cached_;
  std::map<std::pair<std::size_t, int>, std::int32_t> turns_;
  std::deque<std::vector<PageId>> state_lists_;
  ForwardResult result_;
  bool find_non_finite_ = false;
};

}  // namespace lathe
