// Answers of /v1/chat/completions and /v1/completions.
#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "server/openai/answer_json.h"
#include "server/openai/text_offsets.h"

namespace lathe {
namespace {

// {"id", "object", "created", "model", "system_fingerprint": the beginning of every object.
std::string begin_answer(const AnswerHead& head, std::string_view object) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  json.key("id").string(head.id).key("object").string(object);
  json.key("created").number(head.created).key("model").string(head.model);
  json.key("system_fingerprint").string(head.fingerprint);
  return out;
}

class OpenAiFormat : public AnswerFormat {
 public:
  OpenAiFormat(const ApiRequest& request, const AnswerHead& head, std::string_view chunk_object)
      : request_(&request),
        head_(&head),
        event_("data: " + begin_answer(head, chunk_object) + ",\"choices\":["),
        one_choice_(event_ + "{\"index\":") {}

  bool wants_tokens() const override {
    return request_->logprobs || request_->return_token_ids || request_->continuous_usage;
  }

  void close(std::span<const Choice> choices, const RequestTimes& times,
             std::string& out) override {
    if (!request_->include_usage) return;
    out += event_;
    out += ']';
    end_answer(choices, times, out);
    out += "\n\n";
  }

  void fail(const ApiError& error, std::string& out) override {
    out += "data: " + error.body() + "\n\n";
  }
  std::string_view last() const override { return kDone; }

 protected:
  // Writes an event with one choice; `write` adds the choice's members.
  template <class Write>
  void event(const Choice& choice, std::string& out, const Write& write) {
    begin_event(choice, out);
    JsonWriter json(out, /*first=*/false);
    write(json);
    end_event(choice, out);
  }

  // Writes an event up to the choice's index.
  void begin_event(const Choice& choice, std::string& out) const {
    out += one_choice_;
    append_json_integer(out, choice.index);
  }

  // `beside`: members after the choices, each with a comma before it.
  void end_event(const Choice& choice, std::string& out, std::string_view beside = {}) const {
    out += "}]";
    out += beside;
    if (request_->include_usage && !request_->continuous_usage) out += kNoUsage;
    if (request_->continuous_usage) {
      out += ",\"usage\":";
      JsonWriter usage(out);
      write_usage(usage, *head_, std::span(&choice, 1));
    }
    out += "}\n\n";
  }

  template <class Write>
  std::string whole_answer(std::string_view object, std::span<Choice> choices,
                           const RequestTimes& times, std::string_view beside, const Write& write) {
    std::string out = begin_answer(*head_, object) + ",\"choices\":";
    JsonWriter json(out);
    json.begin_array();
    for (Choice& c : choices) {
      json.begin_object().key("index").number(std::int64_t{c.index});
      write(json, c);
      json.end_object();
    }
    json.end_array();
    out += beside;
    end_answer(choices, times, out);
    return out;
  }

  // Writes ,"usage", "timings"}, the end of objects with final counts.
  void end_answer(std::span<const Choice> choices, const RequestTimes& times,
                  std::string& out) const {
    out += ",\"usage\":";
    JsonWriter usage(out);
    write_usage(usage, *head_, choices);
    out += ",\"timings\":";
    JsonWriter timings(out);
    write_timings(timings, *head_, choices, times);
    out += '}';
  }

  void write_ids(JsonWriter& json, std::span<const SampledToken> tokens) const {
    if (!request_->return_token_ids) return;
    json.key("token_ids");
    write_token_ids(json, tokens);
  }

  void write_prompt_ids(JsonWriter& json, const Choice& choice) const {
    if (!request_->return_token_ids) return;
    json.key("prompt_token_ids");
    write_token_ids(json, head_->prompts[choice.prompt].tokens);
  }

  // Where the counts come in a last event of their own, OpenAI's other events have a null.
  static constexpr std::string_view kNoUsage = ",\"usage\":null";

  const ApiRequest* request_;
  const AnswerHead* head_;
  std::string event_;       // the beginning of every event, up to its choices
  std::string one_choice_;  // the beginning of events with a choice, up to its index
};

class ChatFormat : public OpenAiFormat {
 public:
  ChatFormat(const ApiRequest& request, const AnswerHead& head)
      : OpenAiFormat(request, head, "chat.completion.chunk"), only_text_(!wants_tokens()) {
    if (request.include_usage) content_end_ += kNoUsage;
    content_end_ += "}\n\n";
  }

