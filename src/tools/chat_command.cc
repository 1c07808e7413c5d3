// lathe chat: a conversation in the terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "io/files/read_file.h"
#include "io/template/chat_messages.h"
#include "io/template/chat_prompt.h"
#include "io/template/chat_template.h"
#include "io/text/json_text.h"
#include "plan/explain.h"
#include "server/markup/answer_markup.h"
#include "server/markup/answer_parts.h"
#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"
#include "tools/flags/model_flags.h"
#include "tools/flags/sampling_flags.h"
#include "tools/terminal/answer.h"
#include "tools/terminal/answer_printer.h"
#include "tools/terminal/chat_input.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
  std::string template_kwargs;
  std::string show_reasoning = "auto";
};

// Default length of an answer: a model that never stops would fill the context.
constexpr std::int32_t kAnswerTokens = 2048;

// A line on the terminal while the prefill of a prompt needs several steps.
class ReadingProgress {
 public:
  explicit ReadingProgress(std::int64_t prompt) : prompt_(prompt) {}
  void show(std::int64_t rows) {
    if (isatty(STDERR_FILENO) == 0 || rows >= prompt_) return;
    print_err(fmt::format("\rreading the prompt   {} of {} tokens", rows, prompt_));
    shown_ = true;
  }
  void clear() {
    if (shown_) print_err("\r\x1b[K");
    shown_ = false;
  }

 private:
  std::int64_t prompt_;
  bool shown_ = false;
};

ShowReasoning show_reasoning(const std::string& name) {
  if (name == "show") return ShowReasoning::show;
  return name == "hide" ? ShowReasoning::hide : ShowReasoning::auto_;
}

// The parts of an answer to the prompt; a chat has no tools, so there are no calls.
AnswerParts parts_of(const AnswerMarkup& markup, const std::string& prompt) {
  MarkupRules rules;
  rules.reasoning = markup.reasoning != ReasoningFormat::none;
  rules.reasoning_format = markup.reasoning;
  if (markup.harmony()) {
    HarmonyRules harmony;
    harmony.begun = begun_message(prompt);
    harmony.marks_by_id = has_channel_marks(markup.marks);
    rules.harmony = std::move(harmony);
  } else {
    rules.starts_inside = ends_in_reasoning(markup.reasoning, prompt);
  }
  return AnswerParts(std::move(rules));
}

// Special tokens that an answer shows, as the text that its parts are found by.
std::vector<std::pair<std::int32_t, std::string>> shown_marks(const AnswerMarkup& markup) {
  const ReasoningMarks think = reasoning_marks(markup.reasoning);
  std::vector<std::pair<std::int32_t, std::string>> out;
  for (const auto& [token, text] : markup.marks) {
    if (markup.harmony()) {
      out.emplace_back(token, has_channel_marks(markup.marks) ? kMarkByte + text : text);
    } else if (text == think.begin || text == think.end || text == think.token) {
      out.emplace_back(token, text);
    }
  }
  return out;
}

// [{"role": TEXT, "content": TEXT}, ...]; an answer may have "reasoning_content".
Result<Json> read_conversation(const std::string& file) {
  const auto text = read_file(file);
  if (!text) return text.error();
  const auto parsed = parse_json(*text, file);
  if (!parsed) return parsed.error();
  const auto is_message = [](const nlohmann::json& m) {
    return m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content") &&
           m["content"].is_string();
  };
  if (!parsed->is_array() || !std::all_of(parsed->begin(), parsed->end(), is_message)) {
    return Error{ErrorCode::malformed, file,
                 R"([{"role": TEXT, "content": TEXT}, ...], as /save writes)",
                 json_excerpt(*parsed), ""};
  }
  Json out = Json::array();
  for (const auto& m : *parsed) {
    out.push_back({{"role", m["role"]}, {"content", m["content"]}});
    if (const auto at = m.find("reasoning_content"); at != m.end() && at->is_string()) {
      out.back()["reasoning_content"] = *at;
    }
  }
  if (out.empty()) return out;  // saved before the first message
  Json read = out;
  if (const auto ok = read_messages(read); !ok) {
    Error e = ok.error();
    e.field = file + ": " + e.field;
    return e;
  }
  return out;
}

