// lathe generate: a prompt's answer as it comes, or the answers to a file of prompts in one batch.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/files/read_file.h"
#include "plan/explain.h"

#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"
#include "tools/flags/model_flags.h"
#include "tools/flags/sampling_flags.h"
#include "tools/terminal/answer.h"
#include "tools/terminal/prompts.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  PromptFlags prompts;
  bool json = false;
};

// The outcome of one prompt: the index of its answer in the set, or an error.
struct Entry {
  std::optional<std::size_t> answer;
  std::optional<Error> error;
};

// tokenizer: null for a model without one; its tokens have no text.
Json logprobs_json(const std::vector<SampledToken>& sampled, const Tokenizer* tokenizer) {
  const auto one = [&](std::int32_t token, double logprob) {
    const std::string text =
        tokenizer != nullptr ? tokenizer->decode(std::span(&token, 1)) : std::string();
    return Json{{"token", token}, {"text", text}, {"logprob", logprob}};
  };
  Json out = Json::array();
  for (const SampledToken& s : sampled) {
    Json j = one(s.token, s.logprob.value_or(0));
    j["top"] = Json::array();
    for (const TokenLogprob& t : s.top) j["top"].push_back(one(t.token, t.logprob));
    out.push_back(std::move(j));
  }
  return out;
}

Json answer_json(std::size_t index, const Answer& a, const Tokenizer* tokenizer) {
  Json j = {{"index", index},
            {"text", a.text},
            {"tokens", a.tokens},
            {"finish_reason", name(a.finished.reason)},
            {"prompt_tokens", a.finished.prompt_tokens},
            {"cached_tokens", a.finished.cached_tokens},
            {"completion_tokens", a.finished.answer_tokens}};
  if (!a.sampled.empty()) j["logprobs"] = logprobs_json(a.sampled, tokenizer);
  if (a.finished.error) j["error"] = a.finished.error->message();
  return j;
}

Json error_json(std::size_t index, const Error& error) {
  return {{"index", index},
          {"text", ""},
          {"finish_reason", name(FinishReason::error)},
          {"error", error.message()}};
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

// Prints the errors, with the number of the prompt in a batch. If some prompts are wrong, the run
// fails; if all are, the input is refused.
int tell_errors(const std::vector<Entry>& entries, const AnswerSet& answers, bool batched) {
  int code = kExitOk;
  std::size_t refused = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& error =
        entries[i].answer ? answers.answer(*entries[i].answer).finished.error : entries[i].error;
    if (!error) continue;
    code = kExitFailure;
    refused += entries[i].error ? 1 : 0;
    const auto of = batched ? fmt::format("prompt {}: ", i) : std::string();
    print_err("lathe: " + of + error->message() + "\n");
  }
  return refused == entries.size() ? kExitRefused : code;
}

// The model's tokenizer; none if it has no file of one and all prompts are token ids.
Result<std::optional<Tokenizer>> load_tokenizer(const GenerateFlags& flags,
                                                const std::vector<Prompt>& prompts) {
  const std::filesystem::path model = flags.model.runtime.model;
  const bool ids = std::ranges::all_of(
      prompts, [](const Prompt& p) { return p.error.has_value() || !p.ids.empty(); });
  if (ids && (model.empty() || !is_listed(Tokenizer::file_in(model)))) {
    if (flags.sampling.stop.empty()) return std::optional<Tokenizer>();
    return Error{ErrorCode::invalid_argument, "--stop", "a model with tokenizer.json",
                 "one without, whose answers are tokens", ""};
  }
  if (const auto ok = need_tokenizer(flags.model); !ok) return ok.error();
  auto tokenizer = Tokenizer::load(model);
  if (!tokenizer) return tokenizer.error();
  return std::optional(std::move(*tokenizer));
}

