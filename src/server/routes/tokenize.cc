#include "server/routes/tokenize.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/messages/message_request.h"
#include "server/openai/answer_json.h"
#include "server/openai/field_readers.h"
#include "server/openai/fields.h"
#include "server/service/prepare.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

Result<bool, ApiError> read_flag(const Json& body, const char* name, bool absent) {
  const auto at = body.find(name);
  if (at == body.end() || at->is_null()) return absent;
  if (!at->is_boolean()) return bad_field(name, "true or false", excerpt(*at));
  return at->get<bool>();
}

std::optional<ApiError> check_model_of(const Json& body, const ServerOptions& options) {
  const Json name = body.value("model", Json());
  if (name.is_null()) return std::nullopt;
  if (!name.is_string()) return bad_field("model", "a string", excerpt(name));
  return check_model(name.get_ref<const std::string&>(), options);
}

// The prompt that /v1/chat/completions makes of the same body.
Result<CountedPrompt, ApiError> encode_messages(const std::string& body, const ServedModel& model,
                                                const ServerOptions& options, bool special,
                                                const std::atomic<bool>* stop) {
  FieldLimits limits = options.fields;
  limits.strict = false;  // this route has fields of its own
  auto request = parse_request(ApiRoute::chat, body, limits);
  if (!request) return request.error();
  std::erase_if(request->ignored, [](const std::string& name) {
    return name == "prompt" || name == "add_special_tokens" || name == "return_token_strs";
  });
  if (auto wrong = refuse_ignored(*request, fields_of(kInChat), options.fields)) return *wrong;
  return count_prompt(std::move(*request), model, options, special, stop);
}

bool has_field(const Json& body, const char* name) {
  const auto at = body.find(name);
  return at != body.end() && !at->is_null();
}

// Fields that shape a conversation's prompt act with messages alone.
std::optional<ApiError> refuse_chat_fields(const Json& body, const FieldLimits& limits) {
  if (!limits.strict) return std::nullopt;  // the header names them
  for (const Field& f : fields_of(kInChat)) {
    if (f.name != "model" && f.name != "messages" && body.contains(std::string(f.name))) {
      return bad_field(std::string(f.name), "messages with it", "a prompt");
    }
  }
  return std::nullopt;
}

}  // namespace

Result<RouteAnswer, ApiError> tokenize(const std::string& body, const ServedModel& model,
                                       const ServerOptions& options,
                                       const std::atomic<bool>* stop) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  const bool chat = has_field(*json, "messages");
  if (chat && has_field(*json, "prompt")) return bad_field("prompt", "prompt or messages", "both");
  const auto special = read_flag(*json, "add_special_tokens", !chat);
  if (!special) return special.error();
  const auto strings = read_flag(*json, "return_token_strs", false);
  if (!strings) return strings.error();

  // For a list of texts, each field of the answer is a list.
  std::vector<std::vector<std::int32_t>> lists;
  std::vector<std::string> ignored;
  bool several = false;
  if (chat) {
    auto counted = encode_messages(body, model, options, *special, stop);
    if (!counted) return counted.error();
    lists.push_back(std::move(counted->tokens));
    ignored = std::move(counted->ignored);
  } else {
    if (auto wrong = refuse_chat_fields(*json, options.fields)) return *wrong;
    if (auto wrong = note_fields(
            *json, {"model", "prompt", "messages", "add_special_tokens", "return_token_strs"},
            options.fields, ignored)) {
      return *wrong;
    }
    if (auto wrong = check_model_of(*json, options)) return *wrong;
    if (!has_field(*json, "prompt")) {
      return ApiError{400, "missing_field", "prompt: wanted text or messages, got nothing",
                      "prompt"};
    }
    const Json& prompt = (*json)["prompt"];
    several = prompt.is_array();
    for (std::size_t i = 0; i < (several ? prompt.size() : 1); ++i) {
      const Json& one = several ? prompt[i] : prompt;
      if (!one.is_string()) {
        return bad_field(several ? fmt::format("prompt[{}]", i) : "prompt", "text", excerpt(one));
      }
      auto tokens = model.tokenizer.encode(one.get_ref<const std::string&>(), *special, {}, stop);
      if (!tokens) return ApiError{400, "tokenizer_error", tokens.error().message(), "prompt"};
      lists.push_back(std::move(*tokens));
    }
  }

  std::string text;
  JsonWriter out(text);
  out.begin_object().key("count");
  if (several) out.begin_array();
  for (const auto& tokens : lists) out.number(std::ssize(tokens));
  if (several) out.end_array();
  out.key("max_model_len").number(model.capacity).key("tokens");
  if (several) out.begin_array();
  for (const auto& tokens : lists) write_token_ids(out, tokens);
  if (several) out.end_array();
  if (*strings) {
    out.key("token_strs");
    if (several) out.begin_array();
    for (const auto& tokens : lists) {
      out.begin_array();
      for (std::int32_t t : tokens) out.string(token_text(model.tokenizer, t));
      out.end_array();
    }
    if (several) out.end_array();
  }
  out.end_object();
  return RouteAnswer{std::move(text), std::move(ignored)};
}

Result<RouteAnswer, ApiError> detokenize(const std::string& body, const ServedModel& model,
                                         const ServerOptions& options) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  RouteAnswer out;
  if (auto wrong = note_fields(*json, {"model", "tokens", "skip_special_tokens"}, options.fields,
                               out.ignored)) {
    return *wrong;
  }
  if (auto wrong = check_model_of(*json, options)) return *wrong;
  const auto skip = read_flag(*json, "skip_special_tokens", false);
  if (!skip) return skip.error();
  const auto list = json->find("tokens");
  if (list == json->end() || !list->is_array()) {
    return ApiError{400, list == json->end() ? "missing_field" : "invalid_value",
                    "tokens: wanted a list of token ids, got " +
                        (list == json->end() ? "nothing" : excerpt(*list)),
                    "tokens"};
  }
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const auto id = integer_of((*list)[i], 0, model.vocab - 1);
    if (!id) {
      return bad_field(fmt::format("tokens[{}]", i),
                       fmt::format("a token from 0 to {}", model.vocab - 1), excerpt((*list)[i]));
    }
    tokens.push_back(static_cast<std::int32_t>(*id));
  }
  const std::string text = model.tokenizer.decode(tokens, *skip);
  JsonWriter writer(out.body);
  writer.begin_object().key("prompt").string(text).key("text").string(text).end_object();
  return out;
}

Result<RouteAnswer, ApiError> count_tokens(const std::string& body, const ServedModel& model,
                                           const ServerOptions& options,
                                           const std::atomic<bool>* stop) {
  auto request = anthropic::parse_request(body, options.fields, /*counts=*/true);
  if (!request) return request.error();
  auto counted =
      count_prompt(std::move(*request), model, options, /*add_special_tokens=*/false, stop);
  if (!counted) return counted.error();
  return RouteAnswer{fmt::format(R"({{"input_tokens":{}}})", counted->tokens.size()),
                     std::move(counted->ignored)};
}

}  // namespace lathe
