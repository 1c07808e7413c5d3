// One connection: parses requests, passes them on, sends answers. At most one request is in
// progress.
//
// It waits for the socket to become readable or writable and then moves bytes without blocking, so
// an idle connection holds next to no memory. It keeps reading while a request is answered, up to
// max_header_bytes, to notice at once when the client leaves.
#pragma once

#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http.h"

namespace lathe {

class Connection;

/// State that a thread's connections share. It outlives them, except connections that are still
/// open when the server stops.
struct ConnectionHost {
  HttpLimits limits;
  // Bytes of bodies and of answers that clients have not read, of all threads: max_bodies_bytes.
  std::atomic<std::int64_t>* kept_bytes = nullptr;
  HttpHandler handler;
  std::function<void(Connection*)> closed;  // the connection is over
  bool draining = false;                    // close connections after their answers
  std::int64_t now = 0;                     // seconds, updated by tick()
  std::string buffer;                       // for reading; used within one call
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::generic::stream_protocol::socket socket, ConnectionHost& host);

  /// `spare`: all connections are taken, so it serves only what HttpHandler::spares() says, and
  /// otherwise waits for promote().
  void start(bool spare = false);
  bool spare() const { return spare_; }
  /// Another connection has ended: this one serves all requests.
  void promote();
  /// Ends a spare connection that waits, with 503 if it has sent something. False: it is busy.
  bool give_up();
  /// Enforces the time limits; called once a second.
  void tick();
  void close();
  /// Closes after sending what has been written.
  void finish();
  /// No request is in progress and nothing is left to send.
  bool quiet() const { return state_ != State::answering && out_.empty(); }

  // Called by the answer to request `number`; ignored unless that request is in progress.
  bool answers(std::uint64_t number) const {
    return state_ == State::answering && number == number_;
  }
  void send(HttpResponse response);
  void begin_stream(const std::vector<HttpHeader>& headers);
  void write_chunk(std::string_view chunk);
  void end_stream();
  void set_on_gone(std::function<void(ClientEnd)> call) { on_gone_ = std::move(call); }
  std::size_t unsent() const { return out_.size() - sent_; }

 private:
  enum class State { idle, head, body, answering, closing, closed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // A request that finds no memory, or a mistake of the server, ends its connection alone.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const std::exception& e) {
      lose(ClientEnd::left);
      tell_failure(host_.handler, e);
    }
  }
  void wait_readable();
  void on_readable();
  bool may_read();
  void parse();
  void parse_soon();
  bool on_head();
  bool check_head();
  bool keep(std::int64_t& kept, std::size_t bytes);
  void on_request();
  void refuse(int status, std::string_view code, std::string message);
  void refuse_bodies();
  bool is_behind() const;
  void lose(ClientEnd why);
  // In connection_send.cc, with send() to end_stream()
  void put(std::string_view bytes);
  void flush();
  void answer_ended();

  boost::asio::generic::stream_protocol::socket socket_;
  ConnectionHost& host_;
  State state_ = State::idle;
  std::optional<Parser> parser_;
  HttpRequest request_;  // being read: its head
  std::string address_;  // HttpRequest's
  // Counted in the host's kept_bytes.
  std::int64_t body_bytes_ = 0;      // of the request
  std::int64_t unsent_bytes_ = 0;    // once the client reads more slowly than answers come
  std::size_t extension_bytes_ = 0;  // of its chunks
  std::function<void(std::uint64_t, boost::beast::string_view, boost::system::error_code&)>
      on_chunk_;
  std::string in_;   // read but not yet parsed
  std::string out_;  // to be sent, from sent_ on
  std::size_t sent_ = 0;
  std::uint64_t number_ = 0;  // of the request in progress
  std::function<void(ClientEnd)> on_gone_;
  std::int64_t since_ = 0;  // when state_ was entered
  std::int64_t taken_ = 0;  // when the client last read a byte, or had nothing to read
  std::int64_t wrote_ = 0;  // when the last chunk was written
  bool spare_ = false;
  bool waits_ = false;  // a spare connection with a request that has to wait
  bool reading_ = false;
  bool parsing_ = false;
  bool writing_ = false;
  bool version_read_ = false;  // of the request line being read
  bool http11_ = true;
  bool keep_alive_ = true;
  bool head_only_ = false;  // HEAD: no body
  bool streaming_ = false;
  bool chunked_ = false;
};

}  // namespace lathe
