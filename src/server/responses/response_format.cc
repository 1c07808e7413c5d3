#include "server/responses/response_format.h"

#include <fmt/format.h>

#include "base/json.h"
#include "server/openai/block_format.h"
#include "server/openai/json_writer.h"
#include "server/responses/reasoning_text.h"
#include "server/responses/tools.h"

namespace lathe::responses_api {
namespace {

using Json = nlohmann::ordered_json;

class ResponseFormat : public BlockFormat {
 public:
  ResponseFormat(const ApiRequest& request, const AnswerHead& head)
      : request_(&request), head_(&head), key_(head.id.substr(head.id.find('_') + 1)) {}

  void fail(const ApiError& error, std::string& out) override {
    if (!opened()) begin_stream({}, out);
    response_event("response.failed", "failed", nullptr, &error, out);
  }

 protected:
  void begin_stream(const Choice&, std::string& out) override {
    response_event("response.created", "in_progress", nullptr, nullptr, out);
    response_event("response.in_progress", "in_progress", nullptr, nullptr, out);
  }

  void begin_block(Block block, std::string& out) override {
    text_.clear();
    id_ = next_id(block == Block::text ? "msg" : "rs");
    item_event("response.output_item.added", block_item(block, "in_progress", false), out);
    part_event("response.content_part.added", block, "", out);
    delta_ = begin_event(block == Block::text ? "response.output_text.delta"
                                              : "response.reasoning_text.delta");
    delta_ += place() + R"(,"content_index":0,"delta":)";
  }

  void add(Block block, std::string_view text, std::string& out) override {
    text_ += text;
    out += delta_;
    append_json_string(out, text);
    if (block == Block::text) out += R"(,"logprobs":[])";
    end_event(out);
  }

  void end_block(Block block, bool cut, std::string& out) override {
    const bool text = block == Block::text;
    out += begin_event(text ? "response.output_text.done" : "response.reasoning_text.done");
    out += place() + R"(,"content_index":0,"text":)";
    append_json_string(out, text_);
    if (text) out += R"(,"logprobs":[])";
    end_event(out);
    part_event("response.content_part.done", block, text_, out);
    end_item(block_item(block, cut ? "incomplete" : "completed", true), out);
  }

  void add_call(const AnswerCall& call, std::string& out) override {
    const auto other = request_->other_tools.find(call.call.name);
    const OtherTool tool =
        other == request_->other_tools.end() ? OtherTool{.name = call.call.name} : other->second;
    const std::string input = tool.custom ? custom_input(call.call.arguments) : call.call.arguments;
    const std::string_view kind =
        tool.custom ? "custom_tool_call_input" : "function_call_arguments";
    id_ = next_id(tool.custom ? "ctc" : "fc");
    item_event("response.output_item.added", call_item(call.id, tool, "", "in_progress"), out);
    for (const bool done : {false, true}) {
      out += begin_event(fmt::format("response.{}.{}", kind, done ? "done" : "delta"));
      JsonWriter json(out += place(), false);
      if (done && !tool.custom) json.key("name").string(tool.name);
      json.key(!done ? "delta" : tool.custom ? "input" : "arguments").string(input);
      end_event(out);
    }
    end_item(call_item(call.id, tool, input, "completed"), out);
  }

  void end_stream(const Choice& choice, std::string& out) override {
    add_empty(out);
    const bool whole = status_of(choice) == "completed";
    response_event(whole ? "response.completed" : "response.incomplete", status_of(choice), &choice,
                   nullptr, out);
  }

  std::string answer(const Choice& choice) override {
    std::string events;  // dropped
    add_empty(events);
    std::string out;
    write_response(status_of(choice), &choice, nullptr, out);
    return out;
  }

 private:
  static std::string_view status_of(const Choice& choice) {
    const bool cut = choice.end->kind == EndKind::length || choice.end->kind == EndKind::abort;
    return cut ? "incomplete" : "completed";
  }

  // Names and ids of items in one answer differ; they need not be random.
  std::string next_id(std::string_view kind) const {
    return fmt::format("{}_{}{:04x}", kind, key_, count_);
  }

  // An answer has an item, if an empty one.
  void add_empty(std::string& out) {
    if (count_ > 0) return;
    begin_block(Block::text, out);
    end_block(Block::text, false, out);
  }

  static std::string begin_event(std::string_view type) {
    return fmt::format(R"(event: {0}{1}data: {{"type":"{0}")", type, "\n");
  }
  void end_event(std::string& out) {
    out += ",\"sequence_number\":";
    append_json_integer(out, sequence_++);
    out += "}\n\n";
  }
  std::string place() const {
    return fmt::format(R"(,"item_id":"{}","output_index":{})", id_, count_);
  }

  void item_event(std::string_view type, std::string_view item, std::string& out) {
    out += begin_event(type) + fmt::format(R"(,"output_index":{},"item":)", count_);
    out += item;
    end_event(out);
  }

  void end_item(const std::string& item, std::string& out) {
    item_event("response.output_item.done", item, out);
    if (count_++ > 0) items_ += ',';
    items_ += item;
  }

  void part_event(std::string_view type, Block block, std::string_view text, std::string& out) {
    out += begin_event(type) + place() + R"(,"content_index":0,"part":)";
    out += content_part(block, text);
    end_event(out);
  }

