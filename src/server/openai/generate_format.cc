// Answers of /generate in SGLang's shape: each event has all text so far, unless parts are
// requested.
#include <fmt/format.h>

#include <unordered_set>

#include "server/openai/answer_json.h"

namespace lathe {
namespace {

class GenerateFormat : public AnswerFormat {
 public:
  GenerateFormat(const ApiRequest& request, const AnswerHead& head)
      : request_(&request), head_(&head) {}

  bool wants_all() const override { return !request_->incremental; }
  bool wants_tokens() const override { return true; }  // output_ids
  void open(Choice&, std::string&) override {}

  void part(Choice& choice, const ChoicePart& part, std::string& out) override {
    event(choice, part.text, part.tokens, out);
  }
  void end(Choice& choice, std::string& out) override { event(choice, "", {}, out); }

  void close(std::span<const Choice>, const RequestTimes&, std::string&) override {}
  void fail(const ApiError& error, std::string& out) override {
    out += "data: " + error.body() + "\n\n";
  }
  std::string_view last() const override { return kDone; }

  std::string whole(std::span<Choice> choices, const RequestTimes&) override {
    std::string out;
    JsonWriter json(out);
    const bool list = request_->batch || choices.size() > 1;
    if (list) json.begin_array();
    for (Choice& c : choices) {
      json.begin_object();
      write_members(json, c, whole_of(c));
      json.end_object();
    }
    if (list) json.end_array();
    return out;
  }

 private:
  // What an event says of a choice.
  struct Said {
    std::string_view text;
    std::span<const SampledToken> tokens;
    std::span<const SampledToken> prompt;  // the requested log-probabilities of its tokens
  };

  Said whole_of(const Choice& choice) const {
    return {choice.text, choice.tokens, head_->prompts[choice.prompt].logprobs};
  }

  // Of `text` and `tokens`, the new parts, and the prompt's log-probabilities in the choice's first
  // event alone, if parts are requested.
  void event(const Choice& choice, std::string_view text, std::span<const SampledToken> tokens,
             std::string& out) {
    Said said = whole_of(choice);
    if (request_->incremental) {
      if (!begun_.insert(choice.index).second) said.prompt = {};
      said.text = text;
      said.tokens = tokens;
    }
    out += "data: ";
    JsonWriter json(out);
    json.begin_object();
    write_members(json, choice, said);
    if (request_->batch || request_->n > 1) json.key("index").number(std::int64_t{choice.index});
    json.end_object();
    out += "\n\n";
  }

  void write_members(JsonWriter& json, const Choice& choice, const Said& said) {
    json.key("text").string(said.text).key("output_ids");
    write_token_ids(json, said.tokens);
    json.key("meta_info").begin_object();
    json.key("id").string(id_of(choice)).key("finish_reason");
    write_reason(json, choice);
    json.key("prompt_tokens").number(head_->prompts[choice.prompt].count);
    json.key("completion_tokens").number(choice.completion_tokens);
    json.key("cached_tokens").number(choice.cached_tokens);
    json.key("reasoning_tokens").number(choice.reasoning_tokens);
    json.key("e2e_latency").number(choice.seconds);
    json.key("weight_version").string("default");
    json.key("num_retractions").number(choice.preemptions);
    if (request_->logprobs) {
      write_lists(json, "input", said.prompt);
      write_lists(json, "output", said.tokens);
      // SGLang's length counts all tokens so far, in events with parts, too.
      json.key("output_token_logprobs_length").number(choice.completion_tokens);
    }
    json.end_object();
  }

  std::string id_of(const Choice& choice) const {
    if (request_->rids.empty()) return head_->id;
    return request_->rids.size() == 1 ? request_->rids[0] : request_->rids[choice.prompt];
  }

  static void write_reason(JsonWriter& json, const Choice& choice) {
    if (!choice.end) {
      json.null();
      return;
    }
    json.begin_object().key("type").string(name(choice.end->kind));
    if (choice.end->kind == EndKind::stop) {
      json.key("matched");
      if (choice.end->text) {
        json.string(*choice.end->text);
      } else if (choice.end->token) {
        json.number(std::int64_t{*choice.end->token});
      } else {
        json.null();
      }
    } else if (choice.end->kind == EndKind::length) {
      json.key("length").number(choice.completion_tokens);
    } else {
      json.key("message").string("aborted").key("status_code").null().key("err_type").null();
    }
    json.end_object();
  }

  // [logprob, id, text or null]
  void write_entry(JsonWriter& json, std::int32_t token, std::optional<double> logprob) const {
    json.begin_array();
    if (logprob) {
      json.number(*logprob);
    } else {
      json.null();  // the first token of a prompt
    }
    json.number(std::int64_t{token});
    if (request_->text_in_logprobs) {
      json.string(token_text(*head_->tokenizer, token));
    } else {
      json.null();
    }
    json.end_array();
  }

  void write_lists(JsonWriter& json, std::string_view side,
                   std::span<const SampledToken> tokens) const {
    json.key(std::string(side) + "_token_logprobs").begin_array();
    for (const SampledToken& t : tokens) write_entry(json, t.token, t.logprob);
    json.end_array();
    const auto write_each = [&](std::string_view list,
                                std::vector<TokenLogprob> SampledToken::*entries) {
      json.key(fmt::format("{}_{}", side, list)).begin_array();
      for (const SampledToken& t : tokens) {
        if ((t.*entries).empty()) {
          json.null();
          continue;
        }
        json.begin_array();
        for (const TokenLogprob& e : t.*entries) write_entry(json, e.token, e.logprob);
        json.end_array();
      }
      json.end_array();
    };
    write_each("top_logprobs", &SampledToken::top);
    if (request_->logprob_ids.empty()) {
      json.key(fmt::format("{}_token_ids_logprobs", side)).raw("[]");
    } else {
      write_each("token_ids_logprobs", &SampledToken::asked);
    }
  }

  const ApiRequest* request_;
  const AnswerHead* head_;
  std::unordered_set<std::int32_t> begun_;  // indices of choices that have had an event
};

}  // namespace

std::unique_ptr<AnswerFormat> make_generate_format(const ApiRequest& request,
                                                   const AnswerHead& head) {
  return std::make_unique<GenerateFormat>(request, head);
}

}  // namespace lathe
