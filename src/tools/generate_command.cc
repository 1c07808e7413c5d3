// lathe generate: a prompt's answer as it comes, or the answers to a file of prompts in one batch.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/explain.h"
#include "io/chat_template.h"
#include "io/json_text.h"
#include "io/read_file.h"
#include "tools/answer.h"
#include "tools/chat_prompt.h"
#include "tools/command.h"
#include "tools/model_flags.h"
#include "tools/sampling_flags.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string prompts;  // JSONL
  std::int64_t count = 0;
  bool chat_template = false;
  bool json = false;
};

// A prompt is text, or messages that the chat template turns into text.
struct Prompt {
  std::string text;
  Json messages;  // an array, or null
};

Json user_message(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

Result<Prompt> parse_line(const std::string& line, const std::string& where, bool chat_template) {
  bool too_deep = false;  // for whoever calls itself for each level
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMostLevels;
    return depth <= kMostLevels;
  };
  Json j = Json::parse(line, watch, /*allow_exceptions=*/false);
  const auto wrong = [&](const std::string& got) {
    return Error{ErrorCode::malformed, where,
                 R"({"prompt": TEXT} or {"messages": [{"role": ..., "content": ...}]})", got, ""};
  };
  if (too_deep) return wrong(fmt::format("more than {} levels", kMostLevels));
  if (!j.is_object()) return wrong("no JSON object");
  Prompt p;
  if (j.contains("messages") && j["messages"].is_array()) {
    p.messages = std::move(j["messages"]);
  } else if (j.contains("prompt") && j["prompt"].is_string()) {
    p.text = j["prompt"].get<std::string>();
    if (chat_template) p.messages = user_message(p.text);
  } else {
    return wrong("neither of them");
  }
  return p;
}

Result<std::vector<Prompt>> read_prompts(const GenerateFlags& flags) {
  std::vector<Prompt> out;
  if (flags.prompts.empty()) {
    Prompt p{flags.prompt.value_or(""), nullptr};
    if (!flags.prompt_file.empty()) {
      const auto text = read_file(flags.prompt_file);
      if (!text) return text.error();
      p.text = *text;
    }
    if (flags.chat_template) p.messages = user_message(p.text);
    out.push_back(std::move(p));
    return out;
  }
  const auto text = read_file(flags.prompts);
  if (!text) return text.error();
  std::size_t number = 0;
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (flags.count > 0 && std::ssize(out) == flags.count) break;
    auto p = parse_line(line, fmt::format("{}:{}", flags.prompts, number), flags.chat_template);
    if (!p) return p.error();
    out.push_back(std::move(*p));
  }
  if (out.empty()) {
    return Error{ErrorCode::invalid_argument, "--prompts", "at least one prompt",
                 flags.prompts + " without any", ""};
  }
  return out;
}

// Tokens of every prompt. The template is read only where messages ask for it.
Result<std::vector<std::vector<std::int32_t>>> encode_prompts(const std::vector<Prompt>& prompts,
                                                              const Tokenizer& tokenizer,
                                                              const std::string& directory) {
  std::optional<ChatTemplateFile> chat;
  std::vector<std::vector<std::int32_t>> out;
  for (const Prompt& p : prompts) {
    if (p.messages.is_null()) {
      out.push_back(tokenizer.encode(p.text, /*add_special_tokens=*/true));
      continue;
    }
    if (!chat) {
      auto loaded = load_chat_template(directory);
      if (!loaded) return loaded.error();
      chat = std::move(*loaded);
    }
    auto tokens = encode_chat(p.messages, *chat, tokenizer);
    if (!tokens) return tokens.error();
    out.push_back(std::move(*tokens));
  }
  return out;
}

Json answer_json(std::size_t index, const Answer& a) {
  Json j = {{"index", index},
            {"text", a.text},
            {"finish_reason", name(a.finished.reason)},
            {"prompt_tokens", a.finished.prompt_tokens},
            {"cached_tokens", a.finished.cached_tokens},
            {"completion_tokens", a.finished.answer_tokens}};
  if (a.finished.error) j["error"] = a.finished.error->message();
  return j;
}

int run_all(AnswerSet& answers, const std::function<void(std::size_t, const std::string&)>& on_text,
            const std::function<void()>& on_step) {
  while (!answers.done()) {
    if (const auto ok = answers.step(on_text); !ok) {
      print_err("lathe: " + ok.error().message() + "\n");
      return kExitFailure;
    }
    if (on_step) on_step();
  }
  return kExitOk;
}

