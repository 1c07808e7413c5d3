// One run of a task's items through one engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runtime.h"
#include "io/tokenizer/tokenizer.h"
#include "tools/eval/eval_tasks.h"

namespace lathe {

/// A task with its prompts in tokens, by the model's chat template.
struct EncodedTask {
  EvalTask task;
  std::vector<std::vector<std::int32_t>> prompts;  // [items]
  // [items] tokens of the perfect answer and a few more: a longer answer is wrong anyway.
  std::vector<std::int32_t> limits;
};

/// Errors: the template's and the tokenizer's.
Result<EncodedTask> encode_task(EvalTask task, const std::string& model_directory,
                                const Tokenizer& tokenizer);

/// The result of one run of a task.
struct TaskRun {
  std::vector<std::vector<std::int32_t>> answers;  // [items] tokens
  std::vector<Mark> marks;                         // [items]
  std::vector<std::string> texts;                  // [items]
  double seconds = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t answer_tokens = 0;
  DraftStats drafts;
  // [traced items] The logits of every answer token, [tokens, vocab] each.
  std::vector<std::vector<float>> logits;

  std::int64_t right() const;
  std::int64_t invalid() const;
  /// By the items' group: (right answers, items).
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> groups(const EvalTask& task) const;
};

/// The surprisal of a text's scored tokens, in order, in nats.
struct TextScore {
  std::vector<double> nats;

  /// exp of the mean.
  double perplexity() const;
  /// The perplexity's 95 % interval, from the spread of the tokens' nats.
  Interval interval() const;
};
/// The mean of a's nats minus b's, and its 95 % interval. Precondition: both are of one text.
struct ScoreDifference {
  double mean = 0;
  Interval interval;
};
ScoreDifference difference(const TextScore& a, const TextScore& b);
nlohmann::ordered_json score_json(const TextScore& score);

/// Runs tasks on a model that it starts with the given options.
class Evaluator {
 public:
  /// Errors: as Runtime::create().
  static Result<std::unique_ptr<Evaluator>, StartError> create(RuntimeOptions options,
                                                               const Tokenizer& tokenizer);
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Answers all items greedily, submitted at once. `on_progress` is called with the number of
  /// ended items and the number of right ones; the first `traced` items keep their logits. Errors:
  /// the engine's; a request that ended with an error.
  Result<TaskRun> run(const EncodedTask& encoded, std::size_t traced,
                      const std::function<void(std::size_t, std::int64_t)>& on_progress);
  /// The likelihood of a text of at least two tokens, cut into windows of at most `window` tokens.
  /// A window's first half is prefilled as context, and its second half is scored token by token in
  /// decode. The next window begins at this one's second half. on_row, if there is one, gets the
  /// logits [vocab] of each scored token and its number. `window` 0: 1024, or the context if that
  /// is less. Errors: the engine's; fewer than two tokens; check_window()'s.
  Result<TextScore> score(std::span<const std::int32_t> tokens, std::int64_t window,
                          const std::function<void(std::size_t, std::span<const float>)>& on_row);
  /// Refuses a window of more tokens than context and cache hold.
  Result<void> check_window(std::int64_t window) const;
  /// How many tokens of `tokens` score() scores.
  std::size_t scored_tokens(std::size_t tokens, std::int64_t window) const;
  Runtime& runtime() { return *runtime_; }

 private:
  explicit Evaluator(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  const Tokenizer* tokenizer_;
  std::function<void(RequestId, std::span<const float>)> on_logits_;
  std::unique_ptr<Runtime> runtime_;
};

/// How far an answer agrees with another run's.
struct Agreement {
  std::int64_t tokens = 0;  // of the reference's answers
  std::int64_t equal = 0;   // those that the other run has at the same place
  double difference = 0;  // sum of |logit - reference logit|, where answers agreed up to the token
  std::int64_t differences = 0;  // terms of that sum
};
Agreement compare_runs(const TaskRun& reference, const TaskRun& other, std::int32_t vocab);

}  // namespace lathe
