#include "step/attend_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace lathe {
namespace {

using ::testing::HasSubstr;

// Arguments of the last calls of the toy kernel.
std::optional<AttendArgs> prepared, attended;

Result<void> toy_prepare(const AttendArgs& args, Schedule& schedule) {
  prepared = args;
  *reinterpret_cast<std::int64_t*>(schedule.take_host(8)) = args.max_kv_len;
  return {};
}
Result<void> toy_attend(const AttendArgs& args) {
  attended = args;
  return {};
}

const ConstPoolView kPool(nullptr, CacheLayout(LayoutKind::mla_bf16), 16, 40);

Plan toy_plan(const AttentionProblem& problem, const Kernel* kernel, KernelKind kind) {
  Plan plan;
  plan.problem = problem;
  plan.caches.push_back({CacheRole::main, CacheLayout(LayoutKind::mla_bf16), 16, 1});
  for (Phase phase : enum_values<Phase>()) {
    Route route;
    route.kernel = "toy";
    route.bound.kernel = kernel;
    route.kind = kind;
    route.q_dtype = DType::f32;
    plan.phase(phase) = {phase, "auto", {route}};
  }
  plan.max_rows = 64;
  plan.max_requests = 8;
  plan.context_length = 400;
  return plan;
}

// A step of two requests: 3 rows after 20 cached tokens, and 1 row after 4.
Step toy_step(const Plan& plan) {
  StepOptions options;
  options.main_pages = 40;
  auto step = Step::make(plan, options);
  EXPECT_TRUE(step.ok()) << (step ? "" : step.error().message());
  const std::vector<PageId> a{PageId(5), PageId(2)}, b{PageId(9)};
  StepRequest requests[2];
  requests[0].pages = a;
  requests[0].cached = 20;
  requests[0].rows = 3;
  requests[1].pages = b;
  requests[1].cached = 4;
  requests[1].rows = 1;
  EXPECT_TRUE(step->plan({Phase::extend, requests}).ok());
  return std::move(*step);
}

TEST(MakeSchedule, AsksTheRoutesKernelOnceWithTheShapesOfACall) {
  const Kernel kernel{{}, toy_attend, toy_prepare};
  AttentionProblem problem = deepseek_v32_problem(4);
  const Plan plan = toy_plan(problem, &kernel, KernelKind::inplace);
  const Step step = toy_step(plan);
  Schedule schedule(kHostMemory);
  StepView view = step.view();
  prepared.reset();
  ASSERT_TRUE(make_schedule(plan, {kPool}, {}, schedule, view).ok());
  ASSERT_TRUE(prepared);
  EXPECT_EQ(prepared->q.rows, 4);
  EXPECT_EQ(prepared->q.cols, 4 * 576);
  EXPECT_EQ(prepared->max_request_rows, 3);
  EXPECT_EQ(prepared->max_kv_len, 23);
  EXPECT_EQ(prepared->kv_lens.data(), step.view().kv_lens.data());
  // With at most 2048 keys all are selected, so lists are as long as the longest request.
  EXPECT_EQ(prepared->main.index_width, 23);
  EXPECT_EQ(slots_width(problem, view), 23);
  ASSERT_EQ(view.schedule, &schedule);

  const AttendOp op{.plan = &plan, .step = &view, .pool = kPool};
  ASSERT_TRUE((*kernel_of(*view.route))->attend(attend_args(op, {})).ok());
  ASSERT_EQ(attended->schedule, &schedule);
  EXPECT_EQ(*reinterpret_cast<const std::int64_t*>(attended->schedule->host()), 23);
}

TEST(MakeSchedule, NoneForKernelsThatPrepareNothingAndBehindAdapters) {
  const Kernel plain{{}, toy_attend, nullptr};
  const Kernel kernel{{}, toy_attend, toy_prepare};
  for (const bool adapter : {false, true}) {
    Plan plan = toy_plan(deepseek_v3_problem(4), adapter ? &kernel : &plain, KernelKind::gather);
    if (adapter) plan.phase(Phase::extend).routes[0].adapter.emplace();
    const Step step = toy_step(plan);
    Schedule schedule(kHostMemory);
    StepView view = step.view();
    view.schedule = &schedule;
    prepared.reset();
    ASSERT_TRUE(make_schedule(plan, {kPool}, {}, schedule, view).ok());
    EXPECT_FALSE(prepared);
    EXPECT_EQ(view.schedule, nullptr);
  }
}

TEST(KernelOf, NamesTheKernelThatCannotRun) {
  const Kernel described{{}, nullptr, nullptr};
  for (const Kernel* kernel : {static_cast<const Kernel*>(nullptr), &described}) {
    Route route;
    route.kernel = "sm90.toy";
    route.bound.kernel = kernel;
    const auto found = kernel_of(route);
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.error().message(), HasSubstr("sm90.toy"));
  }
}

}  // namespace
}  // namespace lathe
