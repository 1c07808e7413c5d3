// Server: a model behind HTTP. One thread serves connections, workers read requests, the engine has
// a thread of its own.
//
//   connection -> worker (JSON, template, tokens) -> engine's inbox
//   engine, once a step -> serving thread (text, stop strings, format) -> connection
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/runtime.h"
#include "io/chat_template.h"
#include "io/tokenizer.h"
#include "server/service/options.h"

namespace lathe {

class Service;

class Server {
 public:
  /// Listens and answers: health, and 503 for what needs the model. `tokenizer` and `chat` (null:
  /// the model has no template) outlive it. Errors: HttpServer::bind()'s.
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options,
                                               const Tokenizer& tokenizer,
                                               const ChatTemplateFile* chat);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// Bytes of weights that are loaded; from any thread.
  void set_progress(std::int64_t done, std::int64_t total);
  /// Takes requests from here on. The runtime outlives the server. How answers are marked up and
  /// why, for people. Errors: the first token's.
  Result<std::string> serve(Runtime& runtime);
  /// Until a signal has ended it, or the engine has failed. The exit code.
  int wait();
  /// Ends it, as where the model cannot be loaded.
  void stop();

 private:
  Server() = default;
  std::unique_ptr<Service> service_;
  std::thread thread_;
};

}  // namespace lathe
