#include "tools/bench/model/check_engine_tests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/integers.h"
#include "engine/draft/draft_kind.h"

namespace lathe {
namespace {

std::int64_t largest_batch(const std::vector<EngineTest>& tests) {
  std::int64_t out = 0;
  for (const EngineTest& t : tests) out = std::max(out, t.batch);
  return out;
}

// The flag that gives batches.
const char* batch_flag(const BenchEngineOptions& options) {
  return options.tests.empty() ? "--batch" : "--tests";
}

Result<void> check_shared_prefix(const BenchEngineOptions& options,
                                 const std::vector<EngineTest>& tests) {
  const std::int64_t shared = options.shared_prefix_tokens;
  if (shared == 0) return {};
  std::int64_t least = shared;
  for (const EngineTest& t : tests) least = std::min(least, t.depth);
  if (shared > least) {
    return Error{ErrorCode::out_of_range, "--shared-prefix-tokens",
                 fmt::format("at most the depth of every test, {}", least),
                 fmt::format("{}", shared), fmt::format("--n-depth {}", shared)};
  }
  if (options.model.no_prefix_cache) {
    return Error{ErrorCode::invalid_argument, "--shared-prefix-tokens", "a prefix cache with it",
                 "--disable-radix-cache", "leave one of them out"};
  }
  if (largest_batch(tests) > 1) return {};
  return Error{ErrorCode::invalid_argument, "--shared-prefix-tokens",
               "a test of 2 requests or more, which share them", "1 request in every test",
               options.tests.empty() ? "--batch 2" : "such as --tests tg64@64x2"};
}

// Prompts would be computed from their first token, and their rate would be that of more tokens.
Result<void> check_depths(const BenchEngineOptions& options, const std::vector<EngineTest>& tests) {
  if (!options.model.no_prefix_cache) return {};
  for (const EngineTest& t : tests) {
    if (t.decodes || t.depth == 0) continue;
    return Error{ErrorCode::invalid_argument, "--disable-radix-cache",
                 "prefill at depth 0, as the cache keeps no tokens",
                 fmt::format("{}@{}", t.name(), t.depth), "leave it out"};
  }
  return {};
}

// The flag that asks for guesses; null: none. Whether its value is right is the runtime's to say.
const char* draft_flag(const BenchEngineOptions& options) {
  const RuntimeOptions& r = options.model.runtime;
  const auto draft = parse_draft(r.draft, r.draft_model);
  if (draft && draft->kind != DraftKind::none) {
    return r.draft_model.empty() ? "--draft" : "--speculative-draft-model-path";
  }
  if (options.draft_acceptance > 0) return "--draft-acceptance";
  return r.plan_request.draft_tokens > 0 ? "--draft-tokens" : nullptr;
}

Result<void> check_drafts(const BenchEngineOptions& options, const std::vector<EngineTest>& tests) {
  const char* const flag = draft_flag(options);
  if (flag == nullptr || std::ranges::any_of(tests, &EngineTest::decodes)) return {};
  return Error{ErrorCode::invalid_argument, flag, "a test of decode with it",
               options.tests.empty() ? "--n-gen 0"
                                     : fmt::format("--tests {}", fmt::join(options.tests, ",")),
               "leave it out"};
}

Result<void> check_requests(const BenchEngineOptions& options,
                            const std::vector<EngineTest>& tests) {
  const std::int64_t largest = largest_batch(tests);
  const std::int64_t running = options.model.runtime.plan_request.max_running_requests;
  if (largest <= running) return {};
  return Error{ErrorCode::out_of_range, batch_flag(options),
               fmt::format("at most {}, the requests that run at once", running),
               fmt::format("{}", largest), fmt::format("--max-running-requests {}", largest)};
}

// Requests that run at once for each one of a batch: gain() times a check's rows as that many.
std::int64_t copies_of(const BenchEngineOptions& options, const ModelPlan& plan) {
  return options.draft_acceptance > 0 ? 1 + plan.draft_tokens() : 1;
}

Result<void> check_context(const BenchEngineOptions& options, const EngineTest& test,
                           const ModelConfig& config, const ModelPlan& plan) {
  const std::int64_t context = plan.context_length();
  const std::int64_t needed = test.context();
  if (needed <= context) return {};
  std::string flag = "--tests";
  if (options.tests.empty()) flag = test.decodes ? "--n-gen" : "--n-prompt";
  if (options.tests.empty() && test.depth > 0) flag += ", --n-depth";
  const std::int64_t fits = context - (needed - test.tokens);
  std::string way_out = "a smaller depth";
  if (needed <= config.max_context) {
    way_out = fmt::format("--context-length {}", needed);
  } else if (fits > 0) {
    way_out = fmt::format("at most {} tokens at that depth", fits);
  }
  return Error{ErrorCode::out_of_range, std::move(flag),
               fmt::format("tests within the context of {} tokens", context),
               fmt::format("{} at depth {}: {}", test.name(), test.depth, needed),
               std::move(way_out)};
}

}  // namespace

Result<void> check_engine_flags(const BenchEngineOptions& options,
                                const std::vector<EngineTest>& tests) {
  for (const auto& check : {check_shared_prefix, check_depths, check_drafts, check_requests}) {
    if (auto ok = check(options, tests); !ok) return ok;
  }
  return {};
}

Result<void> check_engine_plan(const BenchEngineOptions& options,
                               const std::vector<EngineTest>& tests, const ModelConfig& config,
                               const ModelPlan& plan) {
  for (const EngineTest& test : tests) {
    if (auto ok = check_context(options, test, config, plan); !ok) return ok;
  }
  if (options.draft_acceptance <= 0) return {};
  if (plan.draft_tokens() == 0) {
    return Error{ErrorCode::invalid_argument, "--draft-acceptance", "a drafter with it",
                 "--draft none", "--draft ngram, mtp or DIR"};
  }
  const std::int64_t running = options.model.runtime.plan_request.max_running_requests;
  for (const EngineTest& test : tests) {
    const std::int64_t rows = test.batch * copies_of(options, plan);
    if (!test.decodes || rows <= running) continue;
    return Error{ErrorCode::out_of_range, "--max-running-requests",
                 fmt::format("at least {} with --draft-acceptance: a request for each row", rows),
                 fmt::format("{}", running),
                 fmt::format("pass that, or a smaller {}", batch_flag(options))};
  }
  return {};
}

Result<void> check_engine_cache(const BenchEngineOptions& options,
                                const std::vector<EngineTest>& tests, const ModelPlan& plan,
                                std::int64_t held) {
  const std::int64_t copies = copies_of(options, plan);
  const std::int64_t asked = options.model.runtime.plan_request.max_total_tokens;
  for (const EngineTest& t : tests) {
    const std::int64_t each = round_up(t.positions(plan.draft_tokens()), plan.block_tokens);
    const std::int64_t shared = std::min(options.shared_prefix_tokens, t.depth);
    const std::int64_t common = shared / plan.block_tokens * plan.block_tokens;
    const std::int64_t batch = t.batch * (t.decodes ? copies : 1);
    const std::int64_t needed = common + batch * (each - common);
    if (needed <= held) continue;
    const std::int64_t fits = std::max<std::int64_t>(0, held - common) / (each - common) / copies;
    const std::string way_out = asked > 0  ? fmt::format("--max-total-tokens {}", needed)
                                : fits > 0 ? fmt::format("a batch of {}", fits)
                                           : "a smaller --n-prompt, --n-gen or --n-depth";
    return Error{ErrorCode::out_of_range, batch_flag(options),
                 fmt::format("at most the {} tokens that the cache holds", held),
                 fmt::format("{} requests of {} tokens: {}", batch, each, needed), way_out};
  }
  return {};
}

}  // namespace lathe
