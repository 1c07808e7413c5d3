// The engine on the CUDA backend, emulated: recorded steps against steps that are not, and what a
// step costs the host.
#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "kernels/cuda/fake/fake_cuda.h"
#include "model/gpu_model_checks.h"
#include "model/plan_model.h"

namespace lathe {
namespace {

constexpr std::int32_t kAnswer = 6;
constexpr std::int64_t kCacheTokens = 16 * 64;

// A cache and an engine on a backend of its own.
class GpuSetup {
 public:
  explicit GpuSetup(const EngineOptions& options, std::int64_t context = 128) {
    LoadOptions load;
    load.backend = backend_.get();
    load.expansion = false;
    model_ = load_model(std::string(LATHE_TEST_DATA) + "/../../models/tiny-v32", load).value();
    PlanRequest request;
    request.layout = "mla_bf16";
    request.page_size = 64;
    request.chunked_prefill_size = request.context_length = context;
    request.max_running_requests = 6;
    const auto plan = plan_model(model_->config(), std::nullopt, describe_machine(Device::sm90),
                                 request, registry_);
    EXPECT_TRUE(plan.ok());
    plan_ = *plan;
    tensors_.reserve(tensor_bytes(plan_));
    EXPECT_TRUE(backend_->reserve(plan_.budgets).ok());
    cache_.emplace(
        KvCache::create(plan_, pool_sizes(plan_, kCacheTokens), backend_->memory()).value());
    OpsContext ops;
    ops.backend = backend_.get();
    ops.precision = MatmulPrecision::bf16;
    ops.tensors = &tensors_;
    ops.control = &control_;
    engine_.emplace(Engine::create(*model_, *cache_, options, ops).value());
  }
  Engine& engine() { return *engine_; }
  const ModelConfig& config() const { return model_->config(); }
  const Arena& tensors() const { return tensors_; }
  const ModelPlan& plan() const { return plan_; }
  // What the plan says of all but the driver's own, which the fake runtime does not count.
  std::int64_t planned_bytes() const {
    return model_->weight_bytes() + static_cast<std::int64_t>(pool_bytes(plan_, kCacheTokens)) +
           plan_.buffer_bytes() - plan_.budget(BudgetKind::graphs)->bytes -
           plan_.budget(BudgetKind::reserve)->bytes;
  }

