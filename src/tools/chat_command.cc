// lathe chat: a conversation in the terminal.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/explain.h"
#include "io/chat_template.h"
#include "tools/answer.h"
#include "tools/chat_prompt.h"
#include "tools/command.h"
#include "tools/model_flags.h"
#include "tools/sampling_flags.h"

namespace lathe {
namespace {

using Json = nlohmann::ordered_json;

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system;
};

// Set by Ctrl-C while an answer is under way; the only thing that a signal handler may touch.
volatile std::sig_atomic_t interrupted = 0;

class InterruptScope {
 public:
  InterruptScope() {
    interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptScope() { sigaction(SIGINT, &before_, nullptr); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_ = {};
};

// A line with editing and recall on a terminal, a plain line otherwise. None at the end of input.
std::optional<std::string> read_user_line() {
  if (isatty(STDIN_FILENO) == 1) {
    const std::unique_ptr<char, void (*)(void*)> line(readline("> "), std::free);
    if (!line) return std::nullopt;
    if (line.get()[0] != '\0') add_history(line.get());
    return std::string(line.get());
  }
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

class Chat {
 public:
  Chat(Runtime& runtime, const Tokenizer& tokenizer, const ChatTemplateFile& chat,
       const ChatFlags& flags, SamplingParams params)
      : runtime_(runtime), tokenizer_(tokenizer), chat_(chat), flags_(flags), params_(params) {
    reset();
  }

  // False: the user wants to leave.
  bool handle(const std::string& line) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) return true;
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/plan") {
      print_out(explain(runtime_.plan()));
    } else if (line == "/stats") {
      print_out(stats());
    } else if (line == "/reset") {
      reset();
    } else if (line[0] == '/') {
      print_out(
          "/plan   the kernels and the cache behind the answers\n"
          "/stats  tokens, speed and cache\n"
          "/reset  forget the conversation\n"
          "/exit   leave (or Ctrl-D)\n");
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

  // The turn enters the history only when it has an answer, so a refused one can be asked again.
  void answer(const std::string& line) {
    Json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", line}});
    const auto prompt = encode_chat(messages, chat_, tokenizer_);
    if (!prompt) {
      print_err("lathe: " + prompt.error().message() + "\n");
      return;
    }
    AnswerSet answers(runtime_, tokenizer_);
    const auto index = answers.add({*prompt, params_}, flags_.sampling.stop);
    if (!index) {
      print_err("lathe: " + index.error().message() + "; /reset begins anew\n");
      return;
    }
    InterruptScope interrupt;
    while (!answers.done()) {
      const auto ok = answers.step([](std::size_t, const std::string& text) {
        print_out(text);
        std::fflush(stdout);
      });
      if (!ok) {
        print_err("\nlathe: " + ok.error().message() + "\n");
        answers.cancel(*index);
        return;
      }
      if (interrupted != 0) answers.cancel(*index);
    }
    print_out(interrupted != 0 ? "\n(stopped)\n" : "\n");
    const Answer& a = answers.answer(*index);
    if (a.finished.error) {
      print_err("lathe: " + a.finished.error->message() + "\n");
      return;
    }
    messages.push_back({{"role", "assistant"}, {"content", a.text}});
    messages_ = std::move(messages);
    last_ = answers.times();
  }

  std::string stats() {
    const EngineStats s = runtime_.engine().stats();
    return describe(last_) +
           fmt::format(
               "since start  {} tokens prefilled, {} decoded, {} from the prefix cache\n"
               "prefix cache {} tokens of {}\n",
               s.prefill_rows, s.decode_rows, s.cached_tokens, s.prefix_cache_tokens,
               runtime_.cache().tokens());
  }

  Runtime& runtime_;
  const Tokenizer& tokenizer_;
  const ChatTemplateFile& chat_;
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
  int exit_code = kExitOk;
  const auto runtime = start_model(flags.model, exit_code);
  if (!runtime) return exit_code;
  const auto params = sampling_params(flags.sampling, runtime->config().generation);
  if (!params) return refuse(params.error());
  if (const auto ok = check_sampling_params(*params, runtime->config().vocab, {}); !ok) {
    return refuse(ok.error());
  }
  if (const auto ok = StopStrings::create(flags.sampling.stop); !ok) return refuse(ok.error());

  if (isatty(STDIN_FILENO) == 1) {
    print_out("Ctrl-C stops an answer, /help lists the commands.\n");
    using_history();
  }
  Chat conversation(*runtime, *tokenizer, *chat, flags, *params);
  while (const auto line = read_user_line()) {
    if (!conversation.handle(*line)) break;
  }
  return kExitOk;
}

}  // namespace

void add_chat_command(Command app, int& exit_code) {
  auto flags = std::make_shared<ChatFlags>();
  Command cmd = app.add_subcommand("chat", "Talk to a model in the terminal");
  add_model_flags(cmd, flags->model);
  cmd.add_option("--system", flags->system, "the system's message");
  add_sampling_flags(cmd, flags->sampling);
  cmd.callback([flags, &exit_code] { exit_code = run_chat(*flags); });
}

}  // namespace lathe