int run_generate(const GenerateFlags& flags) {
  const bool batched = flags.prompts.batched();
  if (flags.sampling.params.logprobs && !flags.json && !batched) {
    return refuse({ErrorCode::invalid_argument, "--logprobs", "--json or --prompts with it",
                   "text output", "--json"});
  }
  auto prompts = read_prompts(flags.prompts);
  if (!prompts) return refuse(prompts.error());
  // The tokenizer is read before the weights, so that a mistake in it shows at once.
  const auto loaded = load_tokenizer(flags, *prompts);
  if (!loaded) return refuse(loaded.error());
  const Tokenizer* tokenizer = *loaded ? &**loaded : nullptr;
  auto encoded = encode_prompts(flags.prompts, *prompts, tokenizer, flags.model.runtime.model);
  if (!encoded) return refuse(encoded.error());
  if (!batched && prompts->front().error) return refuse(*prompts->front().error);

  if (const auto ok = check_sampling_flags(flags.sampling); !ok) return refuse(ok.error());
  int exit_code = kExitOk;
  const auto runtime = start_model(flags.model, exit_code);
  if (!runtime) return exit_code;
  if (tokenizer != nullptr && !flags.model.quiet) {
    print_err(describe_tokens_beyond(*tokenizer, runtime->config().vocab));
  }
  const auto params = sampling_params(flags.sampling, runtime->config());
  if (!params) return refuse(params.error());

  AnswerSet answers(*runtime, tokenizer);
  std::vector<Entry> entries(encoded->size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    auto& [answer, error] = entries[i];
    error = (*prompts)[i].error;
    if (!error) {
      const auto added = answers.add({std::move((*encoded)[i]), *params}, flags.sampling.stop);
      if (added) {
        answer = *added;
      } else {
        error = added.error();
      }
    }
    const std::string& where = (*prompts)[i].where;
    if (error && !where.empty()) error->field.insert(0, where + ": ");
  }
  if (!batched && entries[0].error) return refuse(*entries[0].error);

  std::function<void(std::size_t, const std::string&)> on_text;
  if (!batched && !flags.json) {
    on_text = [](std::size_t, const std::string& text) {
      print_out(text);
      flush_out();
    };
  }
  // Prints answers in the order of the prompts, each as soon as it and all before it have ended.
  std::size_t printed = 0;
  const auto on_step = [&] {
    if (!batched && !flags.json) return;
    for (; printed < entries.size(); ++printed) {
      const Entry& e = entries[printed];
      if (e.answer && !answers.answer(*e.answer).ended) break;
      const Json line = e.answer ? answer_json(printed, answers.answer(*e.answer), tokenizer)
                                 : error_json(printed, *e.error);
      print_out(json_text(line) + "\n");
    }
    flush_out();
    if (batched && isatty(STDERR_FILENO) == 1) {
      print_err(
          fmt::format("\r{} of {} answers{}", printed, entries.size(), answers.done() ? "\n" : ""));
    }
  };
  on_step();
  int code = run_all(answers, on_text, on_step);
  if (on_text && tokenizer == nullptr) {
    print_out(fmt::format("{}", fmt::join(answers.answer(0).tokens, " ")));
  }
  if (on_text) print_out("\n");
  flush_out();  // before what goes to stderr
  if (code == kExitOk) code = tell_errors(entries, answers, batched);
  if (!flags.model.quiet) {
    std::string closing = describe(answers.times());
    if (!batched && code == kExitOk) {
      closing += fmt::format("finish    {}\n", name(answers.answer(0).finished.reason));
    }
    closing += describe_drafts(*runtime) + describe_stored_values(*runtime);
    print_err(closing + "plan      " + summary(runtime->plan()) + "\n");
  }
  return code;
}

}  // namespace

void add_generate_command(Command app, int& exit_code) {
  auto flags = std::make_shared<GenerateFlags>();
  Command cmd = app.add_subcommand("generate", "Continue a prompt, or a file of prompts at once");
  add_model_flags(cmd, flags->model);
  PromptFlags& p = flags->prompts;
  cmd.add_option("--prompt,-p", p.prompt, "text; - reads standard input, as no prompt at all does");
  cmd.add_option("--prompt-file,-f", p.prompt_file, "a file whose text is the prompt, or -")
      .not_empty();
  cmd.add_option("--prompt-ids", p.ids, "token ids, by commas; needs no tokenizer.json")
      .delimiter(',');
  const Flag prompts = cmd.add_option(
      "--prompts", p.prompts,
      R"(JSON lines, {"prompt": TEXT or [ID, ...]} or {"messages": [...]}, run as one batch; or -)");
  cmd.add_option("-n", p.count, "only the first prompts of --prompts").positive().needs(prompts);
  cmd.add_flag("--apply-chat-template", p.chat_template,
               "the prompt is a user's message in the model's chat format");
  cmd.add_option("--chat-template-kwargs", p.template_kwargs,
                 "a JSON object of the template's variables")
      .not_empty();
  add_sampling_flags(cmd, flags->sampling);
  cmd.add_option("--logprobs", flags->sampling.params.logprobs,
                 "of each token, and of this many most likely ones; with --json or --prompts");
  cmd.add_flag("--json", flags->json, "as data on stdout, one object an answer");
  cmd.callback([flags, &exit_code] { exit_code = run_generate(*flags); });
}

}  // namespace lathe
