// HTTP/1.1 as the rest of the server sees it: requests arrive whole, answers are sent whole or in
// chunks. It hides Boost's Asio and Beast, which compile slowly.
//
// The thread in HttpServer::run() calls the handlers. An HttpAnswer may be called in that thread
// only; other threads use HttpServer::post().
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace lathe {

struct HttpHeader {
  std::string name;  // lower case in requests
  std::string value;
};

struct HttpRequest {
  std::string method;
  std::string path;                 // without the query; its escapes are decoded
  std::string query;                // after the "?", as received; decode_uri() reads its values
  std::vector<HttpHeader> headers;  // never those of a chunked body's trailer
  std::string body;
  std::string address;  // of the client, without the port; "" through a Unix socket

  /// The first header with that lower-case name, or null.
  const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<HttpHeader> headers;
  bool close = false;  // close the connection afterwards
};

/// left  closed its connection, or half of it
/// slow  read nothing, or too little, and was disconnected
enum class ClientEnd { left, slow };

/// Sends one request's answer. Once the client has gone, calls do nothing.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  /// Sends the whole answer; at most once, and not with a stream.
  virtual void send(HttpResponse response) = 0;
  /// A stream of events: its head, then chunks, then its end.
  virtual void begin_stream(std::vector<HttpHeader> headers) = 0;
  virtual void write(std::string_view chunk) = 0;
  virtual void end_stream() = 0;
  /// Closes the connection, whatever has been sent.
  virtual void drop() = 0;

  virtual bool gone() const = 0;
  /// Called once if the client goes before the answer has ended.
  virtual void on_gone(std::function<void(ClientEnd)> call) = 0;
  /// Bytes that the client has not read.
  virtual std::size_t unsent() const = 0;
};

struct HttpLimits {
  std::int64_t max_connections = 16384;  // and a few more for HttpHandler::spares
  std::size_t max_body_bytes = 16 << 20;
  // Of all connections: received and not answered yet, and answers that clients have not read.
  std::int64_t max_bodies_bytes = 1 << 30;
  std::size_t max_header_bytes = 32 << 10;  // also of a chunked body's trailer, and its extensions
  std::size_t max_headers = 100;
  std::size_t max_unsent_bytes = 4 << 20;  // beyond: the client is too slow and is disconnected
  // Seconds.
  int keep_alive_timeout = 120;  // between requests
  int header_timeout = 10;       // from a request's first byte, or the connection's start
  int body_timeout = 60;         // for a body
  int slow_client_timeout = 30;  // without a byte read
  int sse_keep_alive = 15;       // without an event
};

/// A server's callbacks, called in the thread of run() unless stated.
struct HttpHandler {
  std::function<void(HttpRequest, std::shared_ptr<HttpAnswer>)> request;
  /// Whether a request's body is worth reading, by its head. If not, `request` gets it without the
  /// body, and the connection closes after the answer. Called from any thread.
  std::function<bool(const HttpRequest&)> reads_body = [](const HttpRequest&) { return true; };
  /// Makes the answer to an unacceptable request from what is known of its path and headers, and
  /// the error's status, code (a constant) and message. Called from any thread.
  std::function<HttpResponse(const HttpRequest&, int, std::string_view, std::string)> error;
  /// Called after such an answer, with status and code.
  std::function<void(int, std::string_view)> refused = [](int, std::string_view) {};
  /// Called with the text of an exception that ended a connection or lost a part of its answer:
  /// there was no memory, or the server has a mistake.
  std::function<void(std::string_view)> failed = [](std::string_view) {};
  std::function<void()> tick = [] {};  // called once a second
  /// Whether a request that begins with these bytes is served although all connections are taken;
  /// others wait for a connection.
  std::function<bool(std::string_view)> spares = [](std::string_view) { return false; };
};

/// Calls `failed`, unless there is no memory for that either.
void tell_failure(const HttpHandler& handler, const std::exception& what) noexcept;

class HttpServer {
 public:
  /// Listens on host and port (0: any free port), or with `path` on a Unix socket, replacing one
  /// that nobody listens on, but no other file. Errors: an unusable address, naming --host, --port
  /// or --uds;
  /// `--max-connections` above what the system lets a process open. `threads` 1: the thread of
  /// run() owns all connections; more: that many other threads own them, parse requests and send
  /// answers.
  static Result<std::unique_ptr<HttpServer>> bind(const std::string& host, int port,
                                                  const std::string& path, const HttpLimits& limits,
                                                  int threads);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;  // 0: a Unix socket
  /// Removes a Unix socket's file; the destructor does so, too.
  virtual void remove_file() = 0;
  /// Serves until stop(). SIGTERM, SIGINT and, unless ignored, SIGHUP call
  /// `on_signal`.
  virtual void run(HttpHandler handler, std::function<void(int)> on_signal) = 0;
  /// Runs `call` in the thread of run(). Called from any thread.
  virtual void post(std::function<void()> call) = 0;
  // Called in the thread of run().
  /// Stops accepting, and closes each connection after its answer.
  virtual void close_listener() = 0;
  /// Ends run() once everything written has been sent, or after a second.
  virtual void stop() = 0;
  virtual std::int64_t connections() const = 0;
};

const char* status_text(int status);

/// A client's text as messages show it: ASCII on one line, at most about 60 bytes.
std::string shown_text(std::string_view text);

/// Decodes %XX (RFC 3986, 2.1). nullopt: a % without two hex digits, or a control character.
std::optional<std::string> decode_uri(std::string_view text);

/// A name and its value, decoded.
struct QueryParameter {
  std::string name;
  std::string value;
};

/// The parameters of a HttpRequest's query, in order. One without "=" has the value "".
std::vector<QueryParameter> read_query(std::string_view query);

}  // namespace lathe
