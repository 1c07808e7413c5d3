// The prompts of `lathe generate`: text, token ids or messages, from flags, files or standard
// input.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/tokenizer/tokenizer.h"

namespace lathe {

struct PromptFlags {
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::vector<std::int32_t> ids;
  std::string prompts;     // JSON lines
  std::int64_t count = 0;  // of them; 0: all
  bool chat_template = false;
  std::string template_kwargs;  // a JSON object's text

  bool batched() const { return !prompts.empty(); }
};

/// One of the three, or the error of a line that is not any of them.
struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;    // taken as they are
  nlohmann::ordered_json messages;  // an array for the chat template, or null
  std::optional<Error> error;
};

/// "-" in place of a text or a file, and no flag at all, read standard input. Errors: more than one
/// source or none; a file that cannot be read, or that has no prompt. A line that is not a prompt
/// becomes one with an error.
Result<std::vector<Prompt>> read_prompts(const PromptFlags& flags);

/// Tokens of every prompt; of one with an error none. The chat template of the model's directory is
/// read only where messages ask for it, and its errors on a prompt become that prompt's. Errors: no
/// template, `flags`' variables of it.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const PromptFlags& flags,
                                                              std::vector<Prompt>& prompts,
                                                              const Tokenizer& tokenizer,
                                                              const std::string& directory);

/// All of standard input. Errors: it cannot be read.
Result<std::string> read_stdin();

}  // namespace lathe
