#include "server/messages/message_format.h"

#include <fmt/format.h>

#include "server/messages/message_error.h"
#include "server/openai/block_format.h"
#include "server/openai/json_writer.h"

namespace lathe::anthropic {
namespace {

// Anthropic's ids of calls begin with "toolu_"; clients send them back as they are. A model's own
// id, which its template reads, stays as it is.
std::string call_id(const AnswerCall& call) {
  constexpr std::string_view kOurs = "call_";
  return call.id.starts_with(kOurs) ? "toolu_" + call.id.substr(kOurs.size()) : call.id;
}

class MessageFormat : public BlockFormat {
 public:
  MessageFormat(const ApiRequest& request, const AnswerHead& head)
      : request_(&request), head_(&head) {}

  void fail(const ApiError& error, std::string& out) override {
    out += "event: error\ndata: " + error_body(error, head_->request_id) + "\n\n";
  }

 protected:
  void begin_stream(const Choice& choice, std::string& out) override {
    event("message_start", out, [&](JsonWriter& json) {
      json.key("message");
      write_message(json, choice, /*ended=*/false);
    });
    event("ping", out, [](JsonWriter&) {});
  }

  void begin_block(Block block, std::string& out) override {
    text_.clear();
    event("content_block_start", out, [&](JsonWriter& json) {
      json.key("index").number(count_).key("content_block");
      write_block(json, block, "", "");
    });
    delta_ =
        fmt::format(R"({}{},"delta":{{"type":"{}":)",
                    begin_event("content_block_delta") + ",\"index\":", count_,
                    block == Block::text ? R"(text_delta","text)" : R"(thinking_delta","thinking)");
  }

  void add(Block, std::string_view text, std::string& out) override {
    text_ += text;
    out += delta_;
    append_json_string(out, text);
    out += "}}\n\n";
  }

  void end_block(Block block, bool, std::string& out) override {
    if (block == Block::reasoning) {
      event("content_block_delta", out, [&](JsonWriter& json) {
        json.key("index").number(count_).key("delta").begin_object();
        json.key("type").string("signature_delta").key("signature").string(head_->id).end_object();
      });
    }
    JsonWriter json(items_, items_.empty());
    write_block(json, block, text_, head_->id);
    stop_block(out);
  }

  void add_call(const AnswerCall& call, std::string& out) override {
    event("content_block_start", out, [&](JsonWriter& json) {
      json.key("index").number(count_).key("content_block");
      write_call(json, call, "{}");
    });
    event("content_block_delta", out, [&](JsonWriter& json) {
      json.key("index").number(count_).key("delta").begin_object();
      json.key("type").string("input_json_delta");
      json.key("partial_json").string(call.call.arguments).end_object();
    });
    JsonWriter json(items_, items_.empty());
    write_call(json, call, call.call.arguments);
    stop_block(out);
  }

  void end_stream(const Choice& choice, std::string& out) override {
    event("message_delta", out, [&](JsonWriter& json) {
      json.key("delta").begin_object();
      write_stop(json, choice);
      json.end_object().key("usage");
      write_usage(json, choice);
    });
    event("message_stop", out, [](JsonWriter&) {});
  }

  std::string answer(const Choice& choice) override {
    std::string out;
    JsonWriter json(out);
    write_message(json, choice, /*ended=*/true);
    return out;
  }

 private:
  static std::string begin_event(std::string_view type) {
    return fmt::format(R"(event: {0}{1}data: {{"type":"{0}")", type, "\n");
  }
  template <class Write>
  static void event(std::string_view type, std::string& out, const Write& write) {
    JsonWriter json(out += begin_event(type), /*first=*/false);
    write(json);
    out += "}\n\n";
  }

  void stop_block(std::string& out) {
    event("content_block_stop", out, [&](JsonWriter& json) { json.key("index").number(count_); });
    ++count_;
  }

  static void write_block(JsonWriter& json, Block block, std::string_view text,
                          std::string_view signature) {
    json.begin_object();
    if (block == Block::reasoning) {
      json.key("type").string("thinking").key("thinking").string(text);
      json.key("signature").string(signature);
    } else {
      json.key("type").string("text").key("text").string(text);
    }
    json.end_object();
  }

  static void write_call(JsonWriter& json, const AnswerCall& call, std::string_view input) {
    json.begin_object().key("type").string("tool_use").key("id").string(call_id(call));
    json.key("name").string(call.call.name).key("input").raw(input).end_object();
  }

  void write_message(JsonWriter& json, const Choice& choice, bool ended) const {
    json.begin_object().key("id").string(head_->id).key("type").string("message");
    json.key("role").string("assistant").key("model").string(head_->model);
    json.key("content").begin_array();
    if (!items_.empty()) json.raw(items_);
    json.end_array();
    if (ended) {
      write_stop(json, choice);
    } else {
      json.key("stop_reason").null().key("stop_sequence").null();
    }
    json.key("usage");
    write_usage(json, choice);
    json.end_object();
  }

  std::string_view stop_reason(const Choice& choice) const {
    switch (choice.end->kind) {
      case EndKind::stop:
        return choice.end->text ? "stop_sequence" : "end_turn";
      case EndKind::length:
        return choice.completion_tokens < request_->max_tokens.value_or(0)
                   ? "model_context_window_exceeded"
                   : "max_tokens";
      case EndKind::tool_calls:
        return "tool_use";
      case EndKind::abort:
        return "abort";
    }
    return "end_turn";
  }

  void write_stop(JsonWriter& json, const Choice& choice) const {
    json.key("stop_reason").string(stop_reason(choice)).key("stop_sequence");
    if (choice.end->kind == EndKind::stop && choice.end->text) {
      json.string(*choice.end->text);
    } else {
      json.null();
    }
  }

  // Tokens of the prompt that came from the cache are counted apart.
  void write_usage(JsonWriter& json, const Choice& choice) const {
    json.begin_object();
    json.key("input_tokens").number(head_->prompts[0].count - choice.cached_tokens);
    json.key("cache_creation_input_tokens").number(std::int64_t{0});
    json.key("cache_read_input_tokens").number(choice.cached_tokens);
    json.key("output_tokens").number(choice.completion_tokens).end_object();
  }

  const ApiRequest* request_;
  const AnswerHead* head_;
  std::int64_t count_ = 0;  // blocks that have ended
  std::string items_;       // their JSON
  std::string text_;        // of the open block
  std::string delta_;       // the beginning of its events
};

}  // namespace

std::unique_ptr<AnswerFormat> make_format(const ApiRequest& request, const AnswerHead& head) {
  return std::make_unique<MessageFormat>(request, head);
}

}  // namespace lathe::anthropic