 private:
  std::unique_ptr<Backend> backend_ = std::move(cuda::make_cuda_backend(true)).value();
  Registry registry_ = gpu_kernels();
  Arena tensors_{backend_->memory()}, control_;
  std::unique_ptr<Model> model_;
  ModelPlan plan_;
  std::optional<KvCache> cache_;
  std::optional<Engine> engine_;
};

struct Answers {
  std::map<std::uint64_t, std::vector<std::int32_t>> tokens;  // by request
  std::map<std::uint64_t, Logits> logits;
};

Answers answers_of(EngineOptions options) {
  Answers run;
  options.on_logits = [&](RequestId id, std::span<const float> row) {
    run.logits[id.value].emplace_back(row.begin(), row.end());
  };
  GpuSetup setup(options);
  for (const int n : {7, 3, 12}) {
    Request r;
    r.prompt = some_tokens(n, setup.config().vocab);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = kAnswer;
    EXPECT_TRUE(setup.engine().submit(std::move(r)).ok());
  }
  while (!setup.engine().idle()) {
    const auto report = setup.engine().step();
    if (!report) {
      ADD_FAILURE() << report.error().message();
      break;
    }
    for (const auto& t : report->tokens) run.tokens[t.request.value].push_back(t.sampled.token);
  }
  return run;
}

TEST(GpuEngine, RecordedStepsGiveWhatOthersGive) {
  const std::int64_t before = cuda::fake::counts().graph_launches;
  const Answers recorded = answers_of({});
  EXPECT_GT(cuda::fake::counts().graph_launches, before);
  EngineOptions eager;
  eager.debug_nan = true;  // its steps are neither padded nor recorded
  const std::int64_t between = cuda::fake::counts().graph_launches;
  const Answers plain = answers_of(eager);
  EXPECT_EQ(cuda::fake::counts().graph_launches, between);
  ASSERT_EQ(recorded.tokens.size(), 3u);
  EXPECT_EQ(recorded.tokens, plain.tokens);
  for (const auto& [id, rows] : plain.logits) {
    const Logits& others = recorded.logits.at(id);
    ASSERT_EQ(rows.size(), others.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LT(relative_error(others[i], rows[i]), 5e-3) << id << ", " << i;
    }
  }
}

TEST(GpuEngine, AStepInFlightNeitherAllocatesNorWaits) {
  GpuSetup setup({});
  Request r;
  r.prompt = some_tokens(5, setup.config().vocab);
  r.sampling.temperature = 0;
  r.sampling.ignore_eos = true;
  r.sampling.max_tokens = 6;
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  for (int step = 0; step < 4; ++step) ASSERT_TRUE(setup.engine().step().ok());
  const cuda::fake::Counts before = cuda::fake::counts();
  ASSERT_TRUE(setup.engine().launch().ok());
  const cuda::fake::Counts after = cuda::fake::counts();
  EXPECT_EQ(after.waits, before.waits);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  EXPECT_EQ(after.copies_in, before.copies_in + 2);  // the step, and what is drawn from it
  EXPECT_EQ(after.copies_out, before.copies_out + 1);
  EXPECT_EQ(after.graph_launches, before.graph_launches + 1);
  ASSERT_TRUE(setup.engine().collect().ok());
  EXPECT_EQ(cuda::fake::counts().waits, before.waits + 1);
}

// The largest steps that the plan allows: a whole chunk, then every request decodes.
TEST(GpuEngine, AllocatesWhatThePlanNames) {
  const std::int64_t before = cuda::fake::device_bytes();
  constexpr std::int64_t kContext = 64;
  GpuSetup setup({}, kContext);
  const std::int64_t at_start = cuda::fake::device_bytes() - before;
  for (std::int64_t i = 0; i < setup.plan().max_requests(); ++i) {
    Request r;
    r.prompt = some_tokens(i == 0 ? kContext - 3 : 2, setup.config().vocab);
    r.sampling.temperature = 0.7f;
    r.sampling.logprobs = 5;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = 3;
    ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  }
  while (!setup.engine().idle()) ASSERT_TRUE(setup.engine().step().ok());
  EXPECT_EQ(setup.tensors().growths(), 1);
  const std::int64_t allocated = cuda::fake::device_bytes() - before;
  std::printf("%lld bytes at start, %lld at the end, %lld planned\n",
              static_cast<long long>(at_start), static_cast<long long>(allocated),
              static_cast<long long>(setup.planned_bytes()));
  EXPECT_LE(allocated, setup.planned_bytes());
  EXPECT_GE(static_cast<double>(allocated), 0.95 * static_cast<double>(setup.planned_bytes()));
  // Tables and logits, which the first step makes, and schedules.
  const auto late = [&](BudgetKind kind) { return setup.plan().budget(kind)->bytes; };
  EXPECT_LE(allocated - at_start, late(BudgetKind::logits) + late(BudgetKind::rope_tables) +
                                      late(BudgetKind::schedules) / 2);
}

TEST(GpuEngine, AnErrorOfTheDeviceEndsTheStepAndNamesIt) {
  GpuSetup setup({});
  Request r;
  r.prompt = some_tokens(5, setup.config().vocab);
  ASSERT_TRUE(setup.engine().submit(std::move(r)).ok());
  ASSERT_TRUE(setup.engine().launch().ok());
  cuda::fake::fail_next_wait(cudaErrorIllegalAddress);
  const auto report = setup.engine().collect();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::device);
}

}  // namespace
}  // namespace lathe
