#include "io/template/chat_prompt.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/template/chat_messages.h"
#include "io/template/jinja_value.h"
#include "io/text/json_text.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

// Returns whether there were any.
bool fill_contents(Json& messages) {
  bool any = false;
  for (Json& message : messages) {
    if (Json& content = message["content"]; content.is_null()) {
      content = "";
      any = true;
    }
  }
  return any;
}

// How often a text has the word that Jinja writes for null.
int count_nulls(std::string_view text) {
  constexpr std::string_view kNull = "None";
  int out = 0;
  for (std::size_t at = 0; (at = text.find(kNull, at)) != std::string_view::npos; ++out) {
    at += kNull.size();
  }
  return out;
}

}  // namespace

void add_special_texts(const ChatTemplateFile& chat, Json& variables) {
  if (!variables.contains("bos_token")) variables["bos_token"] = chat.bos_token;
  if (!variables.contains("eos_token")) variables["eos_token"] = chat.eos_token;
}

Result<std::string> render_messages(const ChatTemplate& chat, Json& variables) {
  auto text = chat.render(variables);
  const int nulls = text ? count_nulls(*text) : 0;
  if (text && nulls == 0) return text;
  Json filled = variables;
  if (!fill_contents(filled["messages"])) return text;
  auto other = chat.render(filled);
  if (!other || (text && count_nulls(*other) >= nulls)) return text;
  variables = std::move(filled);
  return other;
}

Result<std::string> render_chat(const nlohmann::ordered_json& messages,
                                const ChatTemplateFile& chat,
                                const nlohmann::ordered_json& variables) {
  nlohmann::ordered_json read = messages;
  if (const auto ok = read_messages(read); !ok) return ok.error();
  if (const auto ok = check_results(read); !ok) return ok.error();
  nlohmann::ordered_json all = variables;
  all.update({{"messages", std::move(read)}, {"add_generation_prompt", true}});
  add_special_texts(chat, all);
  if (const auto ok = chat.chat_template.check_tools(all); !ok) return ok.error();
  return render_messages(chat.chat_template, all);
}

Result<std::vector<std::int32_t>> encode_chat(const nlohmann::ordered_json& messages,
                                              const ChatTemplateFile& chat,
                                              const Tokenizer& tokenizer,
                                              const nlohmann::ordered_json& variables) {
  const auto text = render_chat(messages, chat, variables);
  if (!text) return text.error();
  return tokenizer.encode(*text);
}

std::string_view own_variable(const Json& variables, bool tools) {
  for (const char* own : {"messages", "add_generation_prompt", "tools"}) {
    if (variables.contains(own) && (tools || std::string_view(own) != "tools")) return own;
  }
  return {};
}

Result<nlohmann::ordered_json> read_chat_variables(const std::string& text,
                                                   const std::string& field, bool tools) {
  if (text.empty()) return nlohmann::ordered_json::object();
  const auto json = parse_json(text, field);
  if (!json) return json.error();
  if (!json->is_object()) {
    return Error{ErrorCode::invalid_argument, field, "a JSON object", json_excerpt(*json), ""};
  }
  auto out = read_json<nlohmann::ordered_json>(text);  // keeps the order of the text
  if (const std::string_view own = own_variable(out, tools); !own.empty()) {
    return Error{ErrorCode::invalid_argument, field, std::string(kOtherVariables), std::string(own),
                 ""};
  }
  for (const auto& [name, value] : out.items()) {
    const auto ok = JinjaValue::from_json(value, field + ": " + name);
    if (!ok) return ok.error();
  }
  return out;
}

}  // namespace lathe
