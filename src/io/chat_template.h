// ChatTemplate: what turns a conversation into a model's prompt: a Jinja template, rendered as
// Hugging Face transformers renders it, or DeepSeek V4's encoding. docs/chat-templates.md lists
// what is supported.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/deepseek_v4_chat.h"
#include "io/jinja_runtime.h"

namespace lathe {

struct RenderOptions {
  /// What strftime_now() formats; the local time where absent.
  std::optional<std::tm> now;
  JinjaLimits limits;
};

class ChatTemplate {
 public:
  /// Errors name the template's line: malformed, or unsupported for Jinja that chat templates do
  /// not use.
  static Result<ChatTemplate> parse(std::string_view source);
  static ChatTemplate deepseek_v4(V4Encoding encoding);

  /// The prompt. `variables` is an object: messages, add_generation_prompt, tools, bos_token, ...
  /// Errors name the template's line, or the variable of an encoding without template: malformed
  /// (what Jinja would reject), unsupported, invalid_argument (the template's own raise_exception),
  /// exhausted (a limit of `options`). Safe from several threads.
  Result<std::string> render(const nlohmann::ordered_json& variables,
                             const RenderOptions& options = {}) const;
  /// Text with the marks that answers may have: of reasoning and of tool calls.
  std::string_view source() const;

 private:
  struct Parsed;
  std::shared_ptr<const Parsed> parsed_;
};

/// What a model's folder says about its prompts.
struct ChatTemplateFile {
  ChatTemplate chat_template;
  std::string bos_token;  // empty where the folder names none
  std::string eos_token;
};

/// Reads chat_template.jinja, or else chat_template.json, or else tokenizer_config.json's
/// "chat_template" (a string, or a list of named ones, of which "default"); the tokens from
/// tokenizer_config.json. A DeepSeek V4 folder without any has V4's encoding, of the generation
/// that its encoding/encoding_dsv4.py shows, or else config.json (an official release has dspark_*
/// fields). Errors: io, malformed, unsupported (a folder without a template).
Result<ChatTemplateFile> load_chat_template(const std::filesystem::path& dir);

}  // namespace lathe
