#include "server/routes/tokenize.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "server/messages/message_request.h"
#include "server/openai/answer_json.h"
#include "server/openai/field_readers.h"
#include "server/service/prepare.h"
#include "server/service/protocol.h"
#include "server/service/render_chat.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

Result<bool, ApiError> read_flag(const Json& body, const char* name, bool absent) {
  const auto at = body.find(name);
  if (at == body.end() || at->is_null()) return absent;
  if (!at->is_boolean()) return bad_field(name, "true or false", excerpt(*at));
  return at->get<bool>();
}

// As /v1/chat/completions renders the same body.
Result<std::vector<std::int32_t>, ApiError> encode_messages(const std::string& body,
                                                            const ServedModel& model,
                                                            const ServerOptions& options,
                                                            bool special,
                                                            const std::atomic<bool>* stop) {
  FieldLimits limits = options.fields;
  limits.strict = false;  // this route has fields of its own
  const auto request = parse_request(ApiRoute::chat, body, limits);
  if (!request) return request.error();
  auto prompt = encode_chat(*request, model, options, special, stop);
  if (!prompt) return prompt.error();
  return std::move(prompt->tokens);
}

}  // namespace

Result<std::string, ApiError> tokenize(const std::string& body, const ServedModel& model,
                                       const ServerOptions& options,
                                       const std::atomic<bool>* stop) {
  const auto json = parse_body(body);
  if (!json) return json.error();
  const bool chat = json->contains("messages");
  const auto special = read_flag(*json, "add_special_tokens", !chat);
  if (!special) return special.error();
  const auto strings = read_flag(*json, "return_token_strs", false);
  if (!strings) return strings.error();

  // For a list of texts, each field of the answer is a list.
  std::vector<std::vector<std::int32_t>> lists;
  bool several = false;
  if (chat) {
    auto tokens = encode_messages(body, model, options, *special, stop);
    if (!tokens) return tokens.error();
    lists.push_back(std::move(*tokens));
  } else {
    const auto prompt = json->find("prompt");
    if (prompt == json->end()) {
      return ApiError{400, "missing_field", "prompt: wanted text or messages, got nothing",
                      "prompt"};
    }
    several = prompt->is_array();
    for (std::size_t i = 0; i < (several ? prompt->size() : 1); ++i) {
      const Json& one = several ? (*prompt)[i] : *prompt;
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
  return text;
}

Result<std::string, ApiError> detokenize(const std::string& body, const ServedModel& model) {
  const auto json = parse_body(body);
  if (!json) return json.error();
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
  std::string out;
  JsonWriter writer(out);
  writer.begin_object().key("prompt").string(text).key("text").string(text).end_object();
  return out;
}

Result<CountedTokens, ApiError> count_tokens(const std::string& body, const ServedModel& model,
                                             const ServerOptions& options,
                                             const std::atomic<bool>* stop) {
  auto request = anthropic::parse_request(body, options.fields, /*counts=*/true);
  if (!request) return request.error();
  if (request->model) {
    if (auto wrong = check_model(*request->model, options)) return *wrong;
  }
  const auto prompt = encode_chat(*request, model, options, /*add_special_tokens=*/false, stop);
  if (!prompt) return own_names(ApiRoute::messages, prompt.error());
  for (const std::string& name : prompt->ignored) {
    request->ignored.push_back(own_names(ApiRoute::messages, {400, "", name, name}).param);
  }
  return CountedTokens{std::ssize(prompt->tokens), std::move(request->ignored)};
}

}  // namespace lathe