class Chat {
 public:
  Chat(Runtime& runtime, const Tokenizer& tokenizer, const ChatTemplateFile& chat, Json variables,
       const ChatFlags& flags, SamplingParams params)
      : runtime_(runtime),
        tokenizer_(tokenizer),
        chat_(chat),
        markup_(find_answer_markup(chat.chat_template.source(), tokenizer)),
        variables_(std::move(variables)),
        flags_(flags),
        params_(params) {
    for (const auto& [token, text] : markup_.marks) {  // they end an answer in channels
      const bool ends = markup_.harmony() && (text == "<|return|>" || text == "<|call|>");
      if (ends && !params_.ignore_eos) params_.stop_token_ids.push_back(token);
    }
    reset();
  }

  // Returns false if the user wants to leave.
  bool handle(const std::string& line) {
    if (line.find_first_not_of(" \t\r\n") == std::string::npos) return true;
    if (line == "/exit" || line == "/quit") return false;
    const std::string_view file = line.size() > 6 ? std::string_view(line).substr(6) : "";
    if (line == "/plan") {
      print_out(explain(runtime_.plan()));
    } else if (line == "/stats") {
      print_out(stats());
    } else if (line == "/reset") {
      reset();
    } else if (line.starts_with("/save ") && !file.empty()) {
      save(std::string(file));
    } else if (line.starts_with("/load ") && !file.empty()) {
      load(std::string(file));
    } else if (line[0] == '/') {
      print_out(
          "/plan       the kernels and the cache behind the answers\n"
          "/stats      tokens, speed and cache\n"
          "/save FILE  write the conversation as JSON\n"
          "/load FILE  continue from what /save wrote\n"
          "/reset      forget the conversation\n"
          "/exit       leave (or Ctrl-D, or Ctrl-C twice)\n"
          "A line that ends in \\ goes on in the next one; lines between two of \"\"\" are one "
          "message.\n");
    } else {
      answer(line);
    }
    return true;
  }

 private:
  void reset() {
    messages_ = Json::array();
    if (!flags_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
    }
  }

  void save(const std::string& file) {
    std::ofstream out(file);
    out << json_text(messages_, 1) << "\n";
    out.close();
    if (!out) {
      print_err("lathe: " + file + ": wanted a file that can be written, got an error\n");
      return;
    }
    print_out(fmt::format("{} messages are in {}\n", messages_.size(), file));
  }

  void load(const std::string& file) {
    auto messages = read_conversation(file);
    if (!messages) {
      print_err("lathe: " + messages.error().message() + "\n");
      return;
    }
    messages_ = std::move(*messages);
    print_out(fmt::format("{} messages from {}\n", messages_.size(), file));
  }

  // Limits max_tokens, unless the user gave it, to the room that is left in the context.
  SamplingParams limited(std::int64_t prompt) const {
    SamplingParams params = params_;
    if (!params.max_tokens && runtime_.engine().capacity() - prompt > kAnswerTokens) {
      params.max_tokens = kAnswerTokens;
    }
    return params;
  }

  // A turn is added to the history once it has an answer, so a refused one can be asked again.
  void answer(const std::string& line) {
    Json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", line}});
    const auto text = render_chat(messages, chat_, variables_);
    const auto prompt = text ? tokenizer_.encode(*text) : text.error();
    if (!prompt) {
      print_err("lathe: " + prompt.error().message() + "\n");
      return;
    }
    AnswerSet answers(runtime_, tokenizer_);
    const auto index = answers.add({*prompt, limited(std::ssize(*prompt))}, flags_.sampling.stop,
                                   shown_marks(markup_));
    if (!index) {
      print_err("lathe: " + index.error().message() + "; /reset starts over\n");
      return;
    }
    const auto said = print_answer(answers, *index, *text, std::ssize(*prompt));
    if (!said) return;
    const Answer& a = answers.answer(*index);
    if (a.finished.error) {
      print_err("lathe: " + a.finished.error->message() + "\n");
      return;
    }
    if (!params_.max_tokens && a.finished.answer_tokens == kAnswerTokens) {
      print_out(
          fmt::format("(stopped after {} tokens; --max-new-tokens allows more)\n", kAnswerTokens));
    }
    messages.push_back({{"role", "assistant"}, {"content", said->content}});
    if (!said->reasoning.empty()) messages.back()["reasoning_content"] = said->reasoning;
    messages_ = std::move(messages);
    last_ = answers.times();
  }

