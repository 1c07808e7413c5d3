// ApiRequest: the parsed body of a generating route, checked as far as possible without a model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/enum.h"
#include "base/result.h"
#include "ops/sampling_params.h"
#include "server/grammar/source.h"
#include "server/openai/api_error.h"
#include "server/openai/source_paths.h"

namespace lathe {

/// chat        /v1/chat/completions
/// completions /v1/completions
/// generate    /generate
/// responses   /v1/responses
/// messages    /v1/messages
#define LATHE_API_ROUTES(X) X(chat) X(completions) X(generate) X(responses) X(messages)
LATHE_ENUM(ApiRoute, LATHE_API_ROUTES)

/// Text, or the tokens themselves.
struct PromptInput {
  std::string text;
  std::vector<std::int32_t> tokens;
  bool is_text = true;
};

/// Sampling and end conditions of the answers to one prompt.
struct AnswerParams {
  // Absent values come from the model's generation_config.json.
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int32_t> top_k;
  SamplingParams sampling;                 // the rest; max_tokens and logprobs stay unset
  std::optional<std::int32_t> max_tokens;  // 0: only the prompt is computed
  std::int32_t n = 1;
  std::vector<std::string> stop;
  bool keep_stop = false;  // the stop string stays in the text
  bool skip_special_tokens = true;
  std::shared_ptr<grammar::Source> constraint;  // of the text; null: none
};

/// What a function that the model sees is in the request: a tool of a namespace, or one whose input
/// is a text (responses).
struct OtherTool {
  std::string space = {};  // empty: none
  std::string name;
  bool custom = false;  // its input is the argument "input"
};

struct ApiRequest : AnswerParams {
  ApiRoute route = ApiRoute::chat;
  /// Whether the prompt is `messages` through the chat template; responses and messages translate
  /// their own forms of messages and tools to chat's.
  bool is_chat() const { return route != ApiRoute::completions && route != ApiRoute::generate; }
  std::optional<std::string> model;
  nlohmann::ordered_json messages;   // is_chat(): an array
  std::vector<PromptInput> prompts;  // the others
  bool batch = false;                // prompts came as a list
  bool completion_tokens = false;    // max_tokens came as max_completion_tokens
  // [prompts] if sampling_params was a list, with equal n; empty: all prompts use the request's
  // own.
  std::vector<AnswerParams> each;
  const AnswerParams& params(std::size_t prompt) const {
    return each.empty() ? *this : each[prompt];
  }
  std::vector<std::int32_t> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;
  std::optional<std::int32_t> best_of;
  std::optional<std::int32_t> truncate_prompt_tokens;  // the last of the prompt's; -1: what fits

  bool stream = false;
  bool has_stream_options = false;
  bool include_usage = false;
  bool continuous_usage = false;

  // Log-probabilities of the answer's tokens, and of the `top_logprobs` likeliest at each position.
  bool logprobs = false;
  std::optional<std::int32_t> top_logprobs;
  std::vector<std::int32_t> logprob_ids;  // with logprobs: also of these tokens
  bool echo = false;
  // Text completions: log-probabilities of the prompt's tokens, in vLLM's shape.
  std::optional<std::int32_t> prompt_logprobs;
  bool return_token_ids = false;
  bool tokens_as_ids = false;

  // Chat.
  nlohmann::ordered_json tools;        // an array, or null
  nlohmann::ordered_json tool_choice;  // in chat's form, or null
  // Names of the functions that may be called, and their paths in the body; empty: all.
  std::vector<std::pair<std::string, std::string>> allowed_tools;
  bool may_call(const std::string& function) const;
  std::map<std::string, OtherTool> other_tools;  // by the name of the function
  /// Whether calls are the model's choice, and must follow a grammar: some tools are not allowed,
  /// or some tool's arguments must follow its schema.
  bool constrains_calls() const;
  /// Whether the answer must be a call.
  bool forces_call() const { return tool_choice == "required" || tool_choice.is_object(); }
  nlohmann::ordered_json template_kwargs;  // an object, or null
  std::optional<std::string> reasoning_effort;
  std::optional<std::int32_t> thinking_budget;  // most tokens of reasoning
  bool parallel_tool_calls = true;
  bool separate_reasoning = true;
  bool continue_final_message = false;
  bool add_generation_prompt = true;

  // /generate.
  std::int32_t logprob_start_len = -1;
  bool text_in_logprobs = false;
  bool incremental = false;
  std::vector<std::string> rids;  // the client's names, echoed: one, or [prompts]
  bool rid_list = false;          // they came as a list

  std::string cache_salt;  // only prompts with an equal one share the prefix cache
  std::int32_t priority = 0;

  nlohmann::ordered_json echoed;     // responses: fields of the body that the answer repeats
  bool encode_reasoning = false;     // responses: reasoning has encrypted_content
  SourcePaths sources;               // responses, messages: of what is chat's above
  std::vector<std::string> ignored;  // paths of what has no effect, as the client wrote them
  // Those of fields that the protocol has, which --strict-fields does not take for mistakes.
  std::vector<std::string> idle;
};

/// The prefix of the names of a prompt's AnswerParams in messages: "", "sampling_params." or
/// "sampling_params[2].".
std::string params_name(const ApiRequest& request, std::size_t prompt);

/// Of a model's name.
inline constexpr std::size_t kMostModelBytes = 512;

struct FieldLimits {
  std::int32_t max_logprobs = 20;
  std::int32_t max_n = 128;
  std::int32_t max_prompts = 256;
  bool priorities = false;  // `priority` may be other than 0
  bool strict = false;      // unknown fields are errors
};

/// Parses a body as JSON. Errors: 400 invalid_json: text that is not JSON or not UTF-8, with line
/// and column; more than kMostLevels levels or a number beyond double, with the path; a repeated
/// name in an object; a value that is not an object. 413 body_too_large with a path: more than 4
/// million values, or 400,000 names, lists and objects.
Result<nlohmann::ordered_json, ApiError> parse_body(std::string_view body);

/// Checks that no answer must be longer than it may be.
std::optional<ApiError> check_lengths(const ApiRequest& request);
/// Checks that the effort of reasoning, whose field is `path`, is also that of the template's
/// variables, if both are given.
std::optional<ApiError> check_effort(const ApiRequest& request, const std::string& path);
/// Checks tools and tool_choice against each other. Errors: 400 with the client's path.
std::optional<ApiError> check_tools(const ApiRequest& request);
/// Checks that `rid` names the request, or each of its prompts.
std::optional<ApiError> check_rids(const ApiRequest& request);

/// Of chat, completions and generate. Errors: 400 with the field's path: parse_body()'s; a field
/// that is missing, mistyped, out of range or unsupported.
Result<ApiRequest, ApiError> parse_request(ApiRoute route, std::string_view body,
                                           const FieldLimits& limits);

}  // namespace lathe
