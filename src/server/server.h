// Server: serves a model over HTTP. One thread serves connections, workers parse requests, the
// engine has its own thread.
//
//   connection -> worker (JSON, template, tokens) -> engine's inbox
//   engine, once a step -> serving thread (text, stop strings, format) -> connection
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/runtime.h"
#include "io/template/chat_template.h"
#include "io/tokenizer/tokenizer.h"
#include "server/service/options.h"

namespace lathe {

class Service;

class Server {
 public:
  /// Starts listening. Until serve(), answers health checks, and 503 where the model is needed.
  /// `tokenizer` and `chat` (null: the model has no template) outlive it. Errors:
  /// HttpServer::bind()'s.
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options,
                                               const Tokenizer& tokenizer,
                                               const ChatTemplateFile* chat);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// Bytes of weights loaded so far; from any thread.
  void set_progress(std::int64_t done, std::int64_t total);
  /// Starts taking requests. The runtime outlives the server. Returns a description of the markup
  /// of answers. Errors: those of generating the first token.
  Result<std::string> serve(Runtime& runtime);
  /// Waits until a signal has ended the server or the engine has failed; returns the exit code.
  int wait();
  /// Stops the server, for example if the model cannot be loaded.
  void stop();

 private:
  Server() = default;
  std::unique_ptr<Service> service_;
  std::thread thread_;
};

}  // namespace lathe
