#include "server/server.h"

#include "server/routes/routes.h"
#include "server/service/service.h"

namespace lathe {

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options,
                                              const Tokenizer& tokenizer,
                                              const ChatTemplateFile* chat) {
  auto http =
      HttpServer::bind(options.host, options.port, options.uds, options.http, options.http_threads);
  if (!http) return http.error();
  std::unique_ptr<Server> out(new Server);
  out->service_ = std::make_unique<Service>(options, std::move(*http), tokenizer, chat,
                                            Service::Routes{&dispatch, &reads_body, &error_body});
  out->thread_ = std::thread([service = out->service_.get()] { service->run(); });
  return out;
}

Server::~Server() {
  stop();
  wait();
}

int Server::port() const { return service_->http().port(); }

void Server::set_progress(std::int64_t done, std::int64_t total) {
  service_->set_progress(done, total);
}

Result<std::string> Server::serve(Runtime& runtime) {
  // Generate one token before the first request, to initialise what is created on first use.
  Engine& engine = runtime.engine();
  Request first{{0}, {}, {}};
  first.sampling.temperature = 0;
  first.sampling.max_tokens = 1;
  if (const auto id = engine.submit(std::move(first)); !id) return id.error();
  while (!engine.idle()) {
    if (const auto report = engine.step(); !report) return report.error();
  }
  engine.clear_prefix_cache();
  auto model = std::make_shared<ServedModel>(runtime, service_->tokenizer(), service_->chat(),
                                             service_->options());
  std::string markup = model->markup;
  service_->serve(std::move(model), engine);
  return markup;
}

int Server::wait() {
  if (thread_.joinable()) thread_.join();
  return service_->exit_code();
}

void Server::stop() {
  service_->http().post([this] { service_->end(service_->exit_code()); });
}

}  // namespace lathe