  void open(Choice& choice, std::string& out) override {
    if (only_text_) {
      std::string& begin = content_events_.emplace_back();
      begin_event(choice, begin);
      begin += R"(,"delta":{"content":)";
    }
    begin_event(choice, out);
    JsonWriter json(out, /*first=*/false);
    json.key("delta").raw(R"({"role":"assistant","content":""})");
    json.key("logprobs").null().key("finish_reason").null();
    write_ids(json, {});
    end_event(choice, out, prompt_ids(choice));
  }

  void part(Choice& choice, const ChoicePart& part, std::string& out) override {
    if (only_text_ && part.reasoning.empty() && part.calls.empty()) {
      out += content_events_[static_cast<std::size_t>(choice.index)];
      append_json_string(out, part.text);
      out += content_end_;
      return;
    }
    event(choice, out, [&](JsonWriter& json) {
      json.key("delta").begin_object();
      write_reasoning(json, part.reasoning);
      // Log-probabilities of a step without text still need an event with a field.
      if (!part.text.empty() || (part.reasoning.empty() && part.calls.empty())) {
        json.key("content").string(part.text);
      }
      if (!part.calls.empty()) write_call_deltas(json, part);
      json.end_object();
      json.key("logprobs");
      if (request_->logprobs) {
        write_chat_logprobs(json, *head_->tokenizer, part.tokens);
      } else {
        json.null();
      }
      json.key("finish_reason").null();
      write_ids(json, part.tokens);
    });
  }

  void end(Choice& choice, std::string& out) override {
    event(choice, out, [&](JsonWriter& json) {
      json.key("delta").raw("{}").key("logprobs").null();
      write_end(json, choice.end);
      write_ids(json, {});
    });
  }

  std::string whole(std::span<Choice> choices, const RequestTimes& times) override {
    const std::string ids = prompt_ids(choices[0]);
    return whole_answer("chat.completion", choices, times, ids, [&](JsonWriter& json, Choice& c) {
      json.key("message").begin_object().key("role").string("assistant");
      write_reasoning(json, c.reasoning);
      json.key("content");
      if (c.text.empty() && (!c.calls.empty() || !c.reasoning.empty())) {
        json.null();
      } else {
        json.string(c.text);
      }
      if (!c.calls.empty()) write_calls(json, c.calls);
      json.key("refusal").null().end_object();
      json.key("logprobs");
      if (request_->logprobs) {
        write_chat_logprobs(json, *head_->tokenizer, c.tokens);
      } else {
        json.null();
      }
      write_end(json, c.end);
      write_ids(json, c.tokens);
    });
  }

 private:
  // As in vLLM, beside the choices, which have one prompt.
  std::string prompt_ids(const Choice& choice) const {
    std::string out;
    JsonWriter json(out, /*first=*/false);
    write_prompt_ids(json, choice);
    return out;
  }

  void write_reasoning(JsonWriter& json, std::string_view text) const {
    if (text.empty()) return;
    if (head_->reasoning.reasoning_content) json.key("reasoning_content").string(text);
    if (head_->reasoning.reasoning) json.key("reasoning").string(text);
  }

  static void write_calls(JsonWriter& json, std::span<const AnswerCall> calls) {
    json.key("tool_calls").begin_array();
    for (const AnswerCall& c : calls) {
      json.begin_object().key("id").string(c.id).key("type").string("function");
      json.key("function").begin_object().key("name").string(c.call.name);
      json.key("arguments").string(c.call.arguments).end_object().end_object();
    }
    json.end_array();
  }

  // Fast path: nearly all events differ from the previous one in their text alone, so the beginning
  // and the end are kept.
  bool only_text_;
  std::string content_end_ = "},\"logprobs\":null,\"finish_reason\":null}]";
  std::vector<std::string> content_events_;  // [open choices] beginnings

  // Clients join arguments by index: the name comes first without arguments, then they follow.
  static void write_call_deltas(JsonWriter& json, const ChoicePart& part) {
    json.key("tool_calls").begin_array();
    for (std::size_t i = 0; i < part.calls.size(); ++i) {
      const AnswerCall& c = part.calls[i];
      const auto index = static_cast<std::int64_t>(part.first_call + i);
      json.begin_object().key("index").number(index).key("id").string(c.id);
      json.key("type").string("function").key("function").begin_object();
      json.key("name").string(c.call.name).key("arguments").string("").end_object().end_object();
      json.begin_object().key("index").number(index).key("function").begin_object();
      json.key("arguments").string(c.call.arguments).end_object().end_object();
    }
    json.end_array();
  }
};

class CompletionFormat : public OpenAiFormat {
 public:
  CompletionFormat(const ApiRequest& request, const AnswerHead& head)
      : OpenAiFormat(request, head, "text_completion") {}

