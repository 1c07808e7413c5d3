// lathe tokenize: a text as a model's token ids, and ids as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tools/flags/command.h"
#include "tools/terminal/prompts.h"

namespace lathe {
namespace {

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  std::vector<std::int32_t> ids;
  bool special = false;
  bool json = false;
};

Result<void> check_ids(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < tokenizer.vocab_size() && tokenizer.has(ids[i])) continue;
    return Error{ErrorCode::out_of_range, fmt::format("--decode[{}]", i),
                 fmt::format("a token of the vocabulary, below {}", tokenizer.vocab_size()),
                 fmt::format("{}", ids[i]), ""};
  }
  return {};
}

int run_tokenize(const TokenizeFlags& flags) {
  const auto tokenizer = Tokenizer::load(flags.model);
  if (!tokenizer) return refuse(tokenizer.error());
  std::vector<std::int32_t> ids = flags.ids;
  if (ids.empty()) {
    PromptFlags source;
    source.name = "text";
    source.file_name = "--file";
    source.sources = "TEXT, --file FILE, --decode IDS, or text on stdin";
    source.prompt = flags.text;
    source.prompt_file = flags.file;
    const auto prompts = read_prompts(source);
    if (!prompts) return refuse(prompts.error());
    auto encoded = tokenizer->encode(prompts->front().text, flags.special);
    if (!encoded) return refuse(encoded.error());
    ids = std::move(*encoded);
  } else if (const auto ok = check_ids(*tokenizer, ids); !ok) {
    return refuse(ok.error());
  }
  if (flags.json) {
    nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
    for (const std::int32_t id : ids) pieces.push_back(tokenizer->decode(std::span(&id, 1)));
    const nlohmann::ordered_json out = {
        {"tokens", ids}, {"pieces", pieces}, {"text", tokenizer->decode(ids)}};
    print_out(json_text(out) + "\n");
  } else if (flags.ids.empty()) {
    print_out(fmt::format("{}\n", fmt::join(ids, " ")));
  } else {
    print_out(tokenizer->decode_bytes(ids) + "\n");
  }
  return kExitOk;
}

}  // namespace

void add_tokenize_command(Command app, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  Command cmd = app.add_subcommand("tokenize", "Turn text into token ids, and ids into text");
  cmd.add_option("--model,--model-path", flags->model, "directory with tokenizer.json").required();
  const Flag text = cmd.add_option("text", flags->text, "- or none reads standard input");
  Flag file = cmd.add_option("--file,-f", flags->file, "a file with the text");
  Flag ids = cmd.add_option("--decode", flags->ids, "token ids, by commas, that become text")
                 .delimiter(',');
  file.excludes(text);
  ids.excludes(text).excludes(file);
  cmd.add_flag("--special", flags->special,
               "add the special tokens that the tokenizer puts around a text");
  cmd.add_flag("--json", flags->json, "ids, each one's text, and the text, as data on stdout");
  cmd.callback([flags, &exit_code] { exit_code = run_tokenize(*flags); });
}

}  // namespace lathe
