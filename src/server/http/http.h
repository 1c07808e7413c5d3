// HTTP/1.1 as the rest of the server sees it: requests come whole, answers go out whole or in
// chunks. Boost's Asio and Beast, which do the work, stay behind this header; they compile slowly.
//
// One thread, the one in HttpServer::run(), calls handlers. What is called on an HttpAnswer is
// called there; other threads get there by HttpServer::post().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace lathe {

struct HttpHeader {
  std::string name;  // of requests in lower case
  std::string value;
};

struct HttpRequest {
  std::string method;
  std::string path;   // as it came, without the query
  std::string query;  // behind the "?"
  std::vector<HttpHeader> headers;
  std::string body;

  /// The first header of that name, in lower case; null: there is none.
  const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<HttpHeader> headers;
  bool close = false;  // the connection ends behind it
};

/// left  closed its connection, or half of it
/// slow  took nothing, or too little, and was closed
enum class ClientEnd { left, slow };

/// Where one request's answer goes. Once the client has gone, calls do nothing.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  /// The whole answer; once, and not with a stream.
  virtual void send(HttpResponse response) = 0;
  /// The head of a stream of events, then chunks of its body, then its end.
  virtual void begin_stream(std::vector<HttpHeader> headers) = 0;
  virtual void write(std::string_view chunk) = 0;
  virtual void end_stream() = 0;

  virtual bool gone() const = 0;
  /// Called once if the client goes before the answer has ended.
  virtual void on_gone(std::function<void(ClientEnd)> call) = 0;
  /// Bytes that the client has not taken.
  virtual std::size_t unsent() const = 0;
};

struct HttpLimits {
  std::int64_t max_connections = 16384;
  std::size_t max_body_bytes = 16 << 20;
  std::size_t max_header_bytes = 32 << 10;
  std::size_t max_headers = 100;
  std::size_t max_unsent_bytes = 4 << 20;  // beyond: the client is too slow, the connection ends
  // Seconds.
  int keep_alive_timeout = 120;  // between requests
  int header_timeout = 10;       // from a request's first byte, or a connection's start
  int body_timeout = 60;         // for a body
  int slow_client_timeout = 30;  // without a byte taken
  int sse_keep_alive = 15;       // without an event
};

/// What a server asks of its owner, in the thread of run() unless it says otherwise.
struct HttpHandler {
  std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)> request;
  /// The answer to what is no acceptable request: status, code (a constant) and message of an
  /// error. From any thread.
  std::function<HttpResponse(int, std::string_view, std::string)> error;
  /// Such an answer has been given.
  std::function<void(int, std::string_view)> refused = [](int, std::string_view) {};
  std::function<void()> tick = [] {};  // once a second
};

class HttpServer {
 public:
  /// Listens; port 0 takes any. With `path`, on a Unix socket there, which takes the place of one
  /// that nobody listens on. Errors: an address that cannot be listened on, naming --host, --port
  /// or --uds; `--max-connections` beyond what the system lets a process open.
  /// `threads` 1: the thread of run() owns all connections; more: so many others own them, which
  /// parse requests and send answers.
  static Result<std::unique_ptr<HttpServer>> bind(const std::string& host, int port,
                                                  const std::string& path, const HttpLimits& limits,
                                                  int threads);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;  // 0: a Unix socket
  /// Serves until stop(). SIGTERM and SIGINT call `on_signal`.
  virtual void run(HttpHandler handler, std::function<void(int)> on_signal) = 0;
  /// From any thread: `call` runs in run()'s.
  virtual void post(std::function<void()> call) = 0;
  // In run()'s thread.
  /// Takes no more connections, and closes each once its answer has ended.
  virtual void close_listener() = 0;
  /// Ends run(), when what has been written is sent or a second has passed.
  virtual void stop() = 0;
  virtual std::int64_t connections() const = 0;
};

const char* status_text(int status);

}  // namespace lathe
