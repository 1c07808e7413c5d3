// The tasks over every legal plan of a model, each compared with the plain plan: two-byte keys,
// read in place, each prompt in one chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runtime.h"
#include "plan/plan_request.h"
#include "tools/eval/eval_run.h"

namespace lathe {

/// The result of one task's run, without its answers.
struct TaskFigures {
  EvalTaskKind kind = EvalTaskKind::arithmetic;
  std::int64_t items = 0;
  std::int64_t right = 0;
  std::int64_t invalid = 0;
  double seconds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t answer_tokens = 0;
  DraftStats drafts;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> groups;  // right, items

  double accuracy() const { return static_cast<double>(right) / static_cast<double>(items); }
  Interval interval() const { return wilson_interval(right, items); }
};
TaskFigures figures_of(const EncodedTask& task, const TaskRun& run);

struct PlanRow {
  std::string layout;
  std::string prefill;  // kinds, in the order in which routes are preferred
  std::string decode;
  std::int64_t chunk = 0;      // rows of one prefill step
  double bytes_per_token = 0;  // of cache, over all layers
  int threads = 0;
  std::string arithmetic;  // of GEMMs with weights
  std::vector<TaskFigures> tasks;
  Agreement agreement;  // with the first row
  // The score of a text, if there is one, and its difference from the first row's.
  std::optional<TextScore> score;
  ScoreDifference score_difference;

  double tokens_per_second() const;  // of answers, over all tasks
};

/// Tokens to compute the perplexity of, in windows of `window` tokens
/// (Evaluator::score()); empty: none.
struct ScoredText {
  std::vector<std::int32_t> tokens;
  std::int64_t window = 0;
};

/// Rows: the plain plan, then every legal pair of prefill and decode kinds over every layout
/// (including mixtures that the planner chooses itself), then the plain pair with chunks of 1, 7,
/// 64, 257 and 2048 tokens. `jobs` rows run at once and share the threads. `on_row` is called for
/// each finished row with the number of finished rows, the number of all rows, and the row. Errors:
/// Evaluator's.
Result<std::vector<PlanRow>, StartError> evaluate_plans(
    const RuntimeOptions& options, int jobs, const Tokenizer& tokenizer,
    const std::vector<EncodedTask>& tasks, const ScoredText& text,
    const std::function<void(std::size_t, std::size_t, const std::string&)>& on_row);

/// A line per row under a heading.
std::string plans_table(const std::vector<PlanRow>& rows);
nlohmann::ordered_json figures_json(const TaskFigures& figures);
nlohmann::ordered_json plans_json(const std::string& model, const std::vector<PlanRow>& rows);

}  // namespace lathe
