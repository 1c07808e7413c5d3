// The ranks of a runtime after the first: each has a share of the model, a cache of as many pages,
// and a part of the threads.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>

#include "attn/draft_rows.h"
#include "engine/runner/memory_plan.h"
#include "engine/runtime.h"
#include "kernels/checked_communicator.h"
#include "kernels/devices/all.h"
#include "model/weights/kv_scales.h"

namespace lathe {
namespace {

// Runs body(rank) on all ranks. An error has the rank's name, but for rank 0's: what is wrong on
// all ranks reads as on one.
template <class Body>
Result<void> run_on_ranks(RankGroup& group, Body&& body) {
  return group.run([&](std::int32_t rank) -> Result<void> {
    const Result<void> result = body(rank);
    if (result || rank == 0) return result;
    Error error = result.error();
    error.field = fmt::format("rank {}: {}", rank, error.field);
    return error;
  });
}

}  // namespace

Runtime::Runtime(int threads, std::int32_t ranks)
    : threads_(ranks == 1 ? threads
                          : std::max(1, (threads > 0 ? threads
                                                     : describe_machine(Device::cpu).processors) /
                                            ranks)) {}

Runtime::~Runtime() {
  if (!process_.is_this()) (void)group_.release();
}

RankModel Runtime::Rank::target() { return {model.get(), &*cache, ops}; }
RankModel Runtime::Rank::draft() { return {draft_model.get(), &*draft_cache, ops}; }

// Makes the ranks' threads and backends. Rank 0's backend, which the plan was made with, gets its
// communicator.
Result<void> Runtime::make_ranks(const RuntimeOptions& options) {
  const std::int32_t tp = plan_.ranks.parallel.tp;
  if (tp == 1) return {};
  if (options.make_model) {
    return Error{ErrorCode::unsupported, "--tp", "1 with this model", std::to_string(tp), ""};
  }
  backend_.reset();
  const std::span<const std::int32_t> all(gpus_);
  auto communicators = make_communicators(
      machine_.device, tp, all.first(gpus_.empty() ? 0 : static_cast<std::size_t>(tp)),
      plan_.ranks.exchange.kind == ExchangeKind::nccl);
  if (!communicators) return communicators.error();
  RankGroupOptions watched;
  if (is_gpu(machine_.device)) {
    watched.spin = std::chrono::milliseconds(1);
    watched.limits.exchange = std::chrono::seconds(20);
  }
  group_ = std::make_unique<RankGroup>(std::move(*communicators), std::move(watched));
  for (std::int32_t r = 1; r < tp; ++r) {
    ranks_.push_back(std::make_unique<Rank>(threads_.threads()));
  }
  return group_->run([&](std::int32_t r) -> Result<void> {
    Communicator& own = group_->communicator(r);
    auto backend = make_backend(machine_.device, gpu_of(r), &own);
    const Result<void> made = backend ? Result<void>() : Result<void>(backend.error());
    if (auto ok = own.agree(made); !ok) return ok;
    (r == 0 ? backend_ : rank(r).backend) = std::move(*backend);
    return {};
  });
}

// Allocates the ranks' buffers, as large as rank 0's. first: rank 0's.
Result<void> Runtime::reserve_ranks(OpsContext& first, bool check) {
  if (!group_) return {};
  const auto communicator = [&](std::int32_t r, std::unique_ptr<Communicator>& checked) {
    Communicator& own = group_->communicator(r);
    if (!check) return &own;
    checked = make_checked_communicator(own);
    return checked.get();
  };
  first.communicator = communicator(0, checked_);
  const ModelPlan* draft = draft_memory().plan;
  return run_on_ranks(*group_, [&](std::int32_t r) -> Result<void> {
    if (r == 0) return {};
    Rank& own = rank(r);
    own.tensors = Arena(own.backend->memory());
    own.tensors.reserve(std::max(tensor_bytes(plan_), draft != nullptr ? tensor_bytes(*draft) : 0));
    own.ops = first;
    own.ops.backend = own.backend.get();
    own.ops.communicator = communicator(r, own.checked);
    own.ops.execution.threads = &own.threads;
    own.ops.execution.scratch = &own.scratch;
    own.ops.tensors = &own.tensors;
    own.ops.control = &own.control;
    return own.backend->reserve(shared_budgets(plan_, draft));
  });
}

// Loads the shares of the model, or of the draft model. `load` is rank 0's and gets its share, too.
Result<std::unique_ptr<Model>> Runtime::load_shares(const LoadModel& load, LoadOptions options,
                                                    const Parallel& parallel, bool draft) {
  options.parallel = parallel;
  if (!group_) return load(options);
  std::unique_ptr<Model> first;
  const Result<void> ok = run_on_ranks(*group_, [&](std::int32_t r) -> Result<void> {
    LoadOptions own = options;
    own.rank = r;
    if (r > 0) {
      Rank& of = rank(r);
      own.threads = &of.threads;
      own.backend = of.backend.get();
      own.on_progress = nullptr;
    }
    auto model = load(own);
    if (!model) return model.error();
    if (r == 0) {
      first = std::move(*model);
      return {};
    }
    Rank& of = rank(r);
    (draft ? of.draft_model : of.model) = std::move(*model);
    return {};
  });
  if (!ok) return ok.error();
  return first;
}

// Makes caches like rank 0's.
Result<void> Runtime::make_rank_caches(std::int64_t tokens, bool counts) {
  if (!group_) return {};
  return run_on_ranks(*group_, [&](std::int32_t r) -> Result<void> {
    if (r == 0) return {};
    Rank& of = rank(r);
    auto cache = KvCache::create(plan_, pool_sizes(plan_, tokens), of.backend->memory());
    if (!cache) return cache.error();
    of.cache.emplace(std::move(*cache));
    if (has_tensor_scales(plan_)) of.cache->set_scales(kv_scales_);
    if (counts) of.cache->count_values();
    if (!draft_model_) return {};
    const ModelPlan& draft = draft_model_->plan;
    auto own = KvCache::create(draft, pool_sizes(draft, tokens), of.backend->memory());
    if (!own) return own.error();
    of.draft_cache.emplace(std::move(*own));
    return {};
  });
}

// What the engine and the drafters need of the other ranks. Null: there are none.
const OtherRanks* Runtime::other_ranks() {
  if (!group_) return nullptr;
  other_ranks_.group = group_.get();
  if (other_ranks_.models.empty()) {
    for (const auto& rank : ranks_) other_ranks_.models.push_back(rank->target());
  }
  return &other_ranks_;
}

const OtherRanks* Runtime::draft_ranks() {
  if (!group_) return nullptr;
  draft_ranks_.group = group_.get();
  for (const auto& rank : ranks_) draft_ranks_.models.push_back(rank->draft());
  return &draft_ranks_;
}

// A step has up to max_rows() prefill rows, and the decode rows of all requests with their drafts.
Result<void> Runtime::reserve_exchanges() {
  if (!group_) return {};
  const std::int64_t decoding = decoding_rows(plan_.max_requests(), plan_.draft_tokens());
  const std::int64_t rows = plan_.max_rows() + decoding;
  const ExchangeLimits limits{.rows = rows,
                              .cols = model_->config().hidden,
                              .dtype = backend_->activations(),
                              .logit_rows = rows,
                              .most_columns = plan_.ranks.most.vocab.count,
                              .vocab = model_->config().vocab};
  return group_->run([&](std::int32_t r) {
    Communicator& own = group_->communicator(r);
    return own.agree(own.reserve(limits));
  });
}

}  // namespace lathe