// What went wrong in answers, by their prompts where there are several.
int tell_errors(const AnswerSet& answers) {
  int code = kExitOk;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto& error = answers.answer(i).finished.error;
    if (!error) continue;
    code = kExitFailure;
    const auto of = answers.size() > 1 ? fmt::format("prompt {}: ", i) : std::string();
    print_err("lathe: " + of + error->message() + "\n");
  }
  return code;
}

int run_generate(const GenerateFlags& flags) {
  const auto given =
      int{flags.prompt.has_value()} + int{!flags.prompt_file.empty()} + int{!flags.prompts.empty()};
  if (given != 1) {
    return refuse({ErrorCode::invalid_argument, "--prompt",
                   "one of --prompt TEXT, --prompt-file FILE, --prompts FILE.jsonl",
                   given == 0 ? "none" : fmt::format("{} of them", given), ""});
  }
  const auto prompts = read_prompts(flags);
  if (!prompts) return refuse(prompts.error());
  // The tokenizer comes before the weights: a mistake in it shows at once.
  if (const auto ok = need_tokenizer(flags.model); !ok) return refuse(ok.error());
  const auto tokenizer = Tokenizer::load(flags.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  const auto encoded = encode_prompts(*prompts, *tokenizer, flags.model.runtime.model);
  if (!encoded) return refuse(encoded.error());

  int exit_code = kExitOk;
  const auto runtime = start_model(flags.model, exit_code);
  if (!runtime) return exit_code;
  const auto params = sampling_params(flags.sampling, runtime->config().generation);
  if (!params) return refuse(params.error());

  AnswerSet answers(*runtime, *tokenizer);
  for (std::size_t i = 0; i < encoded->size(); ++i) {
    const auto added = answers.add({(*encoded)[i], *params}, flags.sampling.stop);
    if (!added) {
      Error e = added.error();
      if (encoded->size() > 1) e.field = fmt::format("prompt {}: {}", i, e.field);
      return refuse(e);
    }
  }

  const bool batched = !flags.prompts.empty();
  std::function<void(std::size_t, const std::string&)> on_text;
  if (!batched && !flags.json) {
    on_text = [](std::size_t, const std::string& text) {
      print_out(text);
      std::fflush(stdout);
    };
  }
  // Answers appear in the order of the prompts, each as soon as it and those before it have ended.
  std::size_t printed = 0;
  const auto on_step = [&] {
    if (!batched && !flags.json) return;
    while (printed < answers.size() && answers.answer(printed).ended) {
      print_out(answer_json(printed, answers.answer(printed))
                    .dump(-1, ' ', false, Json::error_handler_t::replace) +
                "\n");
      ++printed;
    }
    std::fflush(stdout);
    if (batched && isatty(STDERR_FILENO) == 1) {
      fmt::print(stderr, "\r{} of {} answers{}", printed, answers.size(),
                 answers.done() ? "\n" : "");
    }
  };
  int code = run_all(answers, on_text, on_step);
  if (on_text) print_out("\n");
  std::fflush(stdout);  // before what goes to stderr
  if (code == kExitOk) code = tell_errors(answers);
  if (!flags.model.quiet) {
    std::string closing = describe(answers.times());
    if (!batched && code == kExitOk) {
      closing += fmt::format("finish    {}\n", name(answers.answer(0).finished.reason));
    }
    print_err(closing + "plan      " + summary(runtime->plan()) + "\n");
  }
  return code;
}

}  // namespace

void add_generate_command(Command app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  Command cmd = app.add_subcommand("generate", "Continue a prompt, or a file of prompts at once");
  add_model_flags(cmd, flags->model);
  cmd.add_option("--prompt,-p", flags->prompt, "text");
  cmd.add_option("--prompt-file,-f", flags->prompt_file, "a file whose text is the prompt");
  cmd.add_option("--prompts", flags->prompts,
                 R"(JSON lines, {"prompt": ...} or {"messages": [...]}, run as one batch)");
  cmd.add_option("-n", flags->count, "only the first prompts of --prompts").positive();
  cmd.add_flag("--apply-chat-template", flags->chat_template,
               "the prompt is a user's message in the model's chat format");
  add_sampling_flags(cmd, flags->sampling);
  cmd.add_flag("--json", flags->json, "as data on stdout, one object an answer");
  cmd.callback([flags, &exit_code] { exit_code = run_generate(*flags); });
}

}  // namespace lathe