  static std::string content_part(Block block, std::string_view text) {
    std::string out;
    JsonWriter json(out);
    json.begin_object();
    if (block == Block::reasoning) {
      json.key("type").string("reasoning_text").key("text").string(text);
    } else {
      json.key("type").string("output_text").key("text").string(text);
      json.key("annotations").raw("[]").key("logprobs").raw("[]");
    }
    json.end_object();
    return out;
  }

  std::string block_item(Block block, std::string_view status, bool with_text) const {
    std::string out;
    JsonWriter json(out);
    json.begin_object().key("id").string(id_);
    if (block == Block::reasoning) {
      json.key("type").string("reasoning").key("summary").raw("[]");
    } else {
      json.key("type").string("message").key("role").string("assistant");
    }
    json.key("status").string(status).key("content").begin_array();
    if (with_text) json.raw(content_part(block, text_));
    json.end_array();
    if (with_text && block == Block::reasoning && request_->encode_reasoning) {
      json.key("encrypted_content").string(encode_reasoning(text_));
    }
    json.end_object();
    return out;
  }

  std::string call_item(std::string_view call_id, const OtherTool& tool, std::string_view input,
                        std::string_view status) const {
    std::string out;
    JsonWriter json(out);
    json.begin_object().key("id").string(id_);
    json.key("type").string(tool.custom ? "custom_tool_call" : "function_call");
    json.key("call_id").string(call_id).key("name").string(tool.name);
    if (!tool.space.empty()) json.key("namespace").string(tool.space);
    json.key(tool.custom ? "input" : "arguments").string(input);
    json.key("status").string(status).end_object();
    return out;
  }

  // `choice`: null before the answer's end; `error`: null without one.
  void response_event(std::string_view type, std::string_view status, const Choice* choice,
                      const ApiError* error, std::string& out) {
    out += begin_event(type) + ",\"response\":";
    write_response(status, choice, error, out);
    end_event(out);
  }

  void write_response(std::string_view status, const Choice* choice, const ApiError* error,
                      std::string& out) const {
    JsonWriter json(out);
    json.begin_object().key("id").string(head_->id).key("object").string("response");
    json.key("created_at").number(head_->created).key("status").string(status);
    json.key("background").boolean(false).key("error");
    if (error == nullptr) {
      json.null();
    } else {
      json.begin_object().key("code").string("server_error");
      json.key("message").string(error->message).end_object();
    }
    write_incomplete(json, choice);
    json.key("model").string(head_->model).key("output").begin_array();
    if (!items_.empty()) json.raw(items_);
    json.end_array();
    json.key("previous_response_id").null().key("store").boolean(false);
    json.key("truncation").string("disabled").key("top_logprobs").number(std::int64_t{0});
    write_echoed(json);
    write_usage(json, choice);
    json.end_object();
  }

  static void write_incomplete(JsonWriter& json, const Choice* choice) {
    json.key("incomplete_details");
    if (choice == nullptr || status_of(*choice) == "completed") {
      json.null();
      return;
    }
    const bool length = choice->end->kind == EndKind::length;
    json.begin_object().key("reason").string(length ? "max_output_tokens" : "abort").end_object();
  }

  // What the answer repeats of the request, with OpenAI's values for what that leaves out.
  void write_echoed(JsonWriter& json) const {
    static const std::pair<const char*, Json> kAbsent[] = {
        {"instructions", nullptr},
        {"max_output_tokens", nullptr},
        {"max_tool_calls", nullptr},
        {"metadata", Json::object()},
        {"parallel_tool_calls", true},
        {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
        {"temperature", nullptr},
        {"text", {{"format", {{"type", "text"}}}}},
        {"tool_choice", "auto"},
        {"tools", Json::array()},
        {"top_p", nullptr},
        {"user", nullptr},
        {"service_tier", nullptr},
        {"safety_identifier", nullptr},
        {"prompt_cache_key", nullptr},
    };
    for (const auto& [name, absent] : kAbsent) {
      json.key(name).raw(json_text(request_->echoed.value(name, absent)));
    }
  }

  void write_usage(JsonWriter& json, const Choice* choice) const {
    json.key("usage");
    if (choice == nullptr) {
      json.null();
      return;
    }
    const std::int64_t prompt = head_->prompts[0].count;
    json.begin_object().key("input_tokens").number(prompt);
    json.key("input_tokens_details").begin_object();
    json.key("cached_tokens").number(choice->cached_tokens).end_object();
    json.key("output_tokens").number(choice->completion_tokens);
    json.key("output_tokens_details").begin_object();
    json.key("reasoning_tokens").number(choice->reasoning_tokens).end_object();
    json.key("total_tokens").number(prompt + choice->completion_tokens).end_object();
  }

  const ApiRequest* request_;
  const AnswerHead* head_;
  std::string key_;  // of the items' ids
  std::int64_t sequence_ = 0;
  std::int64_t count_ = 0;  // items that have ended
  std::string items_;       // their JSON
  std::string id_;          // of the open item
  std::string text_;        // its text
  std::string delta_;       // the beginning of its events with text
};

}  // namespace

std::unique_ptr<AnswerFormat> make_format(const ApiRequest& request, const AnswerHead& head) {
  return std::make_unique<ResponseFormat>(request, head);
}

}  // namespace lathe::responses_api
