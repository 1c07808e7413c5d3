// A model's answers as text: sends requests to the engine, and turns tokens into text with a
// detokeniser and a matcher of stop strings.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/request/text_stream.h"
#include "engine/runtime.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {

/// One answer, complete or under way.
struct Answer {
  std::string text;
  std::vector<std::int32_t> tokens;
  std::vector<SampledToken> sampled;  // with log-probabilities, if they were asked for
  Finished finished;
  bool ended = false;
};

/// Tokens and seconds, for a closing line.
struct AnswerTimes {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t answer_tokens = 0;
  double prefill_seconds = 0;  // steps with prefill rows
  double decode_seconds = 0;   // steps with decode rows alone
  std::int64_t prefill_rows = 0;
  std::int64_t decode_rows = 0;  // of the steps that decode_seconds counts
};

class AnswerSet {
 public:
  /// Without a tokenizer (null) answers are tokens, and their text is empty.
  AnswerSet(Runtime& runtime, const Tokenizer* tokenizer)
      : runtime_(&runtime), tokenizer_(tokenizer) {}
  AnswerSet(Runtime& runtime, const Tokenizer& tokenizer) : AnswerSet(runtime, &tokenizer) {}

  /// `marks`: special tokens that are shown, with their texts. Errors: a stop string that is empty,
  /// and Engine::submit()'s. Returns the answer's index.
  Result<std::size_t> add(Request request, const std::vector<std::string>& stops,
                          std::vector<std::pair<std::int32_t, std::string>> marks = {});

  /// One step. `on_text` is called with each piece of text that is final; it may be empty. Errors:
  /// the engine's.
  Result<void> step(const std::function<void(std::size_t, const std::string&)>& on_text);
  void cancel(std::size_t index);
  bool done() const { return open_ == 0; }

  /// The answer's index; none for a request that is not in this set.
  std::optional<std::size_t> index_of(RequestId id) const {
    const auto at = index_of_.find(id.value);
    if (at == index_of_.end()) return std::nullopt;
    return at->second;
  }
  const Answer& answer(std::size_t index) const { return answers_[index]; }
  std::size_t size() const { return answers_.size(); }
  const AnswerTimes& times() const { return times_; }

 private:
  std::string text_of(std::size_t index, std::int32_t token);

  Runtime* runtime_;
  const Tokenizer* tokenizer_;
  std::vector<Answer> answers_;
  std::vector<TextStream> streams_;
  std::vector<std::vector<std::pair<std::int32_t, std::string>>> marks_;  // [answers]
  std::vector<RequestId> ids_;
  std::map<std::uint64_t, std::size_t> index_of_;
  std::size_t open_ = 0;
  AnswerTimes times_;
};

/// "prefill    512 tokens   812.3 tokens/s   (64 cached)" and a line for decode; ends with a
/// newline.
std::string describe(const AnswerTimes& times);

/// "drafts    4.10 tokens in each of 370 checks, ..." with a newline; empty without a drafter.
std::string describe_drafts(const Runtime& runtime);

}  // namespace lathe
