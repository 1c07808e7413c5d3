// What `lathe bench engine` refuses: tests and flags that do not fit each other, the model's plan
// or its cache.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/config/config.h"
#include "plan/model_plan.h"
#include "tools/bench/model/bench_engine.h"
#include "tools/bench/model/engine_tests.h"

namespace lathe {

/// Without a model. Errors: requests that would take turns; flags that no test makes use of.
Result<void> check_engine_flags(const BenchEngineOptions& options,
                                const std::vector<EngineTest>& tests);

/// Before weights are read. Errors: a test beyond the plan's context; --draft-acceptance without a
/// drafter, or with more rows of a check than requests run at once.
Result<void> check_engine_plan(const BenchEngineOptions& options,
                               const std::vector<EngineTest>& tests, const ModelConfig& config,
                               const ModelPlan& plan);

/// The error if a test needs more than the `held` tokens of the cache.
Result<void> check_engine_cache(const BenchEngineOptions& options,
                                const std::vector<EngineTest>& tests, const ModelPlan& plan,
                                std::int64_t held);

}  // namespace lathe
