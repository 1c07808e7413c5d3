// Parts of answers shared by several formats.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/openai/answer.h"
#include "server/openai/json_writer.h"

namespace lathe {

/// {"prompt_tokens", "completion_tokens", "total_tokens", details}: a prompt counts once, however
/// many choices it has.
void write_usage(JsonWriter& json, const AnswerHead& head, std::span<const Choice> choices);
/// llama.cpp's `timings` object: counts and milliseconds.
void write_timings(JsonWriter& json, const AnswerHead& head, std::span<const Choice> choices,
                   const RequestTimes& times);
/// "finish_reason": ..., "matched_stop": ...
void write_end(JsonWriter& json, const std::optional<ChoiceEnd>& end);

/// Chat: {"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}
void write_chat_logprobs(JsonWriter& json, const Tokenizer& tokenizer,
                         std::span<const SampledToken> tokens);
/// Text completions: {tokens, token_logprobs, top_logprobs, text_offset}. `offsets`: [tokens] where
/// they begin in the text, in code points.
void write_text_logprobs(JsonWriter& json, const ApiRequest& request, const Tokenizer& tokenizer,
                         std::span<const SampledToken> tokens,
                         std::span<const std::int64_t> offsets);

/// vLLM's `prompt_logprobs` of text completions: for each prompt token {"token id": {"logprob",
/// "rank", "decoded_token"}} of itself and the `top` likeliest, by rank; null for the first token.
/// Ranks start at 1; null for a token that is not among the likeliest.
void write_prompt_logprobs(JsonWriter& json, const Tokenizer& tokenizer,
                           std::span<const SampledToken> tokens, std::int32_t top);

/// The text that a token adds, as UTF-8; empty for an id that the tokenizer lacks.
std::string token_text(const Tokenizer& tokenizer, std::int32_t token);

void write_token_ids(JsonWriter& json, std::span<const std::int32_t> ids);
void write_token_ids(JsonWriter& json, std::span<const SampledToken> tokens);

}  // namespace lathe
