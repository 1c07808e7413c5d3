// ScriptedServer: a whole server in this process with a script as its model, for benchmarks and
// tests. Threads, engine, pages and sockets are the same as in `lathe serve`.
//
// The tokenizer has the 256 bytes, the words below, and special tokens for reasoning and tool
// marks; the chat template joins the contents of messages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/runtime.h"
#include "engine/scripted_model.h"
#include "server/server.h"

namespace lathe {

inline constexpr std::int32_t kScriptWords = 64;
inline constexpr std::int32_t kFirstWord = 256;  // token of " w0"
inline constexpr std::int32_t kScriptEos = kFirstWord + kScriptWords;
inline constexpr std::int32_t kScriptVocab = kScriptEos + 5;

struct ScriptedOptions {
  ServerOptions server;  // port 0; nothing is logged
  std::int64_t max_running_requests = 64;
  std::int64_t max_total_tokens = 1 << 16;
  std::int64_t chunked_prefill_size = 8192;
  std::int32_t context = 16384;
  std::string draft = "none";
  bool prefix_cache = true;
  std::string template_prefix;  // precedes the chat template: "{# </think> <tool_call> #}"
  bool special_marks = true;    // marks of reasoning and of calls are special tokens
  /// As Script's; empty: byte b is followed by word b mod 64, a word by the next one.
  std::function<std::int32_t(std::int32_t token, std::int32_t position)> next;
  std::function<Result<void>(std::int64_t rows)> on_forward;

  ScriptedOptions();
};

class ScriptedServer {
 public:
  /// Listens, loads and serves. `load` false: stays in state `loading` until serve().
  explicit ScriptedServer(ScriptedOptions options, bool load = true);
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  void serve();
  int port() const { return server_->port(); }
  Server& server() { return *server_; }

 private:
  ScriptedOptions options_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplateFile> chat_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Server> server_;  // last: it uses all of the above
};

/// The `tokens` tokens that the default script writes after `prompt`, as text.
std::string scripted_text(std::string_view prompt, std::int64_t tokens);

}  // namespace lathe
