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
  std::int64_t count = 0;  // lines to read; 0: all
  bool chat_template = false;
  std::string template_kwargs;  // a JSON object's text

  // The command's own flags, for errors.
  std::string name = "--prompt";
  std::string file_name = "--prompt-file";
  std::string sources =
      "--prompt TEXT, --prompt-file FILE, --prompt-ids IDS, --prompts FILE.jsonl, or text on stdin";

  bool batched() const { return !prompts.empty(); }
};

/// A text, token ids or messages; or the error of a line that is none of them.
struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;    // used as they are
  nlohmann::ordered_json messages;  // an array for the chat template, or null
  std::string where;  // "FILE:LINE", which `error` does not say; empty: it does, or a flag's
  std::optional<Error> error;
};

/// Reads standard input for "-" in place of a text or a file, and without any flag. Errors: more
/// than one source or none; a file that cannot be read, or that has no prompt. A line that is not a
/// prompt becomes one with an error. Names on stderr the members of lines that it does not read.
Result<std::vector<Prompt>> read_prompts(const PromptFlags& flags);

/// The tokens of every prompt; a prompt with an error has none. Reads the chat template in
/// `directory` only if there are messages; its errors on a prompt become that prompt's. `tokenizer`
/// may be null if all prompts are ids. Errors: no template, `flags`' variables of it.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const PromptFlags& flags,
                                                              std::vector<Prompt>& prompts,
                                                              const Tokenizer* tokenizer,
                                                              const std::string& directory);

/// All of standard input. Errors: it cannot be read.
Result<std::string> read_stdin();

}  // namespace lathe
