// lathe serve: serves a model by OpenAI's HTTP interface.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "io/files/read_file.h"
#include "server/routes/routes.h"
#include "server/server.h"
#include "server/service/protocol.h"
#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"
#include "tools/flags/serve_flags.h"

namespace lathe {
namespace {

// The template of the flag or the model. Without one chat is refused, and the rest works.
Result<std::optional<ChatTemplateFile>> load_template(ServeFlags& flags) {
  const std::string& model = flags.model.runtime.model;
  if (flags.chat_template.empty()) {
    auto loaded = load_chat_template(model);
    if (loaded) return std::optional(std::move(*loaded));
    if (loaded.error().code == ErrorCode::unsupported) {
      return std::optional<ChatTemplateFile>();
    }
    return loaded.error();
  }
  const auto text = read_flag_file("--chat-template", flags.chat_template);
  if (!text) return text.error();
  auto loaded = load_chat_template(model, *text, "--chat-template " + flags.chat_template);
  if (!loaded) return loaded.error();
  return std::optional(std::move(*loaded));
}

// "ready     http://..." as {"event":"ready","text":"http://..."}; lines that are JSON as they are.
std::string json_line(std::string_view line) {
  if (line.starts_with('{')) return std::string(line);
  if (line.starts_with('\r')) line.remove_prefix(1);
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::size_t text = std::min(line.find_first_not_of(' ', end), line.size());
  const std::string_view event = line.substr(0, end);
  return json_text({{"event", event == "lathe:" ? "error" : event}, {"text", line.substr(text)}});
}

int run_serve(const Command& command, ServeFlags& flags) {
  if (flags.list_routes) print_out(describe_routes());
  if (flags.list_fields) print_out(describe_all_fields());
  if (flags.list_routes || flags.list_fields) return kExitOk;
  if (const auto ok = need_tokenizer(flags.model); !ok) return refuse(ok.error());
  if (const auto ok = complete(command, flags); !ok) return refuse(ok.error());
  if (flags.server.log_json) format_err_lines(json_line);
  const auto tokenizer = Tokenizer::load(flags.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  const auto chat = load_template(flags);
  if (!chat) return refuse(chat.error());
  if (!*chat && !flags.template_kwargs.empty()) {
    return refuse({ErrorCode::invalid_argument, "--chat-template-kwargs",
                   "a model with a chat template", "one without", "--chat-template FILE"});
  }

  // The port is bound before the weights load: a taken port is reported at once, and /health
  // answers.
  auto server = Server::start(flags.server, *tokenizer, *chat ? &**chat : nullptr);
  if (!server) return refuse(server.error());
  if (!flags.model.quiet) {
    print_err(describe_effective(command));
    if (!*chat) print_err("chat      the model has no chat template; --chat-template FILE\n");
  }
  const std::string& host = flags.server.host;
  const bool ipv6 = host.find(':') != std::string::npos;
  const std::string place =
      flags.server.uds.empty()
          ? fmt::format("http://{}:{}", ipv6 ? "[" + host + "]" : host, (*server)->port())
          : "unix:" + flags.server.uds;
  print_err(fmt::format("listening {}\n", place));
  if (flags.server.log_requests >= 3) {
    print_err("warning   --log-requests 3 writes the texts of all requests and answers here\n");
  }
  for (const std::string& warning : flags.warnings) {
    print_err(fmt::format("warning   {}\n", warning));
  }
  if (flags.server.uds.empty() && !is_loopback(flags.server.host) &&
      flags.server.api_keys.empty()) {
    print_err("warning   anyone who reaches this machine may send requests: no --api-key is set\n");
  }
  int exit_code = kExitOk;
  Server& s = **server;
  const auto runtime =
      start_model(flags.model, exit_code,
                  [&s](std::int64_t done, std::int64_t total) { s.set_progress(done, total); });
  if (!runtime) {
    server->reset();
    return exit_code;
  }
  const auto markup = s.serve(*runtime);
  if (!markup) {
    server->reset();
    return refuse(markup.error());
  }
  if (!flags.model.quiet) {
    if (*chat) print_err(*markup);
    print_err(describe_tokens_beyond(*tokenizer, runtime->config().vocab));
  }
  print_err(fmt::format("ready     {}\n", place));
  const int code = s.wait();
  print_err(fmt::format("stopped   exit code {}\n", code));
  if (!flags.model.quiet) print_err(describe_stored_values(*runtime));
  server->reset();
  return code;
}

}  // namespace

void add_serve_command(Command app, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  Command cmd = app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's clients expect");
  add_serve_flags(cmd, *flags);
  cmd.callback([flags, cmd, &exit_code] { exit_code = run_serve(cmd, *flags); });
}

}  // namespace lathe