  // The echoed prompt is the first event.
  void open(Choice& choice, std::string& out) override {
    if (!request_->echo) return;
    event(choice, out, [&](JsonWriter& json) {
      json.key("text").string(head_->prompts[choice.prompt].text);
      logprobs(json, choice, head_->prompts[choice.prompt].logprobs, {}, kNoEnd);
      write_end(json, std::nullopt);
      write_new_ids(json, choice, {});
    });
  }

  void part(Choice& choice, const ChoicePart& part, std::string& out) override {
    std::int64_t end = kNoEnd;
    if (request_->logprobs) {
      std::int64_t& shown = shown_.try_emplace(choice.index, begin_of(choice)).first->second;
      shown += count_code_points(part.text);
      if (choice.end) end = shown;
    }
    event(choice, out, [&](JsonWriter& json) {
      json.key("text").string(part.text);
      logprobs(json, choice, {}, part.tokens, end);
      write_end(json, std::nullopt);
      write_new_ids(json, choice, part.tokens);
    });
  }

  void end(Choice& choice, std::string& out) override {
    event(choice, out, [&](JsonWriter& json) {
      json.key("text").string("").key("logprobs").null();
      write_end(json, choice.end);
      write_new_ids(json, choice, {});
    });
  }

  std::string whole(std::span<Choice> choices, const RequestTimes& times) override {
    return whole_answer("text_completion", choices, times, {}, [&](JsonWriter& json, Choice& c) {
      const std::string text = request_->echo ? head_->prompts[c.prompt].text + c.text : c.text;
      json.key("text").string(text);
      const std::vector<SampledToken> none;
      logprobs(json, c, request_->echo ? head_->prompts[c.prompt].logprobs : none, c.tokens,
               count_code_points(text));
      if (request_->prompt_logprobs) {
        json.key("prompt_logprobs");
        write_prompt_logprobs(json, *head_->tokenizer, head_->prompts[c.prompt].logprobs,
                              *request_->prompt_logprobs);
      }
      write_end(json, c.end);
      write_ids(json, c.tokens);
      write_prompt_ids(json, c);
    });
  }

 private:
  static constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

  // Of an event: the first one of a choice has its prompt's ids.
  void write_new_ids(JsonWriter& json, const Choice& choice, std::span<const SampledToken> tokens) {
    if (!request_->return_token_ids) return;
    write_ids(json, tokens);
    if (begun_.insert(choice.index).second) write_prompt_ids(json, choice);
  }

  // Of tokens of the prompt, and then of the answer. `end`: code points of the whole text, where it
  // is known: a stop string may cut a token's text before the token begins.
  void logprobs(JsonWriter& json, const Choice& choice, std::span<const SampledToken> prompt,
                std::span<const SampledToken> answer, std::int64_t end) {
    json.key("logprobs");
    if (!request_->logprobs) {
      json.null();
      return;
    }
    std::vector<SampledToken> tokens(prompt.begin(), prompt.end());
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    std::vector<std::int64_t> offsets;
    if (!prompt.empty()) offsets = head_->prompts[choice.prompt].offsets;
    offsets.resize(prompt.size());
    for (const SampledToken& t : answer) {
      offsets.push_back(std::min(offsets_of(choice).next(t.token), end));
    }
    write_text_logprobs(json, *request_, *head_->tokenizer, tokens, offsets);
  }

  // Code points of the text before the answer.
  std::int64_t begin_of(const Choice& choice) const {
    return request_->echo ? count_code_points(head_->prompts[choice.prompt].text) : 0;
  }

  TextOffsets& offsets_of(const Choice& choice) {
    const auto at = offsets_.find(choice.index);
    if (at != offsets_.end()) return at->second;
    return offsets_
        .emplace(choice.index,
                 TextOffsets(head_->tokenizer->detokenizer(request_->skip_special_tokens),
                             begin_of(choice)))
        .first->second;
  }

  // By the choice's index.
  std::unordered_map<std::int32_t, TextOffsets> offsets_;
  std::unordered_map<std::int32_t, std::int64_t> shown_;  // code points sent so far
  std::unordered_set<std::int32_t> begun_;                // those that have had an event
};

}  // namespace

std::unique_ptr<AnswerFormat> make_chat_format(const ApiRequest& request, const AnswerHead& head) {
  return std::make_unique<ChatFormat>(request, head);
}

std::unique_ptr<AnswerFormat> make_completion_format(const ApiRequest& request,
                                                     const AnswerHead& head) {
  return std::make_unique<CompletionFormat>(request, head);
}

}  // namespace lathe
