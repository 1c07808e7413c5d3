// An answer as the routes' formats see it: choices with text and tokens, how they ended, usage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum.h"
#include "io/tokenizer/tokenizer.h"
#include "kernels/sampling.h"
#include "server/markup/text_parts.h"
#include "server/openai/api_request.h"

namespace lathe {

/// stop        a stop token or a stop string
/// length      max_tokens
/// tool_calls  stop, after a tool call
/// abort       /abort_request
#define LATHE_END_KINDS(X) X(stop) X(length) X(tool_calls) X(abort)
LATHE_ENUM(EndKind, LATHE_END_KINDS)

struct ChoiceEnd {
  EndKind kind = EndKind::stop;
  std::optional<std::string> text;    // the stop string
  std::optional<std::int32_t> token;  // the stop token
};

/// A tool call with its id.
struct AnswerCall {
  std::string id;  // "call_...", or the model's own
  ToolCall call;
};

struct Choice {
  std::int32_t index = 0;
  std::size_t prompt = 0;  // index into AnswerHead::prompts
  // Everything so far; not kept for streams that send parts.
  std::string text;
  std::string reasoning;
  std::vector<AnswerCall> calls;
  std::vector<PartRun> order;  // of the three
  std::vector<SampledToken> tokens;
  std::optional<ChoiceEnd> end;
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
  double seconds = 0;  // since the request's arrival, at its latest token or at its end
};

/// What one step adds to a choice.
struct ChoicePart {
  std::string_view text;
  std::string_view reasoning;
  std::span<const AnswerCall> calls;
  std::size_t first_call = 0;  // index of the first one in the answer
  std::span<const SampledToken> tokens;
  std::span<const PartRun> order = {};  // of text, reasoning and calls
};

/// Wall times of a request, in seconds since its arrival.
struct RequestTimes {
  double started = 0;  // its first choice was admitted
  double first_token = 0;
  double ended = 0;
};

struct AnswerPrompt {
  // Filled if the answer shows them.
  std::string text;
  std::vector<std::int32_t> tokens;
  std::int64_t count = 0;  // tokens
  // The requested log-probabilities of its tokens; the first token has none.
  std::vector<SampledToken> logprobs = {};
  // [tokens] With them in text completions: where each begins in `text`, in code points.
  std::vector<std::int64_t> offsets = {};
};

/// Names of the reasoning fields.
struct ReasoningNames {
  bool reasoning_content = true;
  bool reasoning = true;
};

struct AnswerHead {
  std::string id;
  std::string request_id;    // of X-Request-Id
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string fingerprint;
  std::vector<AnswerPrompt> prompts;
  const Tokenizer* tokenizer = nullptr;
  ReasoningNames reasoning;
};

/// What ends OpenAI's and SGLang's streams.
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

/// Formats one request's answer. Calls for streams append whole events ("data: ...\n\n").
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  /// Whether streams keep Choice::text and tokens, too.
  virtual bool wants_all() const { return false; }
  /// Whether a step without text makes an event.
  virtual bool wants_tokens() const = 0;
  /// Called before a choice's first part, in order of indices.
  virtual void open(Choice& choice, std::string& out) = 0;
  virtual void part(Choice& choice, const ChoicePart& part, std::string& out) = 0;
  virtual void end(Choice& choice, std::string& out) = 0;
  /// Called after the last choice has ended.
  virtual void close(std::span<const Choice> choices, const RequestTimes& times,
                     std::string& out) = 0;
  /// Ends a stream with an error instead of the ends of its choices.
  virtual void fail(const ApiError& error, std::string& out) = 0;
  /// Sent after everything else, by itself; empty: nothing.
  virtual std::string_view last() const = 0;
  /// Formats a whole answer.
  virtual std::string whole(std::span<Choice> choices, const RequestTimes& times) = 0;
};

/// `request` and `head` outlive the format.
std::unique_ptr<AnswerFormat> make_chat_format(const ApiRequest& request, const AnswerHead& head);
std::unique_ptr<AnswerFormat> make_completion_format(const ApiRequest& request,
                                                     const AnswerHead& head);
std::unique_ptr<AnswerFormat> make_generate_format(const ApiRequest& request,
                                                   const AnswerHead& head);

}  // namespace lathe
