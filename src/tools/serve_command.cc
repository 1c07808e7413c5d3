// lathe serve: serves a model by OpenAI's HTTP interface.
#include <fmt/format.h>

#include <memory>

#include "io/files/read_file.h"
#include "server/openai/fields.h"
#include "server/routes/routes.h"
#include "server/server.h"
#include "tools/eval/stored_values.h"
#include "tools/flags/command.h"
#include "tools/flags/serve_flags.h"

namespace lathe {
namespace {

// The template of the flag or the model. Without one chat is refused, and the rest works.
Result<std::optional<ChatTemplateFile>> load_template(ServeFlags& flags) {
  auto loaded = load_chat_template(flags.model.runtime.model);
  if (flags.chat_template.empty()) {
    if (loaded) return std::optional(std::move(*loaded));
    if (loaded.error().code == ErrorCode::unsupported || loaded.error().code == ErrorCode::io) {
      return std::optional<ChatTemplateFile>();
    }
    return loaded.error();
  }
  const auto text = read_file(flags.chat_template);
  if (!text) return text.error();
  auto parsed = ChatTemplate::parse(*text);
  if (!parsed) return parsed.error();
  ChatTemplateFile out{std::move(*parsed), "", ""};
  if (loaded) {
    out.bos_token = loaded->bos_token;
    out.eos_token = loaded->eos_token;
  }
  return std::optional(std::move(out));
}

int run_serve(const Command& command, ServeFlags& flags) {
  if (flags.list_routes) print_out(describe_routes());
  if (flags.list_fields) print_out(describe_fields());
  if (flags.list_routes || flags.list_fields) return kExitOk;
  if (const auto ok = need_tokenizer(flags.model); !ok) return refuse(ok.error());
  if (const auto ok = complete(command, flags); !ok) return refuse(ok.error());
  const auto tokenizer = Tokenizer::load(flags.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  const auto chat = load_template(flags);
  if (!chat) return refuse(chat.error());

  // The port is bound before the weights load: a taken port is reported at once, and /health
  // answers.
  auto server = Server::start(flags.server, *tokenizer, *chat ? &**chat : nullptr);
  if (!server) return refuse(server.error());
  if (!flags.model.quiet) {
    print_err(describe_effective(command));
    if (!*chat) print_err("chat      the model has no chat template; --chat-template FILE\n");
  }
  const std::string place = flags.server.uds.empty()
                                ? fmt::format("http://{}:{}", flags.server.host, (*server)->port())
                                : "unix:" + flags.server.uds;
  fmt::print(stderr, "listening {}\n", place);
  if (flags.server.log_requests >= 3) {
    print_err("warning   --log-requests 3 writes the texts of all requests and answers here\n");
  }
  if (flags.server.uds.empty() && !is_loopback(flags.server.host) &&
      flags.server.api_keys.empty()) {
    print_err("warning   anyone who reaches this machine may send requests: no --api-key is set\n");
  }
  std::fflush(stderr);
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
  if (!flags.model.quiet && *chat) print_err(*markup);
  fmt::print(stderr, "ready     {}\n", place);
  const int code = s.wait();
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
