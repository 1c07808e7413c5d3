#include "server/openai/answer_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/text/utf8.h"

namespace lathe {
namespace {

struct Counts {
  std::int64_t prompt = 0, completion = 0, cached = 0, reasoning = 0;
};

Counts count(const AnswerHead& head, std::span<const Choice> choices) {
  Counts out;
  for (const AnswerPrompt& p : head.prompts) out.prompt += p.count;
  std::vector<bool> seen(head.prompts.size());
  for (const Choice& c : choices) {
    out.completion += c.completion_tokens;
    out.reasoning += c.reasoning_tokens;
    // Count a prompt's first choice alone: the others always find the prompt in the cache.
    if (!seen[c.prompt]) out.cached += c.cached_tokens;
    seen[c.prompt] = true;
  }
  return out;
}

std::string_view bytes_of(const Tokenizer& tokenizer, std::int32_t token) {
  return tokenizer.has(token) ? std::string_view(tokenizer.bytes_of(token)) : std::string_view();
}

void write_chat_token(JsonWriter& json, const Tokenizer& tokenizer, std::int32_t token,
                      double logprob) {
  json.key("token").string(token_text(tokenizer, token)).key("logprob").number(logprob);
  json.key("bytes").begin_array();
  for (char c : bytes_of(tokenizer, token)) {
    json.number(std::int64_t{static_cast<unsigned char>(c)});
  }
  json.end_array();
}

// A token's name in the lists of text completions: incomplete UTF-8 is spelled in bytes.
std::string text_key(const ApiRequest& request, const Tokenizer& tokenizer, std::int32_t token) {
  if (request.tokens_as_ids) return fmt::format("token_id:{}", token);
  const std::string_view bytes = bytes_of(tokenizer, token);
  if (utf8_valid_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string out = "bytes:";
  for (char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

// The engine lists enough tokens for the longer of the prompt's and the answer's lists.
std::span<const TokenLogprob> likeliest(const SampledToken& token, std::int32_t count) {
  const std::span<const TokenLogprob> all = token.top;
  return all.first(std::min(all.size(), static_cast<std::size_t>(count)));
}

double milliseconds(double seconds) { return std::max(0.0, seconds) * 1e3; }
double rate(std::int64_t n, double seconds) {
  return seconds > 0 ? static_cast<double>(n) / seconds : 0;
}

}  // namespace

void write_usage(JsonWriter& json, const AnswerHead& head, std::span<const Choice> choices) {
  const Counts n = count(head, choices);
  json.begin_object();
  json.key("prompt_tokens").number(n.prompt).key("completion_tokens").number(n.completion);
  json.key("total_tokens").number(n.prompt + n.completion);
  json.key("prompt_tokens_details").begin_object();
  json.key("cached_tokens").number(n.cached).end_object();
  json.key("completion_tokens_details").begin_object();
  json.key("reasoning_tokens").number(n.reasoning).end_object();
  json.end_object();
}

void write_timings(JsonWriter& json, const AnswerHead& head, std::span<const Choice> choices,
                   const RequestTimes& t) {
  const Counts n = count(head, choices);
  const double prompt = t.first_token - t.started;
  const double answer = t.ended - t.first_token;
  json.begin_object();
  json.key("cache_n").number(n.cached).key("prompt_n").number(n.prompt - n.cached);
  json.key("prompt_ms").number(milliseconds(prompt));
  json.key("prompt_per_second").number(rate(n.prompt - n.cached, prompt));
  json.key("predicted_n").number(n.completion);
  json.key("predicted_ms").number(milliseconds(answer));
  json.key("predicted_per_second").number(rate(n.completion, answer));
  json.key("queue_ms").number(milliseconds(t.started));
  json.end_object();
}

void write_end(JsonWriter& json, const std::optional<ChoiceEnd>& end) {
  json.key("finish_reason");
  if (end) {
    json.string(name(end->kind));
  } else {
    json.null();
  }
  json.key("matched_stop");
  if (end && end->text) {
    json.string(*end->text);
  } else if (end && end->token) {
    json.number(std::int64_t{*end->token});
  } else {
    json.null();
  }
}

void write_chat_logprobs(JsonWriter& json, const Tokenizer& tokenizer,
                         std::span<const SampledToken> tokens) {
  json.begin_object().key("content").begin_array();
  for (const SampledToken& t : tokens) {
    json.begin_object();
    write_chat_token(json, tokenizer, t.token, t.logprob.value_or(0));
    json.key("top_logprobs").begin_array();
    for (const TokenLogprob& top : t.top) {
      json.begin_object();
      write_chat_token(json, tokenizer, top.token, top.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("refusal").null().end_object();
}

void write_text_logprobs(JsonWriter& json, const ApiRequest& request, const Tokenizer& tokenizer,
                         std::span<const SampledToken> tokens,
                         std::span<const std::int64_t> offsets) {
  json.begin_object().key("tokens").begin_array();
  for (const SampledToken& t : tokens) json.string(text_key(request, tokenizer, t.token));
  json.end_array().key("token_logprobs").begin_array();
  for (const SampledToken& t : tokens) {
    if (t.logprob) {
      json.number(*t.logprob);
    } else {
      json.null();  // the first token of a prompt
    }
  }
  json.end_array().key("top_logprobs").begin_array();
  for (const SampledToken& t : tokens) {
    if (!t.logprob) {
      json.null();
      continue;
    }
    // Likeliest first, so that of tokens with equal text the larger value stays.
    std::vector<std::pair<std::string, double>> entries;
    const auto add = [&](std::int32_t token, double logprob) {
      std::string key = text_key(request, tokenizer, token);
      for (const auto& [other, value] : entries) {
        if (other == key) return;
      }
      entries.emplace_back(std::move(key), logprob);
    };
    for (const TokenLogprob& top : likeliest(t, request.top_logprobs.value_or(0))) {
      add(top.token, top.logprob);
    }
    add(t.token, *t.logprob);
    json.begin_object();
    for (const auto& [key, value] : entries) json.escaped_key(key).number(value);
    json.end_object();
  }
  json.end_array().key("text_offset").begin_array();
  for (const std::int64_t offset : offsets) json.number(offset);
  json.end_array().end_object();
}

void write_prompt_logprobs(JsonWriter& json, const Tokenizer& tokenizer,
                           std::span<const SampledToken> tokens, std::int32_t top) {
  json.begin_array();
  for (const SampledToken& t : tokens) {
    if (!t.logprob) {
      json.null();
      continue;
    }
    const auto entry = [&](const TokenLogprob& e, std::optional<std::int64_t> rank) {
      json.key(fmt::format("{}", e.token)).begin_object();
      json.key("logprob").number(e.logprob).key("rank");
      if (rank) {
        json.number(*rank);
      } else {
        json.null();
      }
      json.key("decoded_token").string(token_text(tokenizer, e.token)).end_object();
    };
    json.begin_object();
    bool listed = false;
    std::int64_t rank = 0;
    for (const TokenLogprob& e : likeliest(t, top)) {
      entry(e, ++rank);
      listed = listed || e.token == t.token;
    }
    if (!listed) entry({t.token, *t.logprob}, std::nullopt);
    json.end_object();
  }
  json.end_array();
}

std::string token_text(const Tokenizer& tokenizer, std::int32_t token) {
  std::string out;
  append_lossy_utf8(out, bytes_of(tokenizer, token));
  return out;
}

void write_token_ids(JsonWriter& json, std::span<const std::int32_t> ids) {
  json.begin_array();
  for (std::int32_t id : ids) json.number(std::int64_t{id});
  json.end_array();
}

void write_token_ids(JsonWriter& json, std::span<const SampledToken> tokens) {
  json.begin_array();
  for (const SampledToken& t : tokens) json.number(std::int64_t{t.token});
  json.end_array();
}

}  // namespace lathe
