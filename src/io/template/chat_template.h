// ChatTemplate: renders a conversation as a model's prompt, by a Jinja template as in Hugging Face
// transformers, or by the encoding of DeepSeek V4 or gpt-oss. docs/chat-templates.md lists what is
// supported.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/template/deepseek_v4_chat.h"
#include "io/template/jinja_runtime.h"

namespace lathe {

struct RenderOptions {
  /// The time for strftime_now(); default: local time.
  std::optional<std::tm> now;
  JinjaLimits limits;
};

class ChatTemplate {
 public:
  /// Errors name the template's line: malformed, or unsupported (Jinja that chat templates do not
  /// use).
  static Result<ChatTemplate> parse(std::string_view source);
  /// A model's pair of templates: render() uses `tool_use` where the variables have tools, as
  /// transformers does, and `source` elsewhere.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view tool_use);
  static ChatTemplate deepseek_v4(V4Encoding encoding);
  /// gpt-oss's messages in channels (render_harmony()).
  static ChatTemplate harmony();

  /// Renders the prompt. `variables` is an object: messages, add_generation_prompt, tools,
  /// bos_token, ... Errors name the template's line, in a loop over messages the message, too, or
  /// for V4's encoding the variable: malformed (what Jinja would reject), unsupported,
  /// invalid_argument (the template's own raise_exception), exhausted (a limit of `options`). Safe
  /// from several threads.
  Result<std::string> render(const nlohmann::ordered_json& variables,
                             const RenderOptions& options = {}) const;
  /// Refuses variables with tools if the template never reads `tools`: the model would not see
  /// them. transformers renders such a prompt without a word.
  Result<void> check_tools(const nlohmann::ordered_json& variables) const;
  /// Whether prompts can depend on a variable, or on a member of a message: a template has its name
  /// outside of plain text.
  bool reads_variable(std::string_view name) const;
  bool reads_member(std::string_view name) const;
  /// Text that contains the marks of reasoning and tool calls in answers: the templates' sources.
  std::string_view source() const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

/// The chat template of a model's folder.
struct ChatTemplateFile {
  ChatTemplate chat_template;
  std::string bos_token;  // empty if the folder has none
  std::string eos_token;
};

/// Reads chat_template.jinja (with additional_chat_templates/tool_use.jinja), else
/// chat_template.json, else tokenizer_config.json's "chat_template" (a string, or the entries
/// "default" and "tool_use" of a list); the tokens from tokenizer_config.json. A DeepSeek
/// V4 folder without a template uses V4's encoding, of the generation shown by its
/// encoding/encoding_dsv4.py, else by config.json (the official release has dspark_* fields). A
/// gpt-oss folder, with a template that has <|channel|> or without one, uses harmony(). Errors: io,
/// malformed, unsupported (a folder without a template).
Result<ChatTemplateFile> load_chat_template(const std::filesystem::path& dir);
/// A template that replaces the folder's, with the folder's tokens. `field` names it in errors.
Result<ChatTemplateFile> load_chat_template(const std::filesystem::path& dir,
                                            std::string_view source, const std::string& field);

}  // namespace lathe
