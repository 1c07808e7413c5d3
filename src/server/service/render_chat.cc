#include "server/service/render_chat.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/template/chat_messages.h"
#include "io/template/chat_prompt.h"
#include "server/openai/field_readers.h"
#include "server/service/chat_checks.h"
#include "server/service/reply.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// Json::update() without a search among the names that it adds.
void add_members(Json& to, const Json& from) {
  auto& object = to.get_ref<Json::object_t&>();
  const std::size_t before = object.size();
  for (const auto& [name, value] : from.items()) {
    std::size_t i = 0;
    while (i < before && object.data()[i].first != name) ++i;
    if (i < before) {
      object.data()[i].second = value;
    } else {
      object.emplace_back(name, value);
    }
  }
}

Json variables_of(const ApiRequest& request, const Json& defaults, const ChatTemplateFile& chat,
                  Json messages) {
  Json out = defaults;
  if (request.reasoning_effort) out["reasoning_effort"] = *request.reasoning_effort;
  if (request.template_kwargs.is_object()) add_members(out, request.template_kwargs);
  out["messages"] = std::move(messages);
  if (request.tools.is_array() && request.tool_choice != "none") out["tools"] = request.tools;
  out["add_generation_prompt"] = request.add_generation_prompt && !request.continue_final_message;
  add_special_texts(chat, out);
  return out;
}

// An answer of calls alone has null, by which DeepSeek's templates know it. ChatHistory writes "".
void leave_out_empty_texts(Json& messages) {
  for (Json& message : messages) {
    if (message.contains("tool_calls") && message["content"] == "") message["content"] = nullptr;
  }
}

// The body's path of a field that a template's error names: "messages[1], chat_template line 5" is
// of that message. "messages" where there is only the line.
std::string body_path(const ApiRequest& request, const std::string& field) {
  const std::string name = field.substr(0, field.find_first_of(".["));
  if (name == "reasoning_effort" || name == "tools") return field;
  if (name == "messages" && name != field) {
    return field.substr(0, field.rfind(", chat_template line "));
  }
  const bool variable =
      request.template_kwargs.is_object() && request.template_kwargs.contains(name);
  return variable ? "chat_template_kwargs." + field : "messages";
}

// Follows the last message's text, so that its end is found in the prompt whatever the text is. As
// in transformers, a blank at its end shows whether the template trims contents.
std::string end_marker() { return "END-" + random_hex(16) + " "; }

// The prompt up to the marker. nullopt: the template does not show the message's end.
std::optional<std::string> cut_at(std::string prompt, const std::string& marker) {
  const std::size_t at = prompt.rfind(marker.substr(0, marker.size() - 1));
  if (at == std::string::npos) return std::nullopt;
  const bool trims = prompt.compare(at, marker.size(), marker) != 0;
  prompt.resize(at);
  if (trims) prompt.resize(prompt.find_last_not_of(" \t\r\n") + 1);
  return prompt;
}

// Breaks a token's name in a text through the template: U+FDD0, which Unicode keeps out of texts.
constexpr std::string_view kBreak = "\xef\xb7\x90";

// Breaks names of added tokens in all strings of a message's value.
void break_names(const Tokenizer& tokenizer, Json& value) {
  if (value.is_structured()) {
    for (Json& inner : value) break_names(tokenizer, inner);
  }
  if (!value.is_string()) return;
  auto& text = value.get_ref<std::string&>();
  const std::vector<std::size_t> breaks = tokenizer.find_added_tokens(text);
  for (auto at = breaks.rbegin(); at != breaks.rend(); ++at) text.insert(*at, kBreak);
}

// Removes the breaks and returns their offsets.
std::vector<std::size_t> take_breaks(std::string& text) {
  std::vector<std::size_t> out;
  std::string rest;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(kBreak, done)) != std::string::npos;) {
    rest.append(text, done, at - done);
    out.push_back(rest.size());
    done = at + kBreak.size();
  }
  if (!out.empty()) text = rest.append(text, done);
  return out;
}

}  // namespace

Result<ChatPrompt, ApiError> encode_chat(const ApiRequest& request, const ServedModel& model,
                                         const ServerOptions& options, bool add_special_tokens,
                                         const std::atomic<bool>* stop) {
  if (model.chat == nullptr) {
    return ApiError{400, "template_error",
                    "messages: wanted a model with a chat template, got one without; "
                    "--chat-template FILE, or /v1/completions",
                    "messages"};
  }
  ApiRequest plain;
  if (options.plain_content) {
    plain = request;
    for (Json& message : plain.messages) {
      if (!message.is_object() || message.value("role", Json()) == "assistant") continue;
      for (auto& [name, value] : message.items()) {
        if (name != "role") break_names(model.tokenizer, value);
      }
    }
  }
  const ApiRequest& rendered = options.plain_content ? plain : request;
  std::vector<std::string> ignored;
  auto text = render_chat(rendered, options.template_kwargs, *model.chat, &ignored);
  if (!text) return text.error();
  std::vector<std::size_t> breaks;
  if (options.plain_content) breaks = take_breaks(*text);
  auto tokens = model.tokenizer.encode(*text, add_special_tokens, breaks, stop);
  if (!tokens) return ApiError{400, "tokenizer_error", tokens.error().message(), "messages"};
  return ChatPrompt{std::move(*text), std::move(*tokens), std::move(ignored)};
}

Result<std::string, ApiError> render_chat(const ApiRequest& request, const Json& defaults,
                                          const ChatTemplateFile& chat,
                                          std::vector<std::string>* ignored) {
  Json messages = request.messages;
  if (const auto ok = read_messages(messages); !ok) return bad_field(ok.error());
  if (request.route == ApiRoute::chat) {
    if (const auto ok = check_results(messages); !ok) return bad_field(ok.error());
  } else {
    leave_out_empty_texts(messages);
  }
  std::string marker;
  if (request.continue_final_message) {
    Json& content = messages.back()["content"];
    if (!content.is_string() || content.get_ref<const std::string&>().empty()) {
      return bad_field("continue_final_message", "a last message with text", "one without");
    }
    marker = end_marker();
    content.get_ref<std::string&>() += marker;
  }
  Json variables = variables_of(request, defaults, chat, std::move(messages));
  // A forced call needs no words about the tools: the constraint has them.
  const auto ok = chat.chat_template.check_tools(variables);
  if (!ok && !request.forces_call()) {
    return ApiError{400, "unsupported_field", ok.error().message(), "tools"};
  }
  auto text = render_messages(chat.chat_template, variables);
  if (!text) {
    Error error = text.error();
    const std::string path = body_path(request, error.field);
    if (path.starts_with("chat_template_kwargs.")) error.field = path;
    return ApiError{400, "template_error", error.message(), path};
  }
  if (ignored != nullptr) *ignored = find_unread(request, variables, chat.chat_template, *text);
  if (marker.empty()) return std::move(*text);
  auto cut = cut_at(std::move(*text), marker);
  if (cut) return std::move(*cut);
  return bad_field("continue_final_message", "a template that shows the last message as it is",
                   "another");
}

}  // namespace lathe
