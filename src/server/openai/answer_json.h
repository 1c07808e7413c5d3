// The parts of answers that several formats share.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/openai/answer.h"
#include "server/openai/json_writer.h"

namespace lathe {

/// {"prompt_tokens", "completion_tokens", "total_tokens", details}: a prompt counts once however
/// many choices it has.
void write_usage(JsonWriter& json, const AnswerHead& head, std::span<const Choice> choices);
/// llama.cpp's object of counts and milliseconds.
void write_timings(JsonWriter& json, const AnswerHead& head, std::span<const Choice> choices,
                   const RequestTimes& times);
/// "finish_reason": ..., "matched_stop": ...
void write_end(JsonWriter& json, const std::optional<ChoiceEnd>& end);

/// Chat: {"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}
void write_chat_logprobs(JsonWriter& json, const Tokenizer& tokenizer,
                         std::span<const SampledToken> tokens);
/// Text completions: {tokens, token_logprobs, top_logprobs, text_offset}. `offset`: code points
/// before the tokens; advanced past them.
void write_text_logprobs(JsonWriter& json, const ApiRequest& request, const Tokenizer& tokenizer,
                         std::span<const SampledToken> tokens, std::int64_t& offset);

/// vLLM's `prompt_logprobs` of text completions: for each token of the prompt {"token id":
/// {"logprob", "rank", "decoded_token"}} of itself and of the `top` likeliest, in the order of
/// their rank; null for the first. The rank, from 1, is null for a token that is not among the
/// likeliest.
void write_prompt_logprobs(JsonWriter& json, const Tokenizer& tokenizer,
                           std::span<const SampledToken> tokens, std::int32_t top);

/// What a token adds to a text, as UTF-8; nothing for an id that the tokenizer lacks.
std::string token_text(const Tokenizer& tokenizer, std::int32_t token);

void write_token_ids(JsonWriter& json, std::span<const std::int32_t> ids);
void write_token_ids(JsonWriter& json, std::span<const SampledToken> tokens);

}  // namespace lathe