  // Prints an answer while it is made, and returns its parts; none if a step failed.
  std::optional<TextParts> print_answer(AnswerSet& answers, std::size_t index,
                                        const std::string& prompt, std::int64_t prompt_tokens) {
    InterruptScope interrupt;
    ReadingProgress reading(prompt_tokens);
    AnswerPrinter printer(show_reasoning(flags_.show_reasoning), stdout_columns());
    AnswerParts parts = parts_of(markup_, prompt);
    TextParts all, part;
    const auto show = [&] {
      all.reasoning += part.reasoning;
      all.content += part.content;
      print_out(printer.push(part));
      flush_out();
      part.clear();
    };
    while (!answers.done()) {
      const auto ok = answers.step([&](std::size_t, const std::string& piece) {
        reading.clear();
        parts.push(piece, part);
        show();
      });
      if (!ok) {
        reading.clear();
        print_err("\nlathe: " + ok.error().message() + "\n");
        answers.cancel(index);
        return std::nullopt;
      }
      if (answers.answer(index).tokens.empty()) reading.show(answers.times().prefill_rows);
      if (interrupted != 0) answers.cancel(index);
    }
    reading.clear();
    parts.finish(part, answers.answer(index).finished.reason == FinishReason::stop);
    show();
    print_out(printer.finish() + (interrupted != 0 ? "\n(stopped)\n" : "\n"));
    return all;
  }

  std::string stats() {
    const EngineStats s = runtime_.engine().stats();
    return describe(last_) +
           fmt::format(
               "since start  {} tokens prefilled, {} decoded, {} from the prefix cache\n"
               "prefix cache {} tokens of {}\n"
               "an answer    has at most {} tokens (--max-new-tokens{})\n",
               s.prefill_rows, s.decode_rows + s.drafts.all_accepted(), s.cached_tokens,
               s.prefix_cache_tokens, runtime_.cache().tokens(),
               params_.max_tokens.value_or(kAnswerTokens),
               params_.max_tokens ? "" : ", the default") +
           describe_drafts(runtime_) + describe_stored_values(runtime_);
  }

  Runtime& runtime_;
  const Tokenizer& tokenizer_;
  const ChatTemplateFile& chat_;
  AnswerMarkup markup_;
  Json variables_;  // of the template
  const ChatFlags& flags_;
  SamplingParams params_;
  Json messages_;
  AnswerTimes last_;
};

int run_chat(const ChatFlags& flags) {
  if (const auto ok = need_tokenizer(flags.model); !ok) return refuse(ok.error());
  const auto tokenizer = Tokenizer::load(flags.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  const auto chat = load_chat_template(flags.model.runtime.model);
  if (!chat) return refuse(chat.error());
  auto variables =
      read_chat_variables(flags.template_kwargs, "--chat-template-kwargs", /*tools=*/false);
  if (!variables) return refuse(variables.error());
  if (const auto ok = check_sampling_flags(flags.sampling); !ok) return refuse(ok.error());
  int exit_code = kExitOk;
  const auto runtime = start_model(flags.model, exit_code);
  if (!runtime) return exit_code;
  if (!flags.model.quiet) {
    print_err(describe_tokens_beyond(*tokenizer, runtime->config().vocab));
  }
  const auto params = sampling_params(flags.sampling, runtime->config());
  if (!params) return refuse(params.error());

  if (isatty(STDIN_FILENO) == 1) print_out("Ctrl-C stops an answer, /help lists the commands.\n");
  Chat conversation(*runtime, *tokenizer, *chat, std::move(*variables), flags, *params);
  ChatInput input;
  const InterruptScope keep;  // between a line and its answer, too
  while (const auto message = input.next()) {
    if (!conversation.handle(*message)) break;
  }
  if (!flags.model.quiet) print_err(describe_stored_values(*runtime));
  return kExitOk;
}

}  // namespace

void add_chat_command(Command app, int& exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  Command cmd = app.add_subcommand("chat", "Talk to a model in the terminal");
  add_model_flags(cmd, flags->model);
  cmd.add_option("--system", flags->system, "the system's message");
  cmd.add_option("--chat-template-kwargs", flags->template_kwargs,
                 "a JSON object of the template's variables")
      .not_empty();
  cmd.add_option("--reasoning", flags->show_reasoning,
                 "auto: shown dim on a terminal, left out elsewhere; show, hide")
      .one_of({"auto", "show", "hide"});
  add_sampling_flags(cmd, flags->sampling);
  cmd.callback([flags, &exit_code] { exit_code = run_chat(*flags); });
}

}  // namespace lathe
